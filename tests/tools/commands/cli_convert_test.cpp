#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/conversion.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

namespace cli_convert_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

/// A checkpoint large enough that converting it takes a while.
void synth_large(const std::string& directory) {
  const Outcome o = run_program(
      {"synth", directory, "--shape", "qwen3-moe", "--layers", "1", "--experts", "64", "--vocab", "16"});
  REQUIRE_MESSAGE(o.code == 0, o.err);
}

/// Waits until `condition` holds or the run ends; false in the latter case.
template <class F>
bool wait_until(Run& run, F condition) {
  while (!condition()) {
    if (!run.is_running()) return condition();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

/// True if anything could be taken for an artifact or for a part of one.
bool looks_complete(const fs::path& directory) {
  if (!fs::exists(directory) || fs::exists(directory / kJournalName)) return false;
  return !fs::is_empty(directory);
}

}  // namespace

TEST_CASE("synth, inspect, convert and validate --source, end to end") {
  for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
    CAPTURE(dialect);
    const Scratch scratch;
    const std::string source = (scratch / "src").string(), out = (scratch / "out").string();
    const Json made =
        json_of(run_program({"synth", source, "--shape", "tiny", "--dialect", dialect, "--json"}));
    const Json seen = json_of(run_program({"inspect", source, "--json"}));
    CHECK(seen["what"] == "NVFP4 checkpoint, " + dialect);
    CHECK(seen["tensor_count"] == made["tensors"]);
    CHECK(seen["data_bytes"] == made["bytes"]);
    const Json done = json_of(run_program({"convert", source, out, "--to", "v7", "--json"}));
    CHECK(done["tensors"].get<size_t>() == read_tensors(out).size());
    CHECK(json_of(run_program({"inspect", out, "--json"}))["what"] == "twofour artifact, layout v7");
    const Json proven = json_of(run_program({"validate", out, "--source", source, "--json"}));
    CHECK(proven["valid"] == true);
    CHECK(proven["source_tensors"] == made["tensors"]);
    CHECK(proven["source_bytes"] == made["bytes"]);
    CHECK(proven["differences"].empty());
    for (const Json& layer : proven["layers"]) CHECK(layer["exact"] == true);
    REQUIRE(proven["weights"].size() == done["modules"].size());
    for (size_t i = 0; i < done["modules"].size(); ++i) {
      CHECK(proven["weights"][i]["quality"] == done["modules"][i]["quality"]);
    }
    CHECK(json_of(run_program({"validate", out, "--json"}))["valid"] == true);
    const Outcome text = run_program({"validate", out, "--source", source});
    CHECK(text.code == 0);
    CHECK(text.out.find("every byte derived again from the source, equal") != std::string::npos);
  }
}

TEST_CASE("a dry run is one document, writes nothing and tells every file and byte to come") {
  const Scratch scratch;
  const fs::path out = scratch / "out";
  const Json plan = json_of(run_program(
      {"convert", kGolden, out.string(), "--to", "v7", "--max-shard-size", "20kB", "--dry-run", "--json"}));
  CHECK(fs::is_empty(scratch.path));
  CHECK(plan["dry_run"] == true);
  CHECK(plan["files"].size() > 2);
  REQUIRE(run_program({"convert", kGolden, out.string(), "--to", "v7", "--max-shard-size", "20kB"}).code ==
          0);
  for (const Json& file : plan["files"]) {
    CHECK(fs::file_size(out / file["name"].get<std::string>()) == file["bytes"].get<uint64_t>());
  }
  size_t others = 0;
  for (const Json& file : plan["other_files"]) {
    const auto bytes = fs::file_size(out / file["name"].get<std::string>());
    CAPTURE(file["name"].get<std::string>());
    if (file["exact"] == true) CHECK(bytes == file["bytes"].get<uint64_t>());
    // How many digits the figures have is not known before.
    CHECK(std::abs(static_cast<double>(bytes) / file["bytes"].get<double>() - 1) < 0.1);
    ++others;
  }
  CHECK(plan["files"].size() + others == read_tree(out).size());
  const ReadTensors tensors = read_tensors(out);
  CHECK(plan["tensors"].size() == tensors.size());
  for (const Json& t : plan["tensors"]) {
    const ReadTensor& real = tensors.at(t["name"].get<std::string>());
    CHECK(t["shape"].get<std::vector<int64_t>>() == real.shape);
    CHECK(t["dtype"] == dtype_name(real.dtype));
    CHECK(t["bytes"] == real.bytes.size());
  }
  const Outcome text =
      run_program({"convert", kGolden, (scratch / "other").string(), "--to", "v7", "--dry-run"});
  CHECK(text.code == 0);
  CHECK(text.out.find("would read ") != std::string::npos);
  CHECK(!fs::exists(scratch / "other"));
}

