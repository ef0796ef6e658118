#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "formats/json.h"
#include "kernels/device/device.h"
#include "lib/base/io/file.h"
#include "lib/source/linears/linears.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/models/decoder_files.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/models/letter_tokenizer.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/statistics_builder.h"

namespace cli_json_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

struct Field {
  std::string type;
  bool optional = false;
};
using Shape = std::map<std::string, Field>;

/// The tables of tools/JSON.md by their headings.
std::map<std::string, Shape> described_shapes() {
  std::map<std::string, Shape> shapes;
  std::string heading;
  std::istringstream lines(read_text(fs::path(TWOFOUR_SOURCE_DIR) / "tools/JSON.md"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) heading = line.substr(line.find(' ') + 1);
    if (!line.starts_with("| `")) continue;
    const size_t name_end = line.find('`', 3), type = line.find("| ", name_end) + 2;
    Field field{line.substr(type, line.find(" |", type) - type)};
    const size_t comma = field.type.find(", optional");
    field.optional = comma != field.type.npos;
    field.type.resize(std::min(comma, field.type.size()));
    shapes[heading][line.substr(3, name_end - 3)] = field;
  }
  return shapes;
}

/// Holds documents against the shapes and remembers which fields it met.
struct Checker {
  std::map<std::string, Shape> shapes = described_shapes();
  std::set<std::string> met;
  std::vector<std::string> problems;

  bool is(const Json& value, const std::string& type, const std::string& where) {
    if (const size_t either = type.find(" or "); either != type.npos)
      return is(value, type.substr(0, either), where) || is(value, type.substr(either + 4), where);
    if (type == "any") return !value.is_object() && !value.is_array();
    if (type == "string") return value.is_string();
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    const bool list = type.starts_with("list of "), map = type.starts_with("map of ");
    if (list || map) {
      if (list ? !value.is_array() : !value.is_object()) return false;
      for (const Json& element : value) {
        if (!is(element, type.substr(list ? 8 : 7), where + "[]")) return false;
      }
      return true;
    }
    if (!value.is_object()) return false;
    check(value, type, where);
    return true;
  }

  void check(const Json& document, const std::string& heading, const std::string& where) {
    const auto shape = shapes.find(heading);
    if (shape == shapes.end()) return problems.push_back(where + ": no table of " + heading);
    for (const auto& [name, field] : shape->second) {
      const std::string at = where + "." + name;
      if (!document.contains(name)) {
        if (!field.optional) problems.push_back(at + ": expected the field, found none");
        continue;
      }
      met.insert(heading + "." + name);
      if (!is(document[name], field.type, at))
        problems.push_back(
            fmt::format("{}: expected {}, found {}", at, field.type, json_line(document[name])));
    }
    for (const auto& [name, value] : document.items()) {
      const bool version = name == "schema_version" && where == heading;
      if (!version && !shape->second.contains(name))
        problems.push_back(where + "." + name + ": not described");
    }
  }
};

}  // namespace

TEST_CASE("the tables of tools/JSON.md notice what is missing, undescribed or of another type") {
  Checker checker;
  checker.check(parse_json("", R"({"severity": "note", "rule": 5, "where": "x", "id": "y"})"), "finding",
                "f");
  REQUIRE(checker.problems.size() == 3);
  CHECK(checker.problems[0] == "f.message: expected the field, found none");
  CHECK(checker.problems[1] == "f.rule: expected string, found 5");
  CHECK(checker.problems[2] == "f.id: not described");
}

