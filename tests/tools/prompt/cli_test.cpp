#include <doctest/doctest.h>
#include <fmt/format.h>

#include <sstream>

#include "formats/json.h"
#include "kernels/device/device.h"
#include "lib/base/findings/version.h"
#include "lib/base/io/file.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

namespace cli_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

/// An artifact of the golden checkpoint.
struct Artifact {
  Artifact() { REQUIRE(run_program({"convert", kGolden, path, "--to", "v7", "--quiet"}).code == 0); }
  const Scratch scratch;
  const std::string path = (scratch / "out").string();
  std::string file() const { return path + "/model-00001-of-00001.safetensors"; }
};

}  // namespace

TEST_CASE("--version begins with version and commit") {
  const Outcome o = run_program({"--version"});
  CHECK(o.code == 0);
  CHECK(o.err.empty());
  CHECK(o.out.substr(0, o.out.find('\n')) == fmt::format("twofour {} ({})", version(), version_commit()));
  for (const char* line : {"\ncompiler: ", "\ncpu: portable", "\ncuda: ", "\nlibraries: fmt "}) {
    CHECK_MESSAGE(o.out.find(line) != std::string::npos, o.out);
  }
}

TEST_CASE("--help lists every command, and each command has its own") {
  const Outcome o = run_program({"--help"});
  CHECK(o.code == 0);
  for (const char* command : {"inspect", "convert", "validate", "synth", "help"}) {
    CHECK(o.out.find(command) != std::string::npos);
    const Outcome own = run_program({command, "--help"});
    CHECK(own.code == 0);
    for (const char* option : {"--json", "--quiet", "--jobs", "--device"}) {
      CHECK_MESSAGE(own.out.find(option) != std::string::npos, command);
    }
  }
  CHECK(o.out.find("Exit codes") != std::string::npos);
}

TEST_CASE("a mistyped command is answered with the nearest one") {
  for (const auto& [typed, meant] :
       {std::pair{"convrt", "convert"}, {"inspekt", "inspect"}, {"valid", "validate"}}) {
    const Outcome o = run_program({typed, "x"});
    CHECK(o.code == 2);
    CHECK(o.out.empty());
    CHECK(o.err == fmt::format("twofour: unknown command '{}'; did you mean {}?\nSee twofour --help.\n",
                               typed, meant));
  }
  CHECK(run_program({"a checkpoint", "lint"}).err ==
        "twofour: unknown command 'a checkpoint'; the command comes first: twofour lint\nSee twofour "
        "--help.\n");
  CHECK(run_program({"frobnicate"}).err == "twofour: unknown command 'frobnicate'\nSee twofour --help.\n");
}

TEST_CASE("a mistyped option is answered with the nearest one of that command") {
  for (const auto& [arguments, message] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"convert", "a", "b", "--to", "v7", "--dryrun"},
            "unknown option --dryrun; did you mean --dry-run?"},
           {{"convert", "a", "b", "--to", "v7", "--max-shardsize=5GB"},
            "unknown option --max-shardsize; did you mean --max-shard-size?"},
           {{"inspect", "a", "--jsn"}, "unknown option --jsn; did you mean --json?"},
           {{"validate", "a", "--sorce", "b"}, "unknown option --sorce; did you mean --source?"},
           {{"synth", "a", "--shape", "tiny", "--layer", "1"},
            "unknown option --layer; did you mean --layers?"}}) {
    const Outcome o = run_program(arguments);
    CHECK(o.code == 2);
    CHECK(o.out.empty());
    CHECK(o.err == fmt::format("twofour: {}\nSee twofour {} --help.\n", message, arguments[0]));
  }
}

TEST_CASE("missing arguments, wrong values and no command are usage errors") {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"convert"},
                                             {"convert", "a"},
                                             {"convert", "a", "b"},  // no --to
                                             {"inspect"},
                                             {"validate"},
                                             {"synth", "a"},
                                             {"convert", "a", "b", "--to", "v9"},
                                             {"convert", "a", "b", "--to", "v7", "--fold", "smaller"},
                                             {"convert", "a", "b", "--to", "v7", "--jobs", "0"},
                                             {"convert", "a", "b", "--to", "v7", "--device", "tpu"},
                                             {"synth", "a", "--shape", "gpt-2"},
                                             {"inspect", "a", "b"}}) {
    CAPTURE(fmt::format("{}", fmt::join(arguments, " ")));
    const Outcome o = run_program(arguments);
    CHECK(o.code == 2);
    CHECK(o.out.empty());
    CHECK_MESSAGE(o.err.starts_with("twofour: "), o.err);
  }
}

