#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>

#include "formats/e4m3.h"
#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/jobs/convert/convert.h"
#include "lib/lint/lint.h"
#include "lib/prove/validate/validate.h"
#include "lib/repair/open_repaired.h"
#include "tests/support/faults/planted.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace repair_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// A fault, and the mend that takes it back.
struct Case {
  const char* mend;
  Base base;
  const char* what;
  std::function<void(Save&)> spoil;
  std::function<void(const fs::path&)> spoil_files = {};
  RepairSettings settings = {};
  bool with_donor = false;
};

std::vector<float> floats(const TensorData& t) {
  std::vector<float> values(t.bytes.size() / sizeof(float));
  std::memcpy(values.data(), t.bytes.data(), t.bytes.size());
  return values;
}

void set_float(Save& s, const std::string& name, float value) {
  std::memcpy(s.at(name).bytes.data(), &value, sizeof(value));
}

/// The tensors whose names end so.
std::vector<std::string> names_like(const Save& s, const std::string& end) {
  std::vector<std::string> names;
  for (const auto& [file, tensors] : s.shards) {
    for (const TensorData& t : tensors) {
      if (t.name.ends_with(end)) names.push_back(t.name);
    }
  }
  return names;
}

LintReport lint_of(const fs::path& path) {
  Progress progress;
  return lint(path, {.jobs = 2}, progress);
}

std::string findings_text(const LintReport& report) {
  std::string text;
  for (const LintFinding& f : report.findings) {
    if (f.severity != Severity::kNote)
      text += fmt::format("{}: {}: {}\n", lint_rules()[f.rule].id, f.where(), f.message);
  }
  return text;
}

/// The differences that validate finds.
std::string proof_text(const fs::path& out, const fs::path& source, const fs::path& donor) {
  Progress progress;
  std::string text;
  for (const Finding& f : validate(out, source, {.donor = donor}, progress).differences)
    text += fmt::format("{}: {}: {}\n", f.id, f.where, f.message);
  return text;
}

/// A document whose lists of texts are sorted.
Json sorted_lists(const Json& json) {
  if (json.is_object()) {
    Json sorted = Json::object();
    for (const auto& [key, value] : json.items()) sorted[key] = sorted_lists(value);
    return sorted;
  } else if (json.is_array()) {
    std::vector<std::string> texts;
    for (const Json& one : json) texts.push_back(json_line(one));
    std::sort(texts.begin(), texts.end());
    return texts;
  }
  return json;
}