TEST_CASE("--quiet prints nothing") {
  const Scratch scratch;
  const std::string source = (scratch / "src").string(), out = (scratch / "out").string();
  const std::string uneven = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-mixtral-uneven/src";
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"synth", source, "--shape", "tiny", "-q"},
           {"convert", source, out, "--to", "v7", "--quiet"},
           {"convert", uneven, (scratch / "uneven").string(), "--to", "v7", "-q"},  // has warnings
           {"validate", out, "--quiet"},
           {"validate", out, "--source", source, "-q"}}) {
    const Outcome o = run_program(arguments);
    CHECK(o.code == 0);
    CHECK_MESSAGE(o.out.empty(), o.out);
    CHECK_MESSAGE(o.err.empty(), o.err);
  }
}

TEST_CASE("findings are on stderr, warnings always and notes with --verbose; with --json in the document") {
  const Scratch scratch;
  const std::string uneven = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-mixtral-uneven/src";
  const auto run = [&](const char* name, const char* option) {
    return run_program({"convert", uneven, (scratch / name).string(), "--to", "v7", option});
  };
  const Outcome plain = run("plain", "--no-verify"), verbose = run("verbose", "--verbose"),
                json = run("json", "--json");
  CHECK(plain.err.find("warning: ") != std::string::npos);
  CHECK(plain.err.find("[unequal-global-scales]") != std::string::npos);
  CHECK(plain.err.find("[fold-loss]") != std::string::npos);
  CHECK(plain.err.find("note: ") == std::string::npos);
  CHECK(verbose.err.find("note: ") != std::string::npos);
  CHECK(plain.err.find("[input-scales-unused]") == std::string::npos);
  CHECK(verbose.err.find("[input-scales-unused]") != std::string::npos);
  CHECK(json_of(json)["findings"].size() == 4);
  CHECK(run_program({"convert", uneven, (scratch / "strict").string(), "--to", "v7", "--fold", "strict"})
            .code == 2);
  CHECK(!fs::exists(scratch / "strict"));
}

TEST_CASE("--force replaces an artifact, again and again, and nothing else") {
  const Scratch scratch;
  const std::string out = (scratch / "out").string(), foreign = (scratch / "foreign").string();
  const std::vector<std::string> convert = {"convert", kGolden, out, "--to", "v7", "--quiet"};
  std::vector<std::string> forced = convert;
  forced.push_back("--force");
  CHECK(run_program(convert).code == 0);
  const auto first = read_tree(out);
  const Outcome again = run_program(convert);
  CHECK(again.code == 2);
  CHECK(again.err.find("--force replaces it") != std::string::npos);
  for (int i = 0; i < 2; ++i) {
    CHECK(run_program(forced).code == 0);
    CHECK((read_tree(out) == first));
  }
  fs::create_directory(foreign);
  write_text(fs::path(foreign) / "mine.txt", "mine");
  forced[2] = foreign;
  CHECK(run_program(forced).code == 2);
  CHECK(read_tree(foreign) == std::map<std::string, std::string>{{"mine.txt", "mine"}});
}

TEST_CASE("interrupted at any point, convert ends with 130 and leaves finished files or nothing") {
  const Scratch scratch;
  const std::string source = (scratch / "src").string();
  synth_large(source);
  const auto shards = [](const fs::path& out) {
    size_t count = 0;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(out, error)) {
      count += entry.path().filename().string().starts_with("model-");
    }
    return count;
  };
  int interrupted = 0;
  ::signal(SIGHUP, SIG_DFL);  // under nohup the program would ignore it, too
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    for (const size_t finished : {size_t{0}, size_t{1}, size_t{3}}) {
      CAPTURE(finished);
      const fs::path out = scratch / fmt::format("out-{}-{}", signal, finished);
      Run run({"convert", source, out.string(), "--to", "v7", "--max-shard-size", "2MB", "-j", "1"});
      const bool reached =
          wait_until(run, [&] { return fs::exists(out / kJournalName) && shards(out) >= finished; });
      run.send(signal);
      const Outcome o = run.wait();
      if (!reached || o.code == 0) continue;  // it was faster than this test
      ++interrupted;
      CHECK(o.code == 130);
      CHECK(o.out.empty());
      CHECK(o.err.find("twofour: interrupted\n") != std::string::npos);
      const bool stays = o.err.find("weight files are finished and kept") != std::string::npos;
      CHECK(fs::exists(out) == stays);
      CHECK((stays || finished == 0));
      CHECK(!looks_complete(out));
    }
  }
  CHECK(interrupted >= 6);
}

