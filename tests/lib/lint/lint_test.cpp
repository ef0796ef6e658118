#include "lib/lint/lint.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/synth/synth.h"
#include "tests/support/faults/faults.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace lint_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

LintReport lint_quietly(const fs::path& path, LintOptions options = {}) {
  Progress progress;
  return lint(path, options, progress);
}

/// Ids of the rules that fired.
std::set<std::string> fired(const LintReport& report) {
  std::set<std::string> ids;
  for (const LintFinding& f : report.findings) ids.insert(lint_rules()[f.rule].id);
  return ids;
}

std::string sarif_text(const LintReport& report, const fs::path& path) {
  std::string text;
  write_sarif(report, path, [&](std::string_view part) { text += part; });
  return text;
}

std::string text_of(const LintReport& report) {
  std::string text;
  for (const LintFinding& f : report.findings)
    text += std::string(lint_rules()[f.rule].id) + ": " + f.where() + ": " + f.message + "\n";
  return text;
}

}  // namespace

TEST_CASE("every fault is found by its rule, and by no other") {
  const Save sound = sound_checkpoint();
  std::vector<Fault> faults = file_faults();
  for (Fault& fault : content_faults()) faults.push_back(std::move(fault));
  for (Fault& fault : model_faults()) faults.push_back(std::move(fault));
  for (const Fault& fault : faults) {
    for (const unsigned seed : {1u, 2u}) {
      CAPTURE(std::string(fault.rule));
      CAPTURE(std::string(fault.what));
      CAPTURE(seed);
      const Scratch scratch;
      std::mt19937 random(seed);
      Save save = sound;
      if (fault.spoil) fault.spoil(save, random);
      write_save(save, scratch / "checkpoint");
      if (fault.spoil_files) fault.spoil_files(scratch / "checkpoint", random);
      const LintReport report = lint_quietly(scratch / "checkpoint");
      CAPTURE(text_of(report));
      CHECK(fired(report) == std::set<std::string>{fault.rule});
      CHECK(report.failed() == (lint_rules()[*find_lint_rule(fault.rule)].severity != Severity::kNote));
    }
  }
}