/// Repairs `source` into `out` and returns what was mended.
Repaired repair(const fs::path& source, const fs::path& out, const RepairSettings& settings,
                const fs::path& donor = {}, int jobs = 2) {
  Repaired repaired = open_repaired(source, donor, settings);
  const Recipe recipe(Edit{.kind = Edit::Kind::kRepair, .repair = settings}, 100'000);
  Progress progress;
  if (!repaired.mends.empty())
    convert(repaired.checkpoint, make_plan(repaired.checkpoint, recipe), out, {.jobs = jobs}, progress);
  return repaired;
}

/// The names of tensors that differ, or that one of the checkpoints lacks.
std::string unlike_tensors(const fs::path& a, const fs::path& b) {
  const Checkpoint one = Checkpoint::open(a), two = Checkpoint::open(b);
  std::string unlike;
  const auto bytes = [](const Checkpoint& c, size_t i) {
    std::vector<uint8_t> all(c.tensors()[i].bytes());
    c.read(i, 0, all);
    return all;
  };
  for (size_t i = 0; i < one.tensors().size(); ++i) {
    const auto at = two.find(one.tensors()[i].name);
    if (!at || two.tensors()[*at].shape != one.tensors()[i].shape || bytes(one, i) != bytes(two, *at))
      unlike += one.tensors()[i].name + "\n";
  }
  for (const TensorInfo& t : two.tensors()) {
    if (!one.find(t.name)) unlike += "+" + t.name + "\n";
  }
  return unlike;
}

std::vector<Case> cases() {
  const std::string expert = "model.layers.1.mlp.experts.3.up_proj.";
  return {
      {"input-scales", Base::kMoe, "an expert's is missing",
       [=](Save& s) { s.erase(expert + "input_scale"); }},
      {"input-scales", Base::kMoe, "an expert's is zero",
       [=](Save& s) { set_float(s, expert + "input_scale", 0); }},
      {"input-scales", Base::kMixtral, "a divisor is infinite",
       [](Save& s) {
         const auto names = names_like(s, "w1.input_global_scale");
         set_float(s, names.at(0), INFINITY);
       }},
      {"input-scales", Base::kLlama, "gate's and up's differ",
       [](Save& s) {
         const std::string gate = "model.layers.1.mlp.gate_proj.input_scale";
         set_float(s, gate, floats(s.at(gate))[0] / 2);
       }},
      {"reciprocals", Base::kLlama, "a global scale is the reciprocal",
       [](Save& s) {
         const std::string scale = "model.layers.1.mlp.down_proj.weight_scale_2";
         set_float(s, scale, 1 / floats(s.at(scale))[0]);
       }},
      {"kv-scales", Base::kLlamaKv, "a layer's v_scale is zero",
       [](Save& s) {
         const auto names = names_like(s, "v_scale");
         set_float(s, names.at(1), 0);
       }},
      {"quantization", Base::kLlama, "an unquantized linear is not listed",
       [](Save& s) { s.edit_ignored([](Json& list) { list = Json::array(); }); }},
      {"quantization", Base::kLlamaCt, "another group size",
       [](Save& s) {
         s.edit("config.json", [](Json& c) {
           c["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 32;
         });
       }},
      {"sizes", Base::kLlama, "intermediate_size",
       [](Save& s) {
         s.edit("config.json",
                [](Json& c) { c["intermediate_size"] = whole_number<int64_t>(c["intermediate_size"]) * 2; });
       }},
      {"generation", Base::kLlama, "top_p of 7",
       [](Save& s) { s.files["generation_config.json"] = R"({"top_p": 7, "temperature": 0.5})"; }},
      {"names", Base::kLlama, "torch.compile's wrapper",
       [](Save& s) {
         for (auto& [file, tensors] : s.shards) {
           for (TensorData& t : tensors) t.name = "_orig_mod." + t.name;
         }
       }},
      {"files",
       Base::kMoe,
       "total_size",
       {},
       [](const fs::path& d) {
         Json index = parse_json("index", read_text(d / kIndexName));
         index["metadata"]["total_size"] = 7;
         std::ofstream(d / kIndexName) << format_json(index);
       }},
      {"files", Base::kMoe, "no index", {}, [](const fs::path& d) { fs::remove(d / kIndexName); }},
      {"files",
       Base::kMoe,
       "a copy of a shard is left over",
       {},
       [](const fs::path& d) {
         for (const auto& entry : fs::directory_iterator(d)) {
           if (entry.path().extension() != ".safetensors") continue;
           fs::copy_file(entry.path(), d / "old.safetensors");
           return;
         }
       }},
      {"donor-tensors",
       Base::kMoe,
       "a norm is lost",
       [](Save& s) { s.erase("model.norm.weight"); },
       {},
       {},
       true},
      {"donor-tensors",
       Base::kMoe,
       "the head is lost",
       [](Save& s) { s.erase("lm_head.weight"); },
       {},
       {},
       true},
      {"donor-tensors",
       Base::kLlama,
       "block scales are lost",
       [](Save& s) { s.erase("model.layers.1.mlp.down_proj.weight_scale"); },
       {},
       {},
       true},
      {"donor-bytes",
       Base::kMoe,
       "half of an expert's codes are zero",
       [=](Save& s) {
         auto& bytes = s.at(expert + "weight").bytes;
         std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2), bytes.end(), uint8_t{0});
       },
       {},
       {},
       true},
      {"donor-bytes",
       Base::kLlama,
       "noise in the codes of a prefixed module",
       [](Save& s) {
         for (uint8_t& byte : s.at("model.layers.1.mlp.down_proj.weight").bytes)
           byte = static_cast<uint8_t>(byte * 0x9D + 0x35);
         for (auto& [file, tensors] : s.shards) {
           for (TensorData& t : tensors) t.name = "_orig_mod." + t.name;
         }
       },
       {},
       {},
       true},
      {"donor-bytes",
       Base::kMoe,
       "a copy of another expert, which lint names",
       [](Save& s) {
         for (const char* part : {"weight", "weight_scale", "weight_scale_2"})
           s.at(fmt::format("model.layers.1.mlp.experts.2.down_proj.{}", part)).bytes =
               s.at(fmt::format("model.layers.1.mlp.experts.5.down_proj.{}", part)).bytes;
       },
       {},
       {},
       true},
      {"donor-bytes",
       Base::kLlama,
       "a norm with NaN",
       [](Save& s) {
         auto& bytes = s.at("model.norm.weight").bytes;
         bytes[10] = 0xC0, bytes[11] = 0x7F;
       },
       {},
       {},
       true},
      {"quantization", Base::kDeepSeek, "no config of FP8 blocks",
       [](Save& s) { s.edit("config.json", [](Json& c) { c.erase("quantization_config"); }); }},
      {"quantization", Base::kGptOss, "no config of MXFP4 stacks",
       [](Save& s) { s.edit("config.json", [](Json& c) { c.erase("quantization_config"); }); }},
      {"donor-files",
       Base::kMoe,
       "config.json is lost",
       [](Save& s) { s.files.erase("config.json"); },
       {},
       {},
       true},
  };
}

}  // namespace

