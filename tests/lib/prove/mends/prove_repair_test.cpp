// The proof of what repair wrote, and the ways in which a result or its record can be wrong.
#include "lib/prove/mends/prove_repair.h"

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
#include "lib/recipe/artifact/manifest.h"
#include "lib/repair/open_repaired.h"
#include "tests/support/faults/planted.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace prove_repair_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

float number_of(Save& s, const std::string& name) {
  float value = 0;
  std::memcpy(&value, s.at(name).bytes.data(), sizeof(value));
  return value;
}
void set_number(Save& s, const std::string& name, float value) {
  std::memcpy(s.at(name).bytes.data(), &value, sizeof(value));
}

/// A fault that a repair mends. Faults of one name exclude each other.
struct Plant {
  const char* name;
  std::function<void(Save&)> spoil;
  std::function<void(const fs::path&)> spoil_files = {};
  bool changes = false;  ///< the mend restores a usable number, not the original one
};

const std::string kMlp = "model.layers.1.mlp.";

/// Faults of the base kLlama.
std::vector<Plant> plants() {
  return {
      {"input missing", [](Save& s) { s.erase(kMlp + "up_proj.input_scale"); }, {}, true},
      {"input zero", [](Save& s) { set_number(s, kMlp + "down_proj.input_scale", 0); }, {}, true},
      {"input unequal",
       [](Save& s) {
         const std::string gate = "model.layers.2.mlp.gate_proj.input_scale";
         set_number(s, gate, number_of(s, gate) / 2);
       },
       {},
       true},
      {"reciprocal",
       [](Save& s) {
         const std::string scale = kMlp + "down_proj.weight_scale_2";
         set_number(s, scale, 1 / number_of(s, scale));
       }},
      {"ignore", [](Save& s) { s.edit_ignored([](Json& list) { list = Json::array(); }); }},
      {"size",
       [](Save& s) {
         s.edit("config.json",
                [](Json& c) { c["intermediate_size"] = whole_number<int64_t>(c["intermediate_size"]) * 2; });
       }},
      {"generation",
       [](Save& s) { s.files["generation_config.json"] = R"({"top_p": 7, "temperature": 0.5})"; },
       {},
       true},
      {"prefix",
       [](Save& s) {
         for (auto& [file, tensors] : s.shards) {
           for (TensorData& t : tensors) t.name = "_orig_mod." + t.name;
         }
       }},
      {"norm", [](Save& s) { s.erase("model.norm.weight"); }},
      {"block scales", [](Save& s) { s.erase("model.layers.0.mlp.up_proj.weight_scale"); }},
      {"noise",
       [](Save& s) {
         for (uint8_t& byte : s.at("model.layers.2.mlp.down_proj.weight").bytes)
           byte = static_cast<uint8_t>(byte * 0x9D + 0x35);
       }},
      {"total",
       {},
       [](const fs::path& d) {
         Json index = parse_json("index", read_text(d / kIndexName));
         index["metadata"]["total_size"] = 7;
         std::ofstream(d / kIndexName) << format_json(index);
       }},
      {"copy",
       {},
       [](const fs::path& d) {
         std::vector<fs::path> all;
         for (const auto& entry : fs::directory_iterator(d)) {
           if (entry.path().extension() == ".safetensors") all.push_back(entry.path());
         }
         fs::copy_file(*std::min_element(all.begin(), all.end()), d / "old.safetensors");
       }},
  };
}

struct Broken {
  Scratch scratch;
  RepairSettings settings;
  bool with_donor = false;
  Repaired repaired;

  Broken(Base base, const std::vector<Plant>& all, RepairSettings asked = {}, bool donor = true)
      : settings(std::move(asked)), with_donor(donor), repaired(plant(base, all)) {}