TEST_CASE("nothing is found in sound checkpoints") {
  const Scratch scratch;
  write_save(sound_checkpoint(), scratch / "sound");
  CHECK(text_of(lint_quietly(scratch / "sound")) == "");
  const LintReport report = lint_quietly(scratch / "sound", {.jobs = 3});
  CHECK(report.bytes > 100'000);
  CHECK(lint_quietly(scratch / "sound", {.headers_only = true}).bytes == 0);
  // One file alone lacks what the others hold, and no rule asks for it.
  for (const auto& entry : fs::directory_iterator(scratch / "sound")) {
    if (entry.path().extension() == ".safetensors") CHECK(text_of(lint_quietly(entry.path())) == "");
  }
  for (const char* dialect : {"modelopt", "compressed-tensors"}) {
    SynthOptions options;
    options.dialect = dialect;
    options.vocab = 64;
    options.shape = "qwen3-next";
    options.layers = 1;
    options.experts = 10;
    Progress progress;
    synth(scratch / dialect, options, progress);
    CHECK(text_of(lint_quietly(scratch / dialect)) == "");
  }
  for (const char* name : {"compressed-tensors-qwen3", "modelopt-qwen3"})
    CHECK(text_of(lint_quietly(fs::path(TWOFOUR_GOLDEN_DIR) / name / "src")) == "");
}

TEST_CASE("a global scale of [1] among [] is no difference between experts") {
  const Scratch scratch;
  Save save = sound_checkpoint();
  save.at("model.layers.0.mlp.experts.3.up_proj.weight_scale_2").shape = {1};
  save.at("model.layers.0.mlp.experts.5.down_proj.input_scale").shape = {1};
  write_save(save, scratch / "checkpoint");
  CHECK(text_of(lint_quietly(scratch / "checkpoint")) == "");
}

TEST_CASE("a file that is no weights is one finding that names the cause") {
  const Scratch scratch;
  Save save = sound_checkpoint();
  write_save(save, scratch / "checkpoint");
  const auto shard = [&] {
    for (const auto& [file, tensors] : save.shards) {
      if (file != kExtraFile) return file;
    }
    return std::string();
  }();
  fs::remove(scratch / "checkpoint" / shard);
  write_text(scratch / "checkpoint" / shard, "<!DOCTYPE html><html><body>Not found</body></html>");
  const LintReport report = lint_quietly(scratch / "checkpoint");
  REQUIRE(report.findings.size() == 1);
  CHECK(report.findings[0].where() == shard);
  CHECK(report.findings[0].message.starts_with("expected a safetensors file, found an HTML page"));
  CHECK(contains(message_of([&] { Checkpoint::open(scratch / "checkpoint"); }),
                 shard + ": expected a safetensors file, found an HTML page"));
}

TEST_CASE("a group size of 32 is found in both dialects, but not where another group's is 16") {
  for (const char* name : {"compressed-tensors-qwen3", "modelopt-qwen3"}) {
    CAPTURE(name);
    const Scratch scratch;
    const fs::path path = scratch / "checkpoint";
    fs::copy(fs::path(TWOFOUR_GOLDEN_DIR) / name / "src", path);
    Json config = parse_json("config.json", read_text(path / "config.json"));
    Json& groups = config["quantization_config"]["config_groups"];
    groups["group_1"] = groups["group_0"];
    groups["group_1"]["weights"]["group_size"] = 32;
    const auto found = [&] {
      fs::remove(path / "config.json");
      write_text(path / "config.json", format_json(config));
      return lint_quietly(path, {.headers_only = true});
    };
    CHECK(fired(found()).count("config-group-size") == 0);
    groups.erase("group_0");
    const LintReport report = found();
    CHECK(fired(report).count("config-group-size") == 1);
    CHECK(text_of(report).find("config-group-size: config.json: "
                               "quantization_config.config_groups.group_1.weights.group_size: expected 16") !=
          std::string::npos);
  }
}

TEST_CASE("negative scales of FP8 weights are found, -0 and those of other tensors are not") {
  const std::vector<uint8_t> weights(256, 0x31);
  std::vector<uint8_t> f32(16), bf16(8);  // four scales: 1, -0, 1, -1
  for (size_t i = 0; i < 4; ++i) {
    const uint8_t high = i == 1 ? 0x80 : i == 3 ? 0xBF : 0x3F, low = i == 1 ? 0 : 0x80;
    f32[4 * i + 2] = bf16[2 * i] = low;
    f32[4 * i + 3] = bf16[2 * i + 1] = high;
  }
  const Scratch scratch;
  write_checkpoint(scratch / "fp8", {{{"a.weight", DType::kF8E4M3, {16, 16}, weights},
                                      {"a.weight_scale_inv", DType::kF32, {2, 2}, f32},
                                      {"b.weight", DType::kF8E4M3, {4, 64}, weights},
                                      {"b.weight_scale", DType::kBF16, {4, 1}, bf16},
                                      {"c.weight_scale_inv", DType::kF32, {2, 2}, f32},
                                      {"m.experts.down_proj", DType::kF8E4M3, {1, 16, 16}, weights},
                                      {"m.experts.down_proj_scale_inv", DType::kF32, {1, 2, 2}, f32}}});
  std::string found;
  for (const LintFinding& f : lint_quietly(scratch / "fp8").findings) {
    if (f.rule == find_lint_rule("bad-block-scale")) found += f.name + ": " + f.message + "\n";
  }
  const std::string message = ": expected scales that are not negative, found 1, the first at element 3\n";
  CHECK(found == "a.weight_scale_inv" + message + "b.weight_scale" + message +
                     "m.experts.down_proj_scale_inv" + message);
}

TEST_CASE("unequal global scales are counted, with the largest ratio") {
  const LintReport report = lint_quietly(fs::path(TWOFOUR_GOLDEN_DIR) / "modelopt-mixtral-uneven" / "src");
  CHECK(fired(report) == std::set<std::string>{"unequal-global-scales"});
  CHECK(report.findings.size() == 2);
  CHECK(report.findings[0].name == "model.layers.0.block_sparse_moe.experts.0");
  CHECK(report.summaries.at(report.findings[0].rule) == "2 of 2 groups, the largest ratio 3.323");
}

TEST_CASE("what four-over-six, FP8 activations and a lossless MXFP4 cast write is sound") {
  // Largest block scales of 256 and 384 (with codes up to 4), and 448 / 6.
  for (const auto& [top, largest_code] : {std::pair<uint8_t, unsigned>{0x78, 7}, {0x7C, 6}, {0x69, 7}}) {
    Save save = sound_checkpoint();
    for (auto& [file, tensors] : save.shards) {
      for (TensorData& t : tensors) {
        if (t.dtype == DType::kF8E4M3) {
          for (uint8_t& b : t.bytes) b = std::min(b, top);
          t.bytes[0] = top;
        } else if (t.dtype == DType::kU8) {
          for (uint8_t& b : t.bytes) {
            if ((b & 7u) > largest_code) b = static_cast<uint8_t>((b & 0xF8u) | largest_code);
            if (((b >> 4) & 7u) > largest_code) b = static_cast<uint8_t>((b & 0x8Fu) | largest_code << 4);
          }
          t.bytes[0] = static_cast<uint8_t>(largest_code | largest_code << 4);
        }
      }
    }
    const Scratch scratch;
    write_save(save, scratch / "checkpoint");
    CHECK(text_of(lint_quietly(scratch / "checkpoint")) == "");
  }
}

TEST_CASE("severities can be changed, and notes alone are no failure") {
  const fs::path golden = fs::path(TWOFOUR_GOLDEN_DIR) / "modelopt-mixtral-uneven" / "src";
  CHECK(lint_quietly(golden).failed());
  CHECK(lint_quietly(golden, {.levels = {{"unequal-global-scales", Severity::kWarning}}}).failed());
  const LintReport noted = lint_quietly(golden, {.levels = {{"unequal-global-scales", Severity::kNote}}});
  CHECK(!noted.failed());
  CHECK(noted.count(Severity::kNote) == 2);
  CHECK(lint_quietly(golden, {.levels = {{"unequal-global-scales", std::nullopt}}}).findings.empty());
  CHECK_THROWS_WITH_AS(lint_quietly(golden, {.levels = {{"no-such", std::nullopt}}}),
                       "--rule: expected the id of a rule, found 'no-such'", Error);
}

TEST_CASE("patterns that only Python knows are notes, and what they leave out is not looked for") {
  const Save sound = sound_checkpoint();
  for (const char* pattern :
       {"re:(?<!x)lm_head", "re:(?i:LM_HEAD)", "re:(?P<n>lm_head)", "re:lm_head\\Z", "re:lm_head(?#c)",
        "re:(l)m_head\\1", "re:lm_hea[]d]", "re:lm_hea[[:a:]]", "re:lm_head?+", "re:lm_head{,1}",
        "re:lm_head{1", "re:lm_head{1,2,3}", "re:lm_head{0,100000}"}) {
    CAPTURE(std::string(pattern));
    const Scratch scratch;
    Save save = sound;
    save.edit_ignored([&](Json& list) { list = Json::array({pattern}); });
    write_save(save, scratch / "checkpoint");
    const LintReport report = lint_quietly(scratch / "checkpoint", {.headers_only = true});
    CAPTURE(text_of(report));
    CHECK(fired(report) == std::set<std::string>{"python-only-pattern"});
    CHECK(!report.failed());
  }
}

TEST_CASE("swaps show beside another checkpoint") {
  const Scratch scratch;
  const Save sound = sound_checkpoint();
  write_save(sound, scratch / "sound");
  CHECK(text_of(lint_quietly(scratch / "sound", {.against = scratch / "sound"})) == "");

  Save nibbles = sound, pair = sound;
  const std::string expert = "model.layers.1.mlp.experts.3.";
  for (uint8_t& b : nibbles.at(expert + "down_proj.weight").bytes) b = static_cast<uint8_t>(b << 4 | b >> 4);
  write_save(nibbles, scratch / "nibbles");
  for (const char* part : {".weight", ".weight_scale"})
    std::swap(pair.at(expert + "gate_proj" + part).bytes, pair.at(expert + "up_proj" + part).bytes);
  write_save(pair, scratch / "pair");

  LintReport report = lint_quietly(scratch / "nibbles", {.against = scratch / "sound"});
  CHECK(fired(report) == std::set<std::string>{"nibble-swap"});
  REQUIRE(report.findings.size() == 1);
  CHECK(report.findings[0].name == expert + "down_proj");
  report = lint_quietly(scratch / "pair", {.against = scratch / "sound"});
  CHECK(fired(report) == std::set<std::string>{"gate-up-swap"});
  REQUIRE(report.findings.size() == 1);
  CHECK(report.findings[0].name == expert + "gate_proj");

  write_checkpoint(scratch / "other", {{{"x.weight", DType::kBF16, {4}, std::vector<uint8_t>(8)}}});
  CHECK_THROWS_AS(lint_quietly(scratch / "sound", {.against = scratch / "other"}), Error);
}

TEST_CASE("whatever is broken in a checkpoint, lint goes on to the end") {
  const Scratch scratch;
  std::mt19937 random(11);
  const fs::path golden = fs::path(TWOFOUR_GOLDEN_DIR) / "modelopt-qwen3" / "src",
                 path = scratch / "checkpoint";
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(golden)) files.push_back(entry.path().filename().string());
  std::sort(files.begin(), files.end());
  size_t failed = 0;
  constexpr size_t kRounds = 300;
  for (size_t round = 0; round < kRounds; ++round) {
    fs::remove_all(path);
    fs::copy(golden, path);
    const std::string name = files[random() % files.size()];
    std::string text = read_text(path / name);
    // Weights' headers more often than weights; letters for letters, so that JSON often stays JSON.
    const size_t end = round % 2 == 0 ? text.size() : std::min<size_t>(text.size(), 6000);
    for (size_t i = 0; i < 1 + round % 3; ++i)
      text[random() % end] = static_cast<char>(round % 4 < 2 ? random() : '0' + random() % 75);
    if (round % 10 == 9) text.resize(random() % text.size());
    fs::remove(path / name);
    write_text(path / name, text);
    CAPTURE(round);
    CAPTURE(name);
    CHECK_NOTHROW(failed += lint_quietly(path).failed());
  }
  CHECK(failed > kRounds / 4);
}