TEST_CASE("killed, convert leaves a directory that every command refuses and --force replaces") {
  const Scratch scratch;
  const std::string source = (scratch / "src").string(), out = (scratch / "out").string();
  synth_large(source);
  Run run({"convert", source, out, "--to", "v7", "--max-shard-size", "2MB", "-j", "1"});
  REQUIRE(wait_until(run, [&] { return fs::exists(fs::path(out) / kJournalName); }));
  run.send(SIGKILL);
  REQUIRE(run.wait().code == 128 + SIGKILL);
  CHECK(!looks_complete(out));
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"inspect", out},
                                             {"convert", out, (scratch / "second").string(), "--to", "v7"},
                                             {"validate", out}}) {
    const Outcome o = run_program(arguments);
    CHECK(o.code == 2);
    CHECK_MESSAGE(o.err.starts_with("twofour: "), o.err);
  }
  CHECK(run_program({"convert", source, out, "--to", "v7"}).code == 2);
  CHECK(run_program({"convert", source, out, "--to", "v7", "--force", "-q"}).code == 0);
  CHECK(run_program({"validate", out, "-q"}).code == 0);
}

TEST_CASE("a summary has the sizes of the source's and of the artifact's weight files, resumed or not") {
  const Scratch scratch;
  const std::string source = (scratch / "src").string();
  synth_large(source);
  const auto summary_of = [&](const std::string& name, const std::vector<std::string>& more) {
    const std::string out = (scratch / name).string();
    std::vector<std::string> words = {"convert", source, out, "--to", "v7", "--max-shard-size", "2MB"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = run_program(words);
    REQUIRE_MESSAGE(o.code == 0, o.err);
    const size_t at = o.out.find(": 2 matrices in v7");
    REQUIRE_MESSAGE(at != o.out.npos, o.out);
    return o.out.substr(at, o.out.find('\n', at) - at);
  };
  const auto size_of = [&](const std::string& name) {
    double bytes = 0;
    for (const auto& entry : fs::directory_iterator(scratch / name)) {
      if (entry.path().extension() == ".safetensors") bytes += static_cast<double>(entry.file_size());
    }
    return fmt::format("{:.3g} MB", bytes / 1e6);
  };
  const std::string whole = summary_of("whole", {});
  CHECK(whole.ends_with(fmt::format(", {} (from {})", size_of("whole"), size_of("src"))));

  const fs::path out = scratch / "killed";
  Run run({"convert", source, out.string(), "--to", "v7", "--max-shard-size", "2MB", "-j", "1"});
  const auto has_second = [&] {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(out, error)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("model-00002-of-") && name.ends_with(".safetensors")) return true;
    }
    return false;
  };
  REQUIRE(wait_until(run, has_second));
  run.send(SIGKILL);
  REQUIRE(run.wait().code == 128 + SIGKILL);
  CHECK(summary_of("killed", {"--resume"}) == whole);

  // Of weights that are read twice.
  const std::string dense = std::string(TWOFOUR_GOLDEN_DIR) + "/artifacts/source/dense";
  const Outcome quantized = run_program({"quantize", dense, (scratch / "nvfp4").string()});
  CHECK(quantized.code == 0);
  const double bytes = static_cast<double>(fs::file_size(dense + "/model-00001-of-00001.safetensors"));
  CHECK_MESSAGE(quantized.out.find(fmt::format("(from {:.3g} kB)", bytes / 1e3)) != std::string::npos,
                quantized.out);
}

TEST_CASE("jobs change neither what is written nor what is said about it") {
  const Scratch scratch;
  const std::string one = (scratch / "one").string(), many = (scratch / "many").string();
  Json a = json_of(run_program({"convert", kGolden, one, "--to", "v7", "-j", "1", "--json"}));
  Json b = json_of(run_program({"convert", kGolden, many, "--to", "v7", "-j", "7", "--json"}));
  CHECK((read_tree(one) == read_tree(many)));
  a.erase("seconds");
  b.erase("seconds");
  CHECK(a == b);
}

}  // namespace cli_convert_test
