// The proof of what graft and drop wrote finds each way in which a result can be wrong, whatever twofour.json
// says.
#include <doctest/doctest.h>

#include <functional>

#include "lib/prove/origins/prove_edit.h"
#include "tests/support/edits.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace prove_edit_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kConfig =
    R"({"num_hidden_layers": 2, "hidden_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "mtp_num_hidden_layers": 0,
        "layer_types": ["a", "b"], "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4",
        "group_size": 16, "ignore": ["lm_head", "*.self_attn.[qkv]_proj", "*.mlp.gate"]}})";

/// All tensors of a checkpoint, to be changed and written again.
Tensors tensors_at(const fs::path& path) {
  Tensors all;
  for (auto& [name, t] : read_tensors(path)) all.push_back({name, t.dtype, t.shape, t.bytes});
  return all;
}

TensorData& named(Tensors& all, const std::string& name) {
  return *std::find_if(all.begin(), all.end(), [&](const TensorData& t) { return t.name == name; });
}

struct Proven {
  Scratch scratch;
  Edit edit;

  explicit Proven(const Edit& change) : edit(change) {
    write_checkpoint(scratch / "base", {language_model(2, 4, 1, "modelopt")}, kConfig);
    Tensors donor = language_model(2, 4, 2, "modelopt");
    add_bf16(donor, "mtp.fc.weight", {32, 64}, 5);
    add_bf16(donor, "mtp.layers.0.mlp.up_proj.weight", {16, 32}, 6);
    std::string config = kConfig;
    config.replace(config.find("mtp_num_hidden_layers\": 0"), 25, "mtp_num_hidden_layers\": 1");
    write_checkpoint(scratch / "donor", {donor}, config);
    write_edited(scratch / "base", scratch / "donor", edit, scratch / "out");
  }
  /// What the proof alone finds of the result after a change of its tensors and config.
  std::string after(const std::function<void(Tensors&)>& change,
                    const std::function<void(Json&)>& words = {}) {
    Tensors tensors = tensors_at(scratch / "out");
    if (change) change(tensors);
    Json config = json_at(scratch / "out/config.json");
    if (words) words(config);
    fs::remove_all(scratch / "bad");
    write_checkpoint(scratch / "bad", {tensors, {}}, format_json(config));
    const Checkpoint bad = Checkpoint::open(scratch / "bad"), base = Checkpoint::open(scratch / "base"),
                     donor = Checkpoint::open(scratch / "donor");
    Progress progress;
    return text_of(prove_edit(bad, edit, base, edit.kind == Edit::Kind::kGraft ? &donor : nullptr, progress)
                       .differences);
  }
};

}  // namespace

TEST_CASE("the proof of a graft finds other bytes, lost and foreign tensors, and wrong words") {
  Proven p(graft_of({"mtp", "model.layers.1.*"}));
  CHECK(p.after({}) == "");
  CHECK(contains(p.after([](Tensors& t) { named(t, "mtp.fc.weight").bytes[3] ^= 1; }), "1 bytes differ"));
  CHECK(contains(p.after([](Tensors& t) { named(t, "model.norm.weight").bytes.back() ^= 0x80; }),
                 "1 bytes differ"));
  CHECK(contains(
      p.after([](Tensors& t) { std::erase_if(t, [](auto& x) { return x.name == "mtp.fc.weight"; }); }),
      "expected 1 times in the artifact, found 0 times"));
  CHECK(contains(p.after([](Tensors& t) {
    add_bf16(t, "mtp.more.weight", {2, 2});
  }),
                 "expected no such tensor"));
  CHECK(contains(p.after([&](Tensors& t) {
    const Tensors base = tensors_at(p.scratch / "base");
    for (const TensorData& x : base) {
      if (x.name == "model.layers.1.self_attn.q_proj.weight") named(t, x.name).bytes = x.bytes;
    }
  }),
                 "bytes differ from those of the source's"));
  CHECK(contains(p.after({}, [](Json& c) { c["mtp_num_hidden_layers"] = 0; }),
                 "mtp_num_hidden_layers: expected 1"));
  CHECK(contains(p.after({}, [](Json& c) { c["hidden_size"] = 64; }),
                 "hidden_size: expected the base's value"));
  CHECK(contains(p.after({}, [](Json& c) { c["more"] = 1; }), "more: expected the base's value"));
  CHECK(contains(
      p.after({},
              [](Json& c) {
                c["quantization_config"]["ignore"] = Json::array({"lm_head", "*.mlp.gate", "mtp.fc"});
              }),
      "quantization"));
  CHECK(contains(p.after({}, [](Json& c) { c["quantization_config"]["ignore"].push_back("*.o_proj"); }),
                 "o_proj"));
}