TEST_CASE("configs of any shape are read without a stumble") {
  const Save sound = sound_checkpoint();
  const char* const values[] = {"null", "1",    "-1", "\"x\"", "[]", "{}", "[{}]", "{\"a\": [null]}",
                                "true", "1e400"};
  std::mt19937 random(12);
  std::vector<std::string> keys = {"quantization_config", "text_config",         "auto_map",
                                   "num_experts",         "tie_word_embeddings", "architectures",
                                   "num_hidden_layers",   "compression_config",  "num_nextn_predict_layers"};
  for (const char* key :
       {"ignore", "quant_algo", "quant_method", "config_groups", "quantized_layers", "sparsity_config",
        "group_0", "targets", "weights", "input_activations", "base", "quantization", "exclude_modules",
        "chat_template", "vocab_file", "num_bits", "dynamic"}) {
    keys.push_back(key);
  }
  const Scratch scratch;
  for (const std::string& key : keys) {
    for (const char* value : values) {
      Save save = sound;
      const std::function<void(Json&)> replace = [&](Json& json) {
        for (auto& [k, v] : json.items()) {
          if (k == key) {
            v = std::string_view(value) == "1e400" ? Json(1e30) : Json::parse(value);
          } else if (v.is_object()) {
            replace(v);
          }
        }
      };
      for (auto& [name, text] : save.files) {
        save.edit(name, replace);
        if (name == "config.json")
          save.edit(name, [&](Json& j) {
            if (!j.contains(key))
              j[key] = std::string_view(value) == "1e400" ? Json(1e30) : Json::parse(value);
          });
      }
      std::filesystem::remove_all(scratch / "checkpoint");
      write_save(save, scratch / "checkpoint");
      CAPTURE(key);
      CAPTURE(value);
      CHECK_NOTHROW(lint_quietly(scratch / "checkpoint", {.headers_only = true}));
    }
  }
}