TEST_CASE("each mend takes its fault back") {
  for (const Case& one : cases()) {
    CAPTURE(std::string(one.mend));
    CAPTURE(std::string(one.what));
    const Scratch scratch;
    Save save = base_checkpoint(one.base);
    write_planted(save, scratch / "original");
    if (one.spoil) one.spoil(save);
    write_planted(save, scratch / "broken");
    if (one.spoil_files) one.spoil_files(scratch / "broken");
    const auto settings = one.settings;
    const Repaired repaired = repair(scratch / "broken", scratch / "out", settings,
                                     one.with_donor ? scratch / "original" : fs::path());
    std::string mends, left;
    for (const MendRecord& m : repaired.mends) mends += m.mend + " ";
    for (const Finding& f : repaired.unmended) left += f.where + ": " + f.message + "\n";
    CHECK_MESSAGE(mends.find(one.mend) != std::string::npos, mends, left,
                  findings_text(lint_of(scratch / "broken")));
    if (repaired.mends.empty()) continue;
    CHECK(findings_text(lint_of(scratch / "out")) == "");
    CHECK(proof_text(scratch / "out", scratch / "broken",
                     one.with_donor ? scratch / "original" : fs::path()) == "");
    const bool differs = std::string(one.what) == "gate's and up's differ" ||
                         std::string(one.what).starts_with("an expert's") ||
                         std::string(one.what).starts_with("a divisor") ||
                         std::string(one.what).find("v_scale") != std::string::npos;
    if (!differs) CHECK(unlike_tensors(scratch / "original", scratch / "out") == "");
    if (std::string(one.what) == "no config of FP8 blocks") {  // the original has no list of other linears
      Json config = parse_json("config", read_text(scratch / "out/config.json"));
      CHECK(config["quantization_config"].erase("modules_to_not_convert") == 1);
      CHECK(config == parse_json("config", read_text(scratch / "original/config.json")));
      continue;
    }
    for (const char* file : {"tokenizer.json", "config.json"}) {
      if (!fs::exists(scratch / "original" / file)) continue;
      CHECK(sorted_lists(parse_json(file, read_text(scratch / "original" / file))) ==
            sorted_lists(parse_json(file, read_text(scratch / "out" / file))));
    }
  }
}

TEST_CASE("rules that the table of mends names are those that lint's table marks") {
  std::set<std::string> of_mends, of_lint;
  for (const Mend& mend : mends()) of_mends.insert(mend.rules.begin(), mend.rules.end());
  for (const LintRule& rule : lint_rules()) {
    if (rule.mended != Mended::kNo) of_lint.insert(rule.id);
  }
  CHECK(of_mends == of_lint);
}