TEST_CASE("the proof of a graft finds what changes its weights in the donor or in the base alone") {
  const Edit edit = graft_of({"*.down_proj"});
  const std::string down = "model.layers.1.mlp.experts.2.down_proj";
  const auto found = [&](const char* source, const std::function<void(Tensors&)>& change,
                         const std::function<void(Json&)>& words = {}) {
    Proven p(edit);
    Tensors tensors = tensors_at(p.scratch / source);
    if (change) change(tensors);
    Json config = json_at(p.scratch / source / "config.json");
    if (words) words(config["quantization_config"]);
    fs::remove_all(p.scratch / source);
    write_checkpoint(p.scratch / source, {tensors}, format_json(config));
    return p.after([&](Tensors& t) {
      if (change && source == std::string("base")) change(t);
    });
  };
  CHECK(found("donor", {}) == "");
  const std::vector<std::string> names{
      down + ".input_quantizer._pre_quant_scale", down + ".more.scales", "model.layers.1.mlp.rotation",
      "model.layers.1.mlp.experts.smooth_scale",  "online_hadamard",     down + ".lora_A.default.weight"};
  for (const std::string& name : names) {
    CAPTURE(name);
    const auto add = [&](Tensors& t) { add_bf16(t, name, {4, 4}); };
    CHECK(contains(found("donor", add), "found it in the donor alone"));
    CHECK(contains(found("base", add), "found one of the base"));
  }
  for (const char* name : {"model.layers.1.self_attn.q_proj.pre_quant_scale", "model.layers.7.mlp.rotation"})
    CHECK(found("donor", [&](Tensors& t) { add_bf16(t, name, {4}); }).find("donor alone") ==
          std::string::npos);
  CHECK(contains(found("donor", {}, [](Json& q) { q["pre_quant_scale"] = true; }), "as the donor says"));
  CHECK(contains(found("donor", {}, [](Json& q) { q["quant_algo"] = "NVFP4_AWQ"; }), "as the donor says"));
  CHECK(contains(
      found("donor", {},
            [](Json& q) { q["transform_config"] = parse_json("t", R"({"config_groups": {"R": {}}})"); }),
      "as the donor says"));
  CHECK(found("donor", {}, [](Json& q) { q["transform_config"] = Json::object(); }).find("donor says") ==
        std::string::npos);
}

TEST_CASE("the proof of a graft finds modules that are made of parts of both sources") {
  const std::string o = "model.layers.1.self_attn.o_proj.";
  const auto found = [&](const std::vector<std::string>& take, const char* scaled) {
    Proven p(graft_of({"mtp"}));
    for (const char* source : {"base", "donor"}) {
      if (std::string(scaled).find(source) == std::string::npos) continue;
      Tensors tensors = tensors_at(p.scratch / source);
      tensors.push_back(
          {o + "input_scale", DType::kF32, {}, {0, 0, 0x80, static_cast<uint8_t>(0x3F + source[0] - 'b')}});
      write_checkpoint(p.scratch / source, {tensors}, read_text(p.scratch / source / "config.json"));
    }
    p.edit = graft_of(take);
    const Tensors donor = tensors_at(p.scratch / "donor");
    fs::remove_all(p.scratch / "out");
    fs::copy(p.scratch / "base", p.scratch / "out");
    return p.after([&](Tensors& t) {
      for (const TensorData& x : donor) {
        const bool taken = std::any_of(take.begin(), take.end(), [&](auto& name) { return name == x.name; });
        if (!taken) continue;
        std::erase_if(t, [&](const TensorData& y) { return y.name == x.name; });
        t.push_back(x);
      }
    });
  };
  CHECK(found({o + "weight_scale_2"}, "none").find("mixed-module") != std::string::npos);
  CHECK(
      contains(found({o + "weight_scale_2"}, "none"), "expected it to stay with its codes, found it alone"));
  CHECK(contains(found({o + "weight_scale"}, "none"), "expected it from the source of its module's codes"));
  CHECK(contains(found({o + "weight"}, "none"), "expected it with its codes, found those alone"));
  CHECK(found({o + "input_scale"}, "base and donor") == "");
  CHECK(contains(found({o + "input_scale"}, "donor"), "mixed-module"));
}