TEST_CASE("every command says in one line that its input is missing") {
  const Scratch scratch;
  const std::string nowhere = (scratch / "nowhere").string(), out = (scratch / "out").string();
  check_one_line(run_program({"convert", nowhere, out, "--to", "v7"}),
                 nowhere + ": no such file or directory");
  check_one_line(run_program({"inspect", nowhere}), nowhere + ": no such file or directory");
  check_one_line(run_program({"validate", nowhere}), nowhere + ": no such file or directory");
  CHECK(fs::is_empty(scratch.path));
}

TEST_CASE("trouble with --json is a document on stdout, too") {
  const Scratch scratch;
  const Outcome o = run_program({"inspect", (scratch / "nowhere").string(), "--json"});
  CHECK(o.code == 2);
  CHECK(parse_json("stdout", o.out)["error"].get<std::string>().find("no such file") != std::string::npos);
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"inspect", "--json"}, {"inspect", "a", "--jobs", "0", "--json"}}) {
    const Outcome usage = run_program(arguments);
    CHECK(usage.code == 2);
    CHECK(usage.err.starts_with("twofour: "));
    CHECK_MESSAGE(parse_json("stdout", usage.out).contains("error"), usage.out);
  }
}

TEST_CASE("help, completion and manual pages offer cuda where it is taken only") {
  const Scratch scratch;
  REQUIRE(run_program({"man", scratch.path.string()}).code == 0);
  const std::string fish = run_program({"completion", "fish"}).out;
  for (const std::string command :
       {"inspect", "lint", "prune", "quantize", "plan", "merge", "diff", "synth", "completion", "man", "help",
        "convert", "validate", "run", "eval", "generate", "stats"}) {
    CAPTURE(command);
    const bool cuda = command == "validate" || command == "run" || command == "prune" ||
                      command == "quantize" || command == "convert" || command == "eval" ||
                      command == "generate" || command == "stats";
    const std::string page = read_text(scratch / ("twofour-" + command + ".1"));
    CHECK((page.find("cuda") != std::string::npos &&
           page.find("One of: cpu, cuda, auto") != std::string::npos) == cuda);
    CHECK((page.find("One of: cpu, auto") != std::string::npos) == !cuda);
    const std::string help = run_program({command, "--help-all"}).out;
    CHECK((help.find("{cpu,auto}") != std::string::npos) == !cuda);
    std::istringstream lines(fish);
    int found = 0;
    for (std::string line; std::getline(lines, line);) {
      // Behind the name may stand what keeps the line from subcommands.
      const std::string head = "complete -c twofour -n '__fish_seen_subcommand_from " + command;
      if (!line.starts_with(head + "'") && !line.starts_with(head + ";")) continue;
      if (line.find("' -l device -x ") == std::string::npos) continue;
      ++found;
      CHECK((line.find("-a 'cpu cuda auto'") != std::string::npos) == cuda);
      CHECK((line.find("-a 'cpu auto'") != std::string::npos) == !cuda);
    }
    CHECK(found == 1);
  }
}

TEST_CASE("what the system does not let us look at is not called absent") {
  const Artifact a;
  const fs::path loop = fs::path(a.path) / "loop";
  fs::create_symlink("loop", loop);
  for (const char* command : {"inspect", "lint", "validate"}) {
    check_one_line(run_program({command, loop.string()}), "loop: cannot look at: ");
    check_one_line(run_program({command, loop.string() + "s"}), "loops: no such file or directory");
  }
  fs::remove(loop);
  fs::remove(a.path + "/twofour.json");
  fs::create_symlink("twofour.json", a.path + "/twofour.json");
  check_one_line(run_program({"validate", a.path}), "twofour.json: cannot open: ");
  const std::string linted = run_program({"lint", a.path}).out;
  CHECK_MESSAGE(linted.find("cannot open") != std::string::npos, linted);
  fs::remove(a.file());
  fs::create_symlink(fs::path(a.file()).filename(), a.file());
  check_one_line(run_program({"inspect", a.path}), "model-00001-of-00001.safetensors: cannot open: ");
}

TEST_CASE("man and completion give one document under --json") {
  const Scratch scratch;
  const Json man = json_of(run_program({"man", scratch.path.string(), "--json"}));
  CHECK(man["files"].size() > 10);
  for (const Json& file : man["files"]) CHECK(fs::exists(scratch / file.get<std::string>()));
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    CHECK(json_of(run_program({"completion", shell, "--json"}))["script"] ==
          run_program({"completion", shell}).out);
  }
}