TEST_CASE("a fold is made only if asked for, with its loss stated") {
  const Scratch scratch;
  Save save = base_checkpoint(Base::kLlama);
  const std::string up = "model.layers.1.mlp.up_proj.", gate = "model.layers.1.mlp.gate_proj.";
  write_planted(save, scratch / "original");
  // The same weights with twice the global scale and half the block scales.
  set_float(save, up + "weight_scale_2", floats(save.at(up + "weight_scale_2"))[0] * 2);
  for (uint8_t& byte : save.at(up + "weight_scale").bytes) byte = e4m3_from_float(e4m3_to_float(byte) / 2);
  write_planted(save, scratch / "broken");
  CHECK(repair(scratch / "broken", scratch / "none", {}).mends.empty());
  const Repaired folded = repair(scratch / "broken", scratch / "out", {.folds = true});
  REQUIRE(folded.mends.size() == 1);
  CHECK(folded.mends[0].mend == "fold");
  REQUIRE(folded.mends[0].loss.size() == 1);
  CHECK(folded.mends[0].loss.begin()->first == "model.layers.1.mlp.gate_proj");
  CHECK(folded.mends[0].loss.begin()->second < 1e-3);
  CHECK(unlike_tensors(scratch / "broken", scratch / "out") ==
        gate + "weight_scale\n" + gate + "weight_scale_2\n");
  const Save out = load_save(scratch / "out"), before = load_save(scratch / "broken");
  Save reader = out, original = before;
  CHECK(reader.at(gate + "weight_scale_2").bytes == original.at(up + "weight_scale_2").bytes);
  const std::vector<uint8_t>&now = reader.at(gate + "weight_scale").bytes,
        &then = original.at(gate + "weight_scale").bytes;
  for (size_t i = 0; i < now.size(); ++i) CHECK(now[i] == e4m3_from_float(e4m3_to_float(then[i]) / 2));
}

TEST_CASE("without any input scale the config becomes one of weights alone") {
  const Scratch scratch;
  Save save = base_checkpoint(Base::kLlamaCt);
  for (const std::string& name : names_like(save, "input_global_scale")) save.erase(name);
  write_planted(save, scratch / "broken");
  const Repaired repaired = repair(scratch / "broken", scratch / "out", {});
  REQUIRE(repaired.mends.size() == 1);
  CHECK(repaired.mends[0].mend == "quantization");
  CHECK(findings_text(lint_of(scratch / "out")) == "");
  RepairSettings constant{.input_scale = "constant=0.5"};
  const Repaired given = repair(scratch / "broken", scratch / "constant", constant);
  REQUIRE(!given.mends.empty());
  CHECK(given.mends[0].mend == "input-scales");
  CHECK(given.mends[0].tensors.begin()->second == "40000000");  // a divisor
}

TEST_CASE("an input scale that is far from those of the same input is no neighbour, and stays") {
  const Scratch scratch;
  Save save = base_checkpoint(Base::kMoe);
  const std::string experts = "model.layers.1.mlp.experts.", odd = experts + "3.up_proj.input_scale";
  const float wrong = 4096 * floats(save.at(odd))[0];
  float largest = 0;
  for (const std::string& name : names_like(save, "_proj.input_scale"))
    largest = std::max(largest, floats(save.at(name))[0]);
  set_float(save, odd, wrong);
  for (const char* name : {"0.gate_proj.input_scale", "0.up_proj.input_scale"}) save.erase(experts + name);
  write_planted(save, scratch / "broken");
  const Repaired repaired = repair(scratch / "broken", scratch / "out", {});
  REQUIRE(repaired.mends.size() == 1);
  CHECK(repaired.mends[0].mend == "input-scales");
  REQUIRE(repaired.unmended.size() == 1);
  CHECK(repaired.unmended[0].message.find("too far apart") != std::string::npos);
  Save out = load_save(scratch / "out");
  CHECK(floats(out.at(odd))[0] == wrong);
  CHECK(unlike_tensors(scratch / "broken", scratch / "out") ==
        "+" + experts + "0.gate_proj.input_scale\n+" + experts + "0.up_proj.input_scale\n");
  for (const char* name : {"0.gate_proj.input_scale", "0.up_proj.input_scale"})
    CHECK(floats(out.at(experts + name))[0] <= largest);
  CHECK(proof_text(scratch / "out", scratch / "broken", {}) == "");
}