TEST_CASE("the proof of dropped experts finds wrong experts, rows and counts") {
  const std::string a = "model.layers.0.mlp.experts", b = "model.layers.1.mlp.experts";
  Proven p({.kind = Edit::Kind::kDropExperts, .experts = {{a, {0, 2, 3}}, {b, {0, 1, 3}}}});
  CHECK(p.after({}) == "");
  CHECK(contains(p.after([&](Tensors& t) {
    std::swap(named(t, a + ".1.up_proj.weight").bytes, named(t, a + ".2.up_proj.weight").bytes);
  }),
                 a + ".1.up_proj.weight"));
  CHECK(contains(p.after([](Tensors& t) {
    TensorData& gate = named(t, "model.layers.0.mlp.gate.weight");
    std::rotate(gate.bytes.begin(), gate.bytes.begin() + 64, gate.bytes.end());
  }),
                 "model.layers.0.mlp.gate.weight"));
  CHECK(contains(p.after([](Tensors& t) {
    add_bf16(t, "model.layers.0.mlp.experts.3.up_proj.weight", {16, 32});
  }),
                 "expected no such tensor"));
  CHECK(contains(p.after([](Tensors& t) {
    TensorData& gate = named(t, "model.layers.1.mlp.gate.weight");
    gate.shape[0] = 4;
    gate.bytes.resize(4 * 64);
  }),
                 "expected BF16 [3, 32], found BF16 [4, 32]"));
  CHECK(contains(p.after({}, [](Json& c) { c["num_experts"] = 4; }), "num_experts: expected 3"));
  CHECK(contains(p.after({}, [](Json& c) { c["num_experts_per_tok"] = 1; }), "num_experts_per_tok"));
}

TEST_CASE("the proof of dropped layers finds leftovers and wrong counts") {
  Proven p(drop_of({"model.layers.1.*"}));
  CHECK(p.after({}) == "");
  CHECK(contains(p.after([](Tensors& t) {
    add_bf16(t, "model.layers.1.mlp.gate.weight", {4, 32});
  }),
                 "expected no such tensor"));
  CHECK(contains(p.after({}, [](Json& c) { c["num_hidden_layers"] = 2; }), "num_hidden_layers"));
  CHECK(contains(p.after({}, [](Json& c) { c["layer_types"] = Json::array({"b"}); }) +
                     p.after({}, [](Json& c) { c["layer_types"] = Json::array({"c"}); }),
                 "layer_types"));
}

TEST_CASE("validate wants the donor of a graft, and of nothing else") {
  Proven p(graft_of({"mtp"}));
  CHECK(contains(message_of([&] { differences_of_edit(p.scratch / "out", p.scratch / "base"); }),
                 "expected --donor PATH"));
  Proven d(drop_of({"lm_head"}));
  CHECK(contains(
      message_of([&] { differences_of_edit(d.scratch / "out", d.scratch / "base", d.scratch / "donor"); }),
      "expected no --donor"));
}

TEST_CASE("validate with the sources finds a changed byte, and with others that they are not the ones") {
  Proven p(graft_of({"mtp"}));
  CHECK(differences_of_edit(p.scratch / "out", p.scratch / "base", p.scratch / "donor") == "");
  CHECK(contains(differences_of_edit(p.scratch / "out", p.scratch / "donor", p.scratch / "donor"),
                 "bytes differ"));
}

}  // namespace prove_edit_test