  Repaired plant(Base base, const std::vector<Plant>& all) {
    Save save = base_checkpoint(base);
    write_planted(save, scratch / "original");
    for (const Plant& p : all) {
      if (p.spoil) p.spoil(save);
    }
    write_planted(save, scratch / "broken");
    for (const Plant& p : all) {
      if (p.spoil_files) p.spoil_files(scratch / "broken");
    }
    Repaired r = open_repaired(scratch / "broken", with_donor ? scratch / "original" : fs::path(), settings);
    const Recipe recipe(Edit{.kind = Edit::Kind::kRepair, .repair = settings}, 100'000);
    Progress progress;
    if (!r.mends.empty())
      convert(r.checkpoint, make_plan(r.checkpoint, recipe), scratch / "out", {.jobs = 2}, progress);
    return r;
  }

  static std::string text_of(const Findings& findings) {
    std::string text;
    for (const Finding& f : findings) text += fmt::format("{}: {}: {}\n", f.id, f.where, f.message);
    return text;
  }
  /// What validate says.
  std::string validated() {
    Progress progress;
    ValidateOptions options{.donor = with_donor ? scratch / "original" : fs::path()};
    return text_of(validate(scratch / "out", scratch / "broken", options, progress).differences);
  }
  /// What the proof alone says of a result and a record.
  std::string proven(const fs::path& out, const RepairNote& note, const fs::path& donor_path) {
    const Checkpoint artifact = Checkpoint::open(out);
    LooseFiles loose;
    const Checkpoint source = Checkpoint::open_loosely(scratch / "broken", Io::kCached, loose);
    std::optional<Checkpoint> donor;
    if (takes_from_donor(note)) donor.emplace(Checkpoint::open(donor_path));
    Progress progress;
    return text_of(prove_repair(artifact, settings, note, source, loose, donor ? &*donor : nullptr, progress)
                       .differences);
  }
  RepairNote note() const { return read_repair_note(scratch / "out" / kManifestName, 1000); }
  std::string with_record(const std::function<void(RepairNote&)>& change) {
    RepairNote changed = note();
    change(changed);
    return proven(scratch / "out", changed, scratch / "original");
  }
  std::string with_files(const std::function<void(const fs::path&)>& change) {
    fs::remove_all(scratch / "bad");
    fs::copy(scratch / "out", scratch / "bad", fs::copy_options::recursive);
    change(scratch / "bad");
    return proven(scratch / "bad", note(), scratch / "original");
  }
  /// With one byte of a tensor changed.
  std::string with_byte(const std::string& tensor, uint64_t at) {
    return with_files([&](const fs::path& d) {
      uint64_t place = 0;
      fs::path file;
      {
        const Checkpoint c = Checkpoint::open(d);
        const size_t i = *c.find(tensor);
        place = c.shard_of(i).data_begin + c.tensors()[i].begin + at;
        file = d / c.shard_of(i).name;
      }
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(static_cast<std::streamoff>(place));
      const auto byte = static_cast<char>(stream.get() ^ 1);
      stream.seekp(static_cast<std::streamoff>(place));
      stream.put(byte);
    });
  }
  std::string with_json(const char* file, const std::function<void(Json&)>& change) {
    return with_files([&](const fs::path& d) {
      Json json = parse_json(file, read_text(d / file));
      change(json);
      std::ofstream(d / file) << format_json(json);
    });
  }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

MendNote& mend_of(RepairNote& note, const std::string& name) {
  return *std::find_if(note.mends.begin(), note.mends.end(), [&](auto& m) { return m.mend == name; });
}

}  // namespace

TEST_CASE("what each mend made is proven") {
  for (const Plant& p : plants()) {
    CAPTURE(std::string(p.name));
    Broken b(Base::kLlama, {p});
    REQUIRE(!b.repaired.mends.empty());
    CHECK(b.validated() == "");
  }
}

namespace {

std::vector<std::string> names_like(const Save& s, const std::string& end) {
  std::vector<std::string> names;
  for (const auto& [file, tensors] : s.shards) {
    for (const TensorData& t : tensors) {
      if (t.name.ends_with(end)) names.push_back(t.name);
    }
  }
  return names;
}

struct OtherCase {
  Base base;
  Plant plant;
  RepairSettings settings = {};
  bool with_donor = true;
};

std::vector<OtherCase> other_cases() {
  const auto set_all = [](const std::string& end, float value) {
    return [=](Save& s) {
      for (const std::string& name : names_like(s, end)) set_number(s, name, value);
    };
  };
  const auto erase_all = [](const std::string& end) {
    return [=](Save& s) {
      for (const std::string& name : names_like(s, end)) s.erase(name);
    };
  };
  return {
      {Base::kMoe, {"expert missing", erase_all("experts.3.up_proj.input_scale")}},
      {Base::kMoe, {"down missing", erase_all("experts.3.down_proj.input_scale")}},
      {Base::kMoe,
       {"layer missing",
        [](Save& s) {
          for (const std::string& name : names_like(s, "input_scale")) {
            if (name.find("layers.1.mlp.experts") != name.npos) s.erase(name);
          }
        }}},
      {Base::kMixtral, {"infinite divisors", set_all("experts.0.w1.input_global_scale", INFINITY)}},
      {Base::kMixtral, {"missing divisors", erase_all("experts.0.w2.input_global_scale")}},
      {Base::kLlama, {"all zero", set_all(".input_scale", 0)}},
      {Base::kLlamaCt, {"none", erase_all("input_global_scale")}, {.input_scale = "constant=0.5"}},
      {Base::kLlamaCt, {"none", erase_all("input_global_scale")}},
      {Base::kLlama,
       {"given", erase_all("layers.1.mlp.down_proj.input_scale")},
       {.input_scale = "given", .amax = {{"model.layers.1.mlp.down_proj", 0x41200000}}}},
      {Base::kLlamaKv, {"a value's zero", set_all("layers.1.self_attn.v_proj.v_scale", 0)}},
      {Base::kLlamaKv,
       {"both lost",
        [](Save& s) {
          for (const char* side : {"k", "v"}) {
            for (const std::string& name : names_like(s, fmt::format(".{}_scale", side))) {
              if (name.find("layers.1.") != name.npos) s.erase(name);
            }
          }
        }}},
      {Base::kLlamaKvCt, {"a key's lost", erase_all("layers.1.self_attn.k_scale")}},
      {Base::kMoe, {"head", [](Save& s) { s.erase("lm_head.weight"); }}},
      {Base::kMoe,
       {"zero codes",
        [](Save& s) {
          auto& bytes = s.at("model.layers.1.mlp.experts.3.up_proj.weight").bytes;
          std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2), bytes.end(), uint8_t{0});
        }}},
      {Base::kMoe, {"config", [](Save& s) { s.files.erase("config.json"); }}},
      {Base::kDeepSeek,
       {"no quantization",
        [](Save& s) { s.edit("config.json", [](Json& c) { c.erase("quantization_config"); }); }}},
      {Base::kMoe, {"tokenizer", [](Save& s) { s.files.erase("tokenizer.json"); }}},
      {Base::kMoe, {"index", {}, [](const fs::path& d) { fs::remove(d / kIndexName); }}},
      {Base::kTiny, {"experts lost", [](Save& s) { s.erase_below("model.layers.1.mlp.experts.5."); }}},
      {Base::kQwenMixed,
       {"entry",
        [](Save& s) {
          s.edit("config.json", [](Json& c) {
            Json& layers = c["quantization_config"]["quantized_layers"];
            layers.erase(layers.items().begin()->first);
          });
        }}},
      {Base::kV4, {"norm", [](Save& s) { s.erase("norm.weight"); }}},
      {Base::kDeepSeek, {"norm", [](Save& s) { s.erase("model.norm.weight"); }}},
  };
}

}  // namespace