TEST_CASE("what cannot be told is refused by name") {
  const Scratch scratch;
  Save save = base_checkpoint(Base::kMoe);
  write_planted(save, scratch / "original");
  SUBCASE("other bytes under the same names") {
    auto& [file, tensors] = *save.shards.begin();
    Tensors copy = tensors;
    copy[0].bytes[0] ^= 1;
    save.shards["old.safetensors"] = copy;
    write_planted(save, scratch / "broken");
    const Repaired kept = open_repaired(scratch / "broken", {}, {});
    REQUIRE(!kept.unmended.empty());  // the index names one of both, the other stays as it is
    CHECK(kept.unmended[0].id == "leftover-file");
    CHECK(kept.checkpoint.kept_files().size() == 1);
    fs::remove(scratch / "broken" / kIndexName);
    CHECK(message_of([&] { open_repaired(scratch / "broken", {}, {}); }).find(copy[0].name) !=
          std::string::npos);
  }
  SUBCASE("a donor of another model") {
    save.erase("model.norm.weight");
    write_planted(save, scratch / "broken");
    write_planted(base_checkpoint(Base::kLlama), scratch / "donor");
    CHECK(message_of([&] { open_repaired(scratch / "broken", scratch / "donor", {}); }).find("model_type") !=
          std::string::npos);
  }
  SUBCASE("a donor that was trained further") {
    Save donor = save;
    save.erase("model.norm.weight");
    write_planted(save, scratch / "broken");
    std::mt19937 random(1);
    for (auto& [file, tensors] : donor.shards) {
      for (TensorData& t : tensors) {
        if (t.dtype != DType::kBF16) continue;
        for (size_t i = 0; i < t.bytes.size(); i += 2) t.bytes[i] = static_cast<uint8_t>(random());
      }
    }
    write_planted(donor, scratch / "donor");
    CHECK(message_of([&] {
            open_repaired(scratch / "broken", scratch / "donor", {});
          }).find("a model that was trained further is no donor") != std::string::npos);
    // A single tensor of the model that stayed makes it a donor.
    const std::string embedding = "model.embed_tokens.weight";
    donor.at(embedding).bytes = save.at(embedding).bytes;
    write_planted(donor, scratch / "frozen");
    CHECK(open_repaired(scratch / "broken", scratch / "frozen", {}).mends.size() == 1);
  }
  SUBCASE("a lost tensor without a donor") {
    save.erase("model.norm.weight");
    write_planted(save, scratch / "broken");
    const Repaired repaired = open_repaired(scratch / "broken", {}, {});
    CHECK(repaired.mends.empty());
    CHECK(!repaired.unmended.empty());
  }
  SUBCASE("damaged bytes that the donor has, too") {
    Save llama = base_checkpoint(Base::kLlama);
    auto& norm = llama.at("model.norm.weight").bytes;
    norm[10] = 0xC0, norm[11] = 0x7F;
    write_planted(llama, scratch / "broken");
    llama.at("model.norm.weight").bytes[12] ^= 1;
    write_planted(llama, scratch / "donor");
    const Repaired repaired = repair(scratch / "broken", scratch / "out", {}, scratch / "donor");
    CHECK(repaired.mends.empty());
    REQUIRE(repaired.unmended.size() == 1);
    CHECK(repaired.unmended[0].message.find("a fault of its own") != std::string::npos);
  }
  SUBCASE("a sound checkpoint") {
    const Repaired repaired = open_repaired(scratch / "original", {}, {});
    CHECK(repaired.mends.empty());
    CHECK(repaired.unmended.empty());
  }
}

TEST_CASE("the bytes do not depend on the number of jobs") {
  const Scratch scratch;
  Save save = base_checkpoint(Base::kMoe);
  for (const std::string& name : names_like(save, "up_proj.input_scale")) save.erase(name);
  write_planted(save, scratch / "broken");
  for (const int jobs : {1, 3}) repair(scratch / "broken", scratch / std::to_string(jobs), {}, {}, jobs);
  for (const auto& entry : fs::directory_iterator(scratch / "1")) {
    const fs::path name = entry.path().filename();
    CHECK(read_text(entry.path()) == read_text(scratch / "3" / name));
  }
}

}  // namespace repair_test