TEST_CASE("what is no checkpoint is an error, not a finding") {
  const Scratch scratch;
  CHECK_THROWS_AS(lint_quietly(scratch / "nothing"), Error);
  CHECK_THROWS_AS(lint_quietly(scratch.path), Error);
  write_text(scratch / "notes.txt", "no weights at all");
  CHECK_THROWS_AS(lint_quietly(scratch / "notes.txt"), Error);
}

TEST_CASE("every rule says what to do, once") {
  std::set<std::string> ids;
  for (const LintRule& rule : lint_rules()) {
    CAPTURE(rule.id);
    CHECK(ids.insert(rule.id).second);
    for (const char* sentence : {rule.what, rule.why, rule.fix}) {
      CHECK(std::string(sentence).ends_with("."));
      CHECK(std::string(sentence).find(". ") == std::string::npos);
    }
    CHECK((*rule.reference == '\0' || std::string(rule.reference).starts_with("https://")));
  }
}

/// Changes the working directory while it exists.
struct WorkingDirectory {
  fs::path before = fs::current_path();
  explicit WorkingDirectory(const fs::path& path) { fs::current_path(path); }
  ~WorkingDirectory() { fs::current_path(before); }
};

TEST_CASE("SARIF places every finding at a file of the repository, or of the checkpoint") {
  const Scratch scratch;
  Save save = sound_checkpoint();
  save.erase("model.layers.0.mlp.experts.3.up_proj.weight_scale_2");
  save.files.erase("tokenizer.json");
  save.files.erase("tokenizer_config.json");
  write_save(save, scratch / "models" / "a checkpoint");
  const LintReport report = lint_quietly(scratch / "models" / "a checkpoint");
  const auto check = [&](const fs::path& path, const std::string& prefix, const LintReport& found) {
    const Json run = parse_json("sarif", sarif_text(found, path))["runs"][0];
    CHECK(run.contains("originalUriBaseIds") == prefix.empty());
    REQUIRE(run["results"].size() == found.findings.size());
    for (const Json& result : run["results"]) {
      const Json& place = result["locations"][0]["physicalLocation"]["artifactLocation"];
      CAPTURE(place.dump());
      const auto uri = place["uri"].get<std::string>();
      CHECK(uri.starts_with(prefix));
      CHECK(fs::is_regular_file(scratch / "models/a checkpoint" / uri.substr(prefix.size())));
      CHECK(place.contains("uriBaseId") == prefix.empty());
    }
  };
  REQUIRE(std::any_of(report.findings.begin(), report.findings.end(),
                      [](const LintFinding& f) { return f.file.empty(); }));
  {
    const WorkingDirectory repository(scratch / "");
    check("models/a checkpoint", "models/a%20checkpoint/", report);
    check("./models/a checkpoint/", "models/a%20checkpoint/", report);
    check(fs::current_path() / "models/a checkpoint", "models/a%20checkpoint/", report);
  }
  const WorkingDirectory elsewhere(fs::temp_directory_path());
  const Scratch other;
  fs::current_path(other / "");
  check(scratch / "models/a checkpoint", "", report);
  const fs::path weights = scratch / "models/a checkpoint" / save.shards.begin()->first;
  check(weights, "", lint_quietly(weights));
}