TEST_CASE("validate proves layers on a device that is there, and says under auto that there is none") {
  const Artifact a;
  for (const bool with_source : {false, true}) {
    for (const std::string device : {"cpu", "auto", "cuda"}) {
      CAPTURE(device);
      CAPTURE(with_source);
      std::vector<std::string> words = {"validate", a.path, "--device", device};
      if (with_source) words.insert(words.end(), {"--source", kGolden});
      if (device == "cuda" && !cuda_device()) {
        check_one_line(run_program(words), "--device cuda: expected a CUDA device, found none (");
        continue;
      }
      const bool on_device = device != "cpu" && cuda_device();
      const Outcome text = run_program(words);
      CHECK(text.code == 0);
      const std::string used = on_device         ? "\ncuda ("
                               : device == "cpu" ? "\ncpu, "
                                                 : "\ncpu (no CUDA device: ";
      CHECK_MESSAGE(text.out.find(used) != std::string::npos, text.out);
      CHECK((text.out.find("1 of 1 layers give the reference's output up to their roundings") !=
             std::string::npos) == on_device);
      words.push_back("--json");
      const Json json = json_of(run_program(words));
      CHECK(json["valid"] == true);
      CHECK(json["device"] == (on_device ? "cuda" : "cpu"));
      CHECK(json.contains("device_layers") == on_device);
      bool told = false;
      for (const Json& note : json["notes"]) told = told || note["rule"] == "no-device";
      CHECK(told == (device == "auto" && !on_device));
      if (!on_device) continue;
      CHECK(json["device_layers"].size() == 1);
      CHECK(json["device_layers"][0]["beyond_tolerance"] == 0);
      CHECK(json["device_layers"][0]["worst"].contains("column"));
    }
  }
}

TEST_CASE("validate says which layers it did not run and why, and what it sampled, without --verbose") {
  const Scratch scratch;
  Tensors tensors;
  for (const int l : {0, 1}) {
    const std::string block = fmt::format("model.layers.{}.mlp.experts", l);
    add_experts(tensors, block, random_experts(8, 16, 16));
    if (l == 1) add_bf16(tensors, block + ".0.up_proj.bias", {16});
  }
  write_checkpoint(scratch / "src", {tensors}, R"({"num_experts": 8, "num_experts_per_tok": 8})");
  const std::string source = (scratch / "src").string(), out = (scratch / "out").string();
  REQUIRE(run_program({"convert", source, out, "--to", "v7"}).code == 0);
  const auto validate = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"validate", out, "--source", source, "--device", "cpu"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  };
  const Outcome text = validate({"--html", (scratch / "page.html").string()});
  CHECK(text.code == 0);
  CHECK_MESSAGE(
      text.out.find("\n1 of 2 layers give the reference's output, 1 not run; ") != std::string::npos,
      text.out);
  CHECK(text.out.find("\nnot run: model.layers.1.mlp.experts: ") != std::string::npos);
  CHECK(text.out.find("up_proj.bias: expected linears with weights only") != std::string::npos);
  CHECK(text.out.find("\nsample: 2 tokens a layer through at most 4 experts, at most 4 layers, seed 0; ") !=
        std::string::npos);
  const std::string page = read_text(scratch / "page.html");
  CHECK(page.find("1 of 2, 1 not run") != std::string::npos);
  CHECK(page.find("layers run: not run, and why") != std::string::npos);
  const Json json = json_of(validate({"--json", "-q"}));
  CHECK(json["sample"] == Json{{"seed", 0}, {"tokens", 2}, {"experts", 4}, {"layers", 4}});
  CHECK(json["layer_coverage"]["found"] == 2);
  CHECK(json["layer_coverage"]["not_run"].size() == 1);
  CHECK(json["layers"][0]["experts_used"] == 4);
  const Json all = json_of(validate({"--json", "-q", "--tokens", "3", "--all-layers", "--seed", "5"}));
  CHECK(all["sample"] == Json{{"seed", 5}, {"tokens", 3}, {"experts", nullptr}, {"layers", nullptr}});
  CHECK(all["layers"][0]["experts_used"] == 8);
  const Outcome none = validate({"--tokens", "0"});
  CHECK(none.code == 0);
  CHECK(none.out.find("\nno layer was run: --tokens 0\n") != std::string::npos);
}

TEST_CASE("TWOFOUR_ISA chooses the kernels, and an unknown one is refused") {
  const Scratch scratch;
  check_one_line(
      run_program({"convert", kGolden, (scratch / "bogus").string(), "--to", "v7"}, {"TWOFOUR_ISA=bogus"}),
      "TWOFOUR_ISA: expected");
  CHECK(!fs::exists(scratch / "bogus"));
  for (const Isa isa : available_isas()) {
    const std::string name(isa_name(isa));
    CHECK(run_program({"convert", kGolden, (scratch / name).string(), "--to", "v7"}, {"TWOFOUR_ISA=" + name})
              .code == 0);
    CHECK((read_tree(scratch / name) == read_tree(scratch / "portable")));
  }
}