TEST_CASE("mends of other formats and settings are proven") {
  for (const OtherCase& one : other_cases()) {
    CAPTURE(std::string(base_name(one.base)));
    CAPTURE(std::string(one.plant.name));
    Broken b(one.base, {one.plant}, one.settings, one.with_donor);
    std::string left;
    for (const Finding& f : b.repaired.unmended) left += f.where + ": " + f.message + "\n";
    CHECK_MESSAGE(!b.repaired.mends.empty(), left);
    if (!b.repaired.mends.empty()) CHECK(b.validated() == "");
  }
}

TEST_CASE("a repair by one rule loses no bytes of files that it does not ask about") {
  const auto with_copy = [](bool changed) {
    return Plant{"copy", {}, [=](const fs::path& d) {
                   fs::path file;
                   for (const auto& entry : fs::directory_iterator(d)) {
                     if (entry.path().extension() == ".safetensors") file = entry.path();
                   }
                   fs::copy_file(file, d / "old.safetensors");
                   if (!changed) return;
                   std::fstream stream(d / "old.safetensors",
                                       std::ios::in | std::ios::out | std::ios::binary);
                   stream.seekp(-1, std::ios::end);
                   stream.put('\x55');
                 }};
  };
  const RepairSettings only{.only = {"suspicious-scale"}};
  Broken same(Base::kLlama, {plants()[3], with_copy(false)}, only, false);
  REQUIRE(same.repaired.mends.size() == 2);
  CHECK(same.repaired.mends[0].rules.empty());
  CHECK(same.validated() == "");
  Broken other(Base::kLlama, {plants()[3], with_copy(true)}, only, false);
  CHECK(fs::exists(other.scratch / "out/old.safetensors"));
  CHECK(other.validated() == "");
  CHECK(
      has(other.with_files([](const fs::path& d) { fs::remove(d / "old.safetensors"); }), "old.safetensors"));
  Broken nothing(Base::kLlama, {with_copy(false)}, only, false);
  CHECK(nothing.repaired.mends.empty());
}