TEST_CASE("SARIF names the rule, the file and the tensor") {
  const Scratch elsewhere;
  const WorkingDirectory stay(elsewhere / "");
  const fs::path golden = fs::path(TWOFOUR_GOLDEN_DIR) / "modelopt-mixtral-uneven" / "src";
  LintReport report = lint_quietly(golden);
  report.findings[0].file = "a file.safetensors";
  const std::string text = sarif_text(report, golden);
  const Json json = parse_json("sarif", text);
  CHECK(format_json(json) == text);
  CHECK(json["version"] == "2.1.0");
  const Json& run = json["runs"][0];
  CHECK(run["tool"]["driver"]["rules"].size() == lint_rules().size());
  REQUIRE(run["results"].size() == 2);
  const Json& result = run["results"][0];
  CHECK(result["ruleId"] == "unequal-global-scales");
  CHECK(run["tool"]["driver"]["rules"][result["ruleIndex"].get<size_t>()]["id"] == result["ruleId"]);
  CHECK(result["level"] == "error");
  const Json& place = result["locations"][0]["physicalLocation"]["artifactLocation"];
  CHECK(place == Json({{"uri", "a%20file.safetensors"}, {"uriBaseId", "CHECKPOINT"}}));
  const auto base = run["originalUriBaseIds"]["CHECKPOINT"]["uri"].get<std::string>();
  CHECK(base.starts_with("file:///"));
  CHECK(base.ends_with("/modelopt-mixtral-uneven/src/"));
  CHECK(result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == report.findings[0].name);
  report.findings.clear();
  const std::string none = sarif_text(report, golden);
  const Json empty = parse_json("sarif", none);
  CHECK(format_json(empty) == none);
  CHECK(empty["runs"][0]["results"] == Json::array());
}

}  // namespace lint_test