TEST_CASE("every document of --json is as tools/JSON.md describes it") {
  const Scratch scratch;
  const auto in = [&](const char* name) { return (scratch / name).string(); };
  Checker checker;
  std::set<std::string> headings;
  const auto hold = [&](const std::string& heading, Words words, int code = 0) {
    words.push_back("--json");
    const Outcome o = run_program(words);
    INFO(fmt::format("{}", fmt::join(words, " ")), ": ", o.err);
    REQUIRE(o.code == code);
    const Json json = parse_json("stdout", o.out);
    CHECK(o.out.starts_with("{\n  \"schema_version\": 1,\n"));
    checker.check(json, heading, heading);
    headings.insert(heading);
  };
  const std::string bad = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/expect";
  const std::string uneven = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-mixtral-uneven/src";
  hold("error", {"inspect", in("nowhere")}, 2);
  hold("error", {"inspect"}, 2);
  hold("synth", {"synth", in("src"), "--shape", "tiny"});
  hold("synth", {"synth", in("none"), "--shape", "tiny", "--dry-run"});
  hold("inspect", {"inspect", in("src")});
  hold("inspect", {"inspect", in("src"), "--stats"});
  hold("inspect", {"inspect", uneven});
  hold("inspect --at", {"inspect", in("src"), "--at", "model.norm.weight:3"});
  hold("inspect --values", {"inspect", in("src"), "--values", "model.norm.weight"});
  hold("lint", {"lint", in("src")});
  hold("lint", {"lint", bad}, 1);
  hold("lint", {"lint", uneven}, 1);
  hold("lint --rules", {"lint", "--rules"});
  hold("convert --dry-run", {"convert", in("src"), in("v7"), "--to", "v7", "--dry-run"});
  hold("convert --dry-run", {"convert", in("src"), in("v7"), "--recipe", "v7-experts", "--dry-run"});
  hold("recipes", {"recipes"});
  hold("recipes NAME", {"recipes", "v7-experts"});
  hold("convert", {"convert", in("src"), in("v7"), "--to", "v7"});
  hold("convert", {"convert", in("src"), in("v7"), "--to", "v7", "--resume"});
  hold("card", {"card", in("v7")});
  hold("convert", {"convert", uneven, in("uneven"), "--to", "v7"});
  hold("convert", {"convert", in("src"), in("bf16"), "--to", "bf16"});
  hold("convert", {"prune", in("src"), in("pruned")});
  hold("convert", {"quantize", in("bf16"), in("nvfp4"), "--pattern", "2:4"});
  {
    StatisticsBuilder statistics;
    const Checkpoint floats = Checkpoint::open(scratch / "bf16");
    const Linear linear = find_weight_modules(floats)[0];
    statistics.add({linear.name}, linear.k, 4 * linear.k);
    statistics.add_floats("heldout." + linear.name + ".hessian", {linear.k, linear.k},
                          StatisticsBuilder::sums(linear.k, linear.k, 2));
    statistics.add_count("heldout." + linear.name, linear.k);
    statistics.write(scratch / "stats");
  }
  {
    StatisticsBuilder statistics;
    for (const Linear& m : find_weight_modules(Checkpoint::open(scratch / "bf16"))) {
      if (!m.name.ends_with("self_attn.o_proj")) continue;
      statistics.add({m.name}, m.k, 4 * m.k);
      statistics.add_floats(m.name + ".fisher_hessian", {m.k, m.k}, StatisticsBuilder::sums(m.k, m.k, 3));
    }
    statistics.write(scratch / "fisher");
  }
  hold("convert --dry-run", {"quantize", in("bf16"), in("budget"), "--stats", in("fisher"), "--pattern",
                             "2:4", "--include", "*.self_attn.o_proj", "--budget", "0.5", "--dry-run"});
  hold("convert", {"quantize", in("bf16"), in("budget"), "--stats", in("fisher"), "--pattern", "2:4",
                   "--include", "*.self_attn.o_proj", "--budget", "0.5"});
  hold("stats inspect", {"stats", "inspect", in("stats")});
  hold("stats check", {"stats", "check", in("stats"), in("bf16")}, 1);
  hold("convert", {"quantize", in("bf16"), in("solved"), "--stats", in("stats")});
  hold("validate", {"validate", in("solved"), "--source", in("bf16"), "--stats", in("stats")});
  hold("convert", {"quantize", in("bf16"), in("kept"), "--keep-global-scale", in("nvfp4")});
  write_checkpoint(scratch / "half", {{{"model.layers.0.mlp.down_proj.weight",
                                        DType::kF16,
                                        {1, 32},
                                        std::vector<uint8_t>(64, 0x01)}}});  // 0x0101 * 2^-24
  hold("convert", {"convert", in("half"), in("mx"), "--to", "mxfp8", "--dialect", "compressed-tensors"});
  hold("convert", {"graft", in("src"), in("src"), in("grafted"), "--take", "model.norm"});
  hold("convert --dry-run", {"drop", in("src"), in("dropped"), "--modules", "model.norm", "--dry-run"});
  hold("convert", {"drop", in("src"), in("dropped"), "--modules", "model.norm"});
  hold("validate", {"validate", in("grafted"), "--source", in("src"), "--donor", in("src")});
  fs::copy(scratch / "src", scratch / "broken", fs::copy_options::recursive);
  std::ofstream(scratch / "broken" / "generation_config.json") << R"({"top_p": 7})";
  hold("repair", {"repair", in("broken"), in("mended"), "--dry-run"});
  hold("repair", {"repair", in("broken"), in("mended")});
  hold("validate", {"validate", in("mended"), "--source", in("broken")});
  hold("plan", {"plan", in("src"), in("shared"), "--to", "v7", "-o", in("a.plan")});
  hold("plan", {"plan", in("src"), in("shared"), "--to", "v7", "-o", in("a.plan"), "--tasks", "2"});
  hold("convert --plan", {"convert", "--plan", in("a.plan"), "--task", "0/1"});
  hold("convert", {"merge", in("shared")});
  hold("merge of a complete directory", {"merge", in("shared")});
  hold("diff", {"diff", in("src"), in("src")});
  hold("diff", {"diff", in("src"), in("pruned")}, 1);
  hold("diff", {"diff", in("src"), uneven}, 1);
  {
    // Two experts in each other's place, in A's names; and without one of three files that the index names.
    Tensors swapped;
    for (const auto& [name, t] : read_tensors(scratch / "src")) {
      std::string other = name;
      const size_t at = name.find("experts.");
      if (at != name.npos && (name[at + 8] == '0' || name[at + 8] == '1') && name[at + 9] == '.')
        other[at + 8] = name[at + 8] == '0' ? '1' : '0';
      swapped.push_back({other, t.dtype, t.shape, t.bytes});
    }
    write_checkpoint(scratch / "swapped", {swapped}, read_text(scratch / "src" / "config.json"));
  }
  hold("diff", {"diff", in("src"), in("swapped")}, 1);
  hold("synth", {"synth", in("cut"), "--shape", "tiny", "--max-shard-size", "20kB"});
  for (const auto& file : fs::directory_iterator(scratch / "cut")) {
    if (!file.path().filename().string().starts_with("model-00002-of-")) continue;
    fs::permissions(file.path(), fs::perms::owner_all);
    fs::remove(file.path());
    break;
  }
  hold("lint", {"lint", in("cut")}, 1);
  hold("validate", {"validate", in("v7")});
  hold("validate", {"validate", in("v7"), "--source", in("src")});
  hold("validate", {"validate", in("bf16"), "--source", in("src")});
  hold("run", {"run", in("v7"), "--layer", "0", "--random", "3", "-o", in("out.safetensors")});
  {
    const DecoderGolden golden = read_decoder_golden(fs::path(TWOFOUR_GOLDEN_DIR) / "decoder", "llama");
    write_decoder_checkpoint(golden, scratch / "model");
    write_safetensors(scratch / "tokens.safetensors",
                      {{"tokens", DType::kI32, {1, 4}, {3, 0, 0, 0, 5, 0, 0, 0, 9, 0, 0, 0, 4, 0, 0, 0}}});
  }
  hold("eval", {"eval", in("model"), "--tokens", in("tokens.safetensors")});
  hold("eval", {"eval", in("model"), "--tokens", in("tokens.safetensors"), "--against", in("model")});
  hold("eval --dry-run", {"eval", in("model"), "--tokens", in("tokens.safetensors"), "--dry-run"});
  { std::ofstream(scratch / "model" / "tokenizer.json") << letter_tokenizer(); }
  hold("eval", {"eval", in("model"), "--tokens", in("tokens.safetensors")});
  hold("generate",
       {"generate", in("model"), "--prompt", "AB", "--max-tokens", "2", "--against", in("model")});
  Words collect{"stats", "collect", in("model"), "--tokens", in("tokens.safetensors"), "-o", in("collected")};
  hold("stats inspect", collect);
  collect.insert(collect.end(), {"--dry-run", "--force"});
  hold("stats collect --dry-run", collect);
  collect.push_back("--fisher");
  hold("stats collect --dry-run", collect);
  Words compress{"compress", in("model"), in("compressed"), "--tokens", in("tokens.safetensors"),
                 "--to",     "nvfp4"};
  Words dry = compress, again = compress;
  dry.push_back("--dry-run");
  hold("convert --dry-run", dry);
  hold("convert --dry-run", {"compress", in("model"), in("sized"), "--tokens", in("tokens.safetensors"),
                             "--bits", "7", "--menu", "nvfp4,fp8,bf16", "--dry-run"});
  hold("convert", compress);
  again.push_back("--resume");
  hold("convert", again);
  hold("validate", {"validate", in("compressed"), "--source", in("model")});
  const DecoderFiles recovered("llama");
  recovered.write_calibration("tokens.safetensors");
  const std::string model = recovered.path("model"), out = recovered.path("out");
  hold("convert", {"compress", model, out, "--tokens", recovered.path("tokens.safetensors"), "--to", "nvfp4",
                   "--pattern", "2:4", "--recover", "4"});
  hold("validate", {"validate", out, "--source", model});
  hold("completion", {"completion", "bash"});
  hold("man", {"man", scratch.path.string()});
  hold("help", {"help", "convert"});
  const std::string problems = fmt::format("{}", fmt::join(checker.problems, "\n"));
  CHECK_MESSAGE(checker.problems.empty(), problems);

  // Nothing is described that no document has: these need another device or source.
  std::set<std::string> elsewhere = {"module.cast",
                                     "kept.first",
                                     "device layer",
                                     "worst number",
                                     "validate.device_layers",
                                     "validate.device_layer_coverage",
                                     "layer that was not run"};
  for (const auto& [heading, shape] : checker.shapes) {
    for (const auto& [name, field] : shape) {
      const std::string at = heading + "." + name;
      if (!elsewhere.contains(at) && !elsewhere.contains(heading))
        CHECK_MESSAGE(checker.met.contains(at), at);
    }
  }
}

TEST_CASE("tools/README.md is what the program prints") {
  const Outcome o = run_program({"help", "--markdown"});
  CHECK(o.code == 0);
  CHECK_MESSAGE(o.out == read_text(fs::path(TWOFOUR_SOURCE_DIR) / "tools/README.md"),
                "write it anew: twofour help --markdown >tools/README.md");
  for (const char* word :
       {"## convert\n", "- `-j, --jobs N`: ", "default: 5GB", "Exit codes: 0 done, 1 findings"})
    CHECK_MESSAGE(o.out.find(word) != std::string::npos, word);
}

}  // namespace cli_json_test