TEST_CASE("tampered results and records of many mends are found by name") {
  std::vector<Plant> all;
  for (const Plant& p : plants()) {
    if (std::string(p.name) != "prefix") all.push_back(p);
  }
  Broken b(Base::kLlama, all);
  REQUIRE(b.validated() == "");
  const std::string scale = kMlp + "up_proj.input_scale", down = kMlp + "down_proj.input_scale",
                    gate = "model.layers.2.mlp.gate_proj.input_scale",
                    turned = kMlp + "down_proj.weight_scale_2", norm = "model.norm.weight",
                    blocks = "model.layers.0.mlp.up_proj.weight_scale";
  // Bytes of what mends made, of what came from the donor, and of what must not change.
  for (const std::string& name : {scale, down, gate, turned, norm, blocks, kMlp + "up_proj.weight",
                                  std::string("model.embed_tokens.weight"), kMlp + "gate_proj.input_scale",
                                  std::string("lm_head.weight")}) {
    CAPTURE(name);
    CHECK(has(b.with_byte(name, 1), name));
  }
  // Configs, texts and files.
  CHECK(has(b.with_json("config.json", [](Json& c) { c["hidden_act"] = "relu"; }), "hidden_act"));
  CHECK(has(b.with_json("config.json", [](Json& c) { c["more"] = 1; }), "more"));
  CHECK(has(b.with_json("config.json", [](Json& c) { c["intermediate_size"] = 16; }), "intermediate_size"));
  CHECK(has(b.with_json("config.json", [](Json& c) { c.erase("vocab_size"); }), "vocab_size"));
  CHECK(has(b.with_json("config.json", [](Json& c) { c["quantization_config"]["group_size"] = 32; }) +
                b.with_json("hf_quant_config.json", [](Json& c) { c["more"] = 1; }),
            "quantization"));
  CHECK(has(b.with_json("generation_config.json", [](Json& c) { c["temperature"] = 0.7; }),
            "generation_config"));
  CHECK(has(b.with_json("generation_config.json", [](Json& c) { c["top_p"] = 0.9; }), "generation_config"));
  CHECK(has(b.with_json(kIndexName, [](Json& c) { c["metadata"]["total_size"] = 7; }), "total_size"));
  CHECK(has(b.with_files([](const fs::path& d) { std::ofstream(d / "more.json") << "{}"; }), "more.json"));
  CHECK(has(b.with_files([](const fs::path& d) { std::ofstream(d / "tokenizer.json") << "{}"; }),
            "tokenizer.json"));
  CHECK(has(b.with_files([](const fs::path& d) { fs::remove(d / "tokenizer.json"); }), "tokenizer.json"));
  // Records that lie, and mends left out.
  const RepairNote note = b.note();
  for (size_t i = 0; i < note.mends.size(); ++i) {
    CAPTURE(note.mends[i].mend);
    CHECK(b.with_record([&](RepairNote& n) { n.mends.erase(n.mends.begin() + static_cast<ptrdiff_t>(i)); }) !=
          "");
    CHECK(has(b.with_record([&](RepairNote& n) { n.mends.push_back(n.mends[i]); }), note.mends[i].mend));
  }
  CHECK(has(b.with_record([](RepairNote& n) { std::swap(n.mends[0], n.mends[1]); }), "fixed order"));
  for (const char* mend : {"input-scales", "reciprocals"}) {
    CHECK(has(b.with_record([&](RepairNote& n) { mend_of(n, mend).values.begin()->second = "3f800000"; }),
              "3f800000"));
    CHECK(has(b.with_record([&](RepairNote& n) { mend_of(n, mend).tensors.insert("lm_head.weight"); }),
              "lm_head.weight"));
  }
  CHECK(has(b.with_record([&](RepairNote& n) { mend_of(n, "input-scales").tensors.erase(scale); }), scale));
  CHECK(has(b.with_record([&](RepairNote& n) { mend_of(n, "donor-tensors").tensors.erase(norm); }), norm));
  CHECK(
      has(b.with_record([](RepairNote& n) { mend_of(n, "donor-tensors").tensors.insert("lm_head.weight"); }),
          "lm_head.weight"));
  CHECK(has(b.with_record([](RepairNote& n) { mend_of(n, "donor-tensors").tensors.insert("none.weight"); }),
            "none.weight"));
  CHECK(has(
      b.with_record([](RepairNote& n) { mend_of(n, "donor-bytes").tensors.insert(kMlp + "up_proj.weight"); }),
      kMlp + "up_proj"));
  CHECK(has(b.with_record([](RepairNote& n) { mend_of(n, "donor-bytes").dropped.clear(); }), "donor-bytes"));
  CHECK(has(b.with_record([](RepairNote& n) { mend_of(n, "donor-bytes").rules = {"zero-regions"}; }),
            "model.layers.2.mlp.down_proj"));
  CHECK(has(b.with_record([](RepairNote& n) {
    mend_of(n, "files").dropped.erase(mend_of(n, "files").dropped.begin());
  }),
            "old.safetensors"));
  CHECK(has(b.with_record([](RepairNote& n) {
    mend_of(n, "files").dropped.insert("model.safetensors: lm_head.weight");
  }),
            "lm_head.weight"));
  CHECK(has(b.with_record([](RepairNote& n) { mend_of(n, "files").files.insert("tokenizer.json"); }),
            "tokenizer.json"));
  CHECK(has(b.with_record([](RepairNote& n) { mend_of(n, "sizes").settings[0].before = "3"; }),
            "intermediate_size"));
  CHECK(has(b.with_record([](RepairNote& n) { mend_of(n, "sizes").settings[0].after = "3"; }),
            "intermediate_size"));
  CHECK(has(b.with_record([](RepairNote& n) { mend_of(n, "generation").settings[0].before = "0.5"; }),
            "top_p"));
  CHECK(has(b.with_record([](RepairNote& n) {
    mend_of(n, "generation").settings.push_back({"generation_config.json", "temperature", "0.5", "absent"});
  }),
            "temperature"));
  CHECK(has(b.with_record([](RepairNote& n) { mend_of(n, "quantization").settings[0].after = "{}"; }),
            "quantization"));
  CHECK(has(b.with_record([](RepairNote& n) { n.donor[0] = n.donor[0] == '0' ? '1' : '0'; }), "fingerprint"));
}