TEST_CASE("inspect says what one stored byte is") {
  const Artifact a;
  const std::string block = "model.layers.0.mlp.experts.";
  const auto at = [&](const std::string& path, const std::string& place) {
    const Outcome o = run_program({"inspect", path, "--at", place});
    CHECK(o.code == 0);
    return o.out;
  };
  // Which weights a byte holds follows from the layout; what it holds, from the golden file.
  const ReadTensors golden =
      read_tensors(fs::path(TWOFOUR_GOLDEN_DIR) / "modelopt-qwen3/expect/v7.safetensors");
  const size_t offset = (2 * 24 + 7) * 96 + 50;  // comp [4, 24, 96]: expert 2, quad 7, n 50
  const unsigned byte = golden.at(block + "w13_comp").bytes[offset];
  const std::string expected = fmt::format(
      "{0}w13_comp U8 [4, 24, 96], byte {1} = 0x{2:02X}: expert 2, row 7, column 50: n 50, "
      "kept codes of quad k 28-31: 0x{3:X} (",
      block, offset, byte, byte & 15);
  const std::string found = at(a.path, fmt::format("{}w13_comp:{}", block, offset));
  CHECK_MESSAGE(found.starts_with(expected), found);
  CHECK(at(a.path, block + "w13_global_scale:9").find("expert 2: byte 1 of its float32 global scale") !=
        std::string::npos);
  CHECK(at(kGolden, block + "0.up_proj.weight:25").find("n 0, k 50 and 51: codes 0x") != std::string::npos);
  CHECK(at(kGolden, block + "0.up_proj.weight_scale:7").find("n 1, k 16-31: block scale ") !=
        std::string::npos);
  CHECK(at(kGolden, "model.norm.weight:5").find("byte 1 of element 2\n") != std::string::npos);
  check_one_line(run_program({"inspect", a.path, "--at", block + "w13_comp:9999999"}),
                 "expected an offset below");
  check_one_line(run_program({"inspect", a.path, "--at", "nothing:0"}), "expected a tensor");
  check_one_line(run_program({"inspect", a.path, "--at", "nothing"}), "expected TENSOR:OFFSET");
}

TEST_CASE("the total that inspect shows is the size of the files") {
  const Artifact a;
  for (const std::string& path : {kGolden, a.path, a.file()}) {
    uint64_t bytes = 0;
    if (fs::is_regular_file(path)) {
      bytes = fs::file_size(path);
    } else {
      for (const auto& entry : fs::directory_iterator(path)) {
        if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
      }
    }
    const Outcome o = run_program({"inspect", path});
    CHECK(o.code == 0);
    CHECK_MESSAGE(o.out.find(fmt::format(" of headers = {} bytes of files\n", bytes)) != std::string::npos,
                  o.out);
    const Json json = json_of(run_program({"inspect", path, "--json"}));
    CHECK(json["data_bytes"].get<uint64_t>() + json["header_bytes"].get<uint64_t>() == bytes);
    uint64_t listed = 0;
    for (const Json& t : json["tensors"]) listed += t["bytes"].get<uint64_t>();
    CHECK(listed == json["data_bytes"].get<uint64_t>());
  }
}

TEST_CASE("validate shows damage with exit code 1 and where it is") {
  const Artifact a;
  CHECK(run_program({"validate", a.path}).code == 0);
  flip_bit(a.file(), fs::file_size(a.file()) - 1, 3);
  for (const bool with_source : {false, true}) {
    std::vector<std::string> arguments = {"validate", a.path};
    if (with_source) arguments.insert(arguments.end(), {"--source", kGolden});
    const Outcome o = run_program(arguments);
    CHECK(o.code == 1);
    CHECK_MESSAGE(o.out.starts_with("error: model."), o.out);
    arguments.push_back("--json");
    const Outcome json = run_program(arguments);
    CHECK(json.code == 1);
    CHECK(parse_json("stdout", json.out)["valid"] == false);
    CHECK(parse_json("stdout", json.out)["differences"].size() == (with_source ? 2 : 1));
    arguments.back() = "--quiet";
    const Outcome quiet = run_program(arguments);
    CHECK(quiet.code == 1);
    CHECK(quiet.out.empty());
  }
}

TEST_CASE("every command's help has an example and its exit codes") {
  const std::string all = run_program({"--help"}).out;
  const size_t begin = all.find("Look at a checkpoint:");
  std::istringstream lines(all.substr(begin, all.find("\nOptions:") - begin));
  size_t commands = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  ") || line.starts_with("   ")) continue;
    const std::string command = line.substr(2, line.find(' ', 2) - 2);
    const std::string help = run_program({command, "--help"}).out;
    INFO(command);
    const std::string example = ":\n  twofour " + command;
    CHECK((help.find("Example" + example) != help.npos || help.find("Examples" + example) != help.npos));
    CHECK(help.find("Exit codes: 0 done") != help.npos);
    ++commands;
  }
  CHECK(commands >= 10);
}

}  // namespace cli_test