TEST_CASE("another donor, and none, are found") {
  Broken b(Base::kLlama, {plants()[8]});
  CHECK(b.validated() == "");
  Save other = load_save(b.scratch / "original");
  other.at("model.norm.weight").bytes[0] ^= 1;
  write_planted(other, b.scratch / "other");
  CHECK(has(b.proven(b.scratch / "out", b.note(), b.scratch / "other"), "model.norm.weight"));
  b.with_donor = false;
  CHECK(has(message_of([&] { b.validated(); }), "expected --donor PATH"));
}

TEST_CASE("a fold is proven with its loss") {
  const std::string up = kMlp + "up_proj.", gate = kMlp + "gate_proj.";
  Broken b(
      Base::kLlama,
      {{"fold",
        [&](Save& s) { set_number(s, up + "weight_scale_2", number_of(s, up + "weight_scale_2") * 1.7f); }}},
      {.folds = true}, false);
  REQUIRE(b.repaired.mends.size() == 1);
  CHECK(b.validated() == "");
  CHECK(has(b.with_byte(gate + "weight_scale", 0), gate + "weight_scale"));
  CHECK(has(b.with_byte(gate + "weight_scale_2", 2), gate + "weight_scale_2"));
  CHECK(has(b.with_byte(up + "weight_scale", 0), up + "weight_scale"));
  CHECK(has(b.with_record([](RepairNote& n) { n.mends[0].loss.begin()->second *= 1.001; }), "loss"));
  CHECK(has(b.with_record([](RepairNote& n) { n.mends[0].loss.clear(); }), "loss"));
  CHECK(has(b.with_record([](RepairNote& n) { n.mends[0].loss["lm_head"] = 0.1; }), "lm_head"));
}

TEST_CASE("drawn pairs and triples of faults are mended and proven, or refused by name") {
  std::mt19937 random(49);
  const std::vector<Plant> all = plants();
  int whole = 0;
  for (int draw = 0; draw < 50; ++draw) {
    std::vector<Plant> some = all;
    std::shuffle(some.begin(), some.end(), random);
    some.resize(2 + random() % 2);
    // The names that others look for have their prefix at the end.
    std::stable_partition(some.begin(), some.end(), [](auto& p) { return std::string(p.name) != "prefix"; });
    std::string names;
    for (const Plant& p : some) names += std::string(p.name) + ", ";
    CAPTURE(draw);
    CAPTURE(names);
    Broken b(Base::kLlama, some);
    std::string left;
    for (const Finding& f : b.repaired.unmended) left += f.where + ": " + f.message + "\n";
    CAPTURE(left);
    REQUIRE(!b.repaired.mends.empty());
    CHECK(b.validated() == "");
    Progress progress;
    std::string found;
    for (const LintFinding& f : lint(b.scratch / "out", {.jobs = 2}, progress).findings) {
      if (f.severity != Severity::kNote) found += fmt::format("{}: {}\n", lint_rules()[f.rule].id, f.where());
    }
    if (!left.empty()) {
      CHECK(found != "");
      continue;
    }
    CHECK(found == "");
    ++whole;
    const Save out = load_save(b.scratch / "out");
    Save now = out, original = load_save(b.scratch / "original");
    for (const auto& [file, tensors] : original.shards) {
      for (const TensorData& t : tensors) {
        if (!t.name.ends_with("input_scale")) CHECK_MESSAGE(now.at(t.name).bytes == t.bytes, t.name);
      }
    }
  }
  CHECK(whole >= 45);
}

}  // namespace prove_repair_test
