// A graft of parts of modules: what comes by name replaces what has the name, and nothing else is lost.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "tests/support/edits.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace module_parts_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kNvfp4 =
    R"("quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
        "ignore": ["lm_head", "*.self_attn.[qkv]_proj", "*.mlp.gate"]})";

std::string config_of(const std::string& quantization, int layers = 2) {
  return fmt::format(
      R"({{"num_hidden_layers": {}, "hidden_size": 32, "vocab_size": 48, "num_experts": 4, {}}})", layers,
      quantization);
}

void add_f32(Tensors& to, const std::string& name, float value) {
  TensorData t{name, DType::kF32, {}, std::vector<uint8_t>(4)};
  std::memcpy(t.bytes.data(), &value, 4);
  to.push_back(std::move(t));
}

/// A model with input scales beside each quantized matrix.
Tensors with_input_scales(unsigned seed, float scale) {
  Tensors all = language_model(2, 4, seed, "modelopt");
  std::vector<std::string> modules;
  for (const TensorData& t : all) {
    if (t.name.ends_with(".weight_scale")) modules.push_back(t.name.substr(0, t.name.rfind('.')));
  }
  for (const std::string& module : modules) add_f32(all, module + ".input_scale", scale += 0.125f);
  return all;
}

struct Pair {
  Scratch scratch;
  fs::path base = scratch / "base", donor = scratch / "donor", out = scratch / "out";

  Pair(const Tensors& of_base, const Tensors& of_donor, const std::string& quantization = kNvfp4) {
    write_checkpoint(base, {of_base}, config_of(quantization));
    write_checkpoint(donor, {of_donor}, config_of(quantization));
  }
  std::string error(const std::vector<std::string>& take) const {
    fs::remove_all(out);
    const std::string message = message_of([&] { write_edited(base, donor, graft_of(take), out); });
    CHECK(!fs::exists(out));
    return message;
  }
  /// Checks that a graft replaces the tensors for which `is_taken` is true and keeps the others.
  template <class F>
  void check(const std::vector<std::string>& take, F&& is_taken) const {
    fs::remove_all(out);
    write_edited(base, donor, graft_of(take), out);
    ReadTensors expected = read_tensors(base);
    for (const auto& [name, t] : read_tensors(donor)) {
      if (is_taken(name)) expected[name] = t;
    }
    CHECK((read_tensors(out) == expected));
    CHECK(differences_of_edit(out, base, donor) == "");
  }
};

}  // namespace

TEST_CASE("input scales come alone where the base has them, and no weight is lost") {
  const Pair p(with_input_scales(1, 1), with_input_scales(7, 2));
  const auto ends = [](const char* end) {
    return [end](const std::string& name) { return name.ends_with(end); };
  };
  p.check({"*input_scale"}, ends(".input_scale"));
  p.check({"*down_proj.input_scale"}, ends("down_proj.input_scale"));
  p.check({"*.q_proj", "*o_proj.input_scale"}, [](const std::string& name) {
    return name.ends_with("o_proj.input_scale") || name.find(".q_proj.") != name.npos;
  });
}

TEST_CASE("an input scale that the donor lacks stays in the base") {
  Tensors donor = with_input_scales(7, 2);
  std::erase_if(donor,
                [](const TensorData& t) { return t.name.ends_with("1.self_attn.o_proj.input_scale"); });
  const Pair p(with_input_scales(1, 1), donor);
  p.check({"*input_scale"}, [](const std::string& name) { return name.ends_with(".input_scale"); });
}

TEST_CASE("parts of quantized modules are refused without their codes, and codes without their parts") {
  const Pair p(with_input_scales(1, 1), with_input_scales(7, 2));
  for (const char* part : {"*.weight_scale", "*.weight_scale_2", "*_scale"}) {
    CAPTURE(std::string(part));
    const std::string message = p.error({part});
    CHECK(contains(message, "expected --take to take quantized modules whole"));
    CHECK(contains(message, "comes without the codes of its module (and "));
    CHECK(message.find('\n') == message.npos);
  }
  CHECK(contains(
      p.error({"model.layers.1.self_attn.o_proj.weight_scale_2"}),
      "found that model.layers.1.self_attn.o_proj.weight_scale_2 comes without the codes of its module; "
      "take 'model.layers.1.self_attn.o_proj'"));
  CHECK(contains(p.error({"*up_proj.weight"}), "stays without its codes"));
  CHECK(contains(p.error({"*up_proj.weight", "*up_proj.weight_scale", "*up_proj.weight_scale_2"}),
                 "up_proj.input_scale stays without its codes"));
}

TEST_CASE("input scales are refused where the base has none, has another type or another format") {
  Tensors without = language_model(2, 4, 1, "modelopt"), wide = with_input_scales(1, 1);
  CHECK(contains(Pair(without, with_input_scales(7, 2)).error({"*input_scale"}), "comes without the codes"));
  for (TensorData& t : wide) {
    if (t.name.ends_with(".input_scale")) t.shape = {1};
  }
  CHECK(contains(Pair(wide, with_input_scales(7, 2)).error({"*input_scale"}), "comes without the codes"));
  Tensors floats;
  for (const TensorData& t : with_input_scales(1, 1)) {
    if (t.name.ends_with(".input_scale")) floats.push_back(t);
    if (t.name.ends_with(".weight_scale"))
      add_bf16(floats, t.name.substr(0, t.name.rfind('.')) + ".weight", {t.shape[0], t.shape[1] * 16});
  }
  add_bf16(floats, "model.embed_tokens.weight", {48, 32});
  CHECK(contains(Pair(floats, with_input_scales(7, 2)).error({"*input_scale"}), "comes without the codes"));
}

TEST_CASE("biases, decays and norms come by name, alone") {
  Tensors base = language_model(2, 0, 1, "modelopt"), donor = language_model(2, 0, 7, "modelopt");
  for (Tensors* to : {&base, &donor}) {
    unsigned seed = to == &base ? 11 : 22;
    add_bf16(*to, "model.layers.0.self_attn.q_proj.bias", {32}, ++seed);
    add_bf16(*to, "model.layers.0.mlp.up_proj.bias", {16}, ++seed);
    add_bf16(*to, "model.layers.0.linear_attn.A_log", {4}, ++seed);
    add_bf16(*to, "model.layers.0.linear_attn.dt_bias", {4}, ++seed);
    add_bf16(*to, "model.layers.0.input_layernorm.bias", {32}, ++seed);
  }
  const Pair p(base, donor);
  p.check({"*bias"}, [](const std::string& name) { return name.ends_with("bias"); });
  p.check({"*.A_log"}, [](const std::string& name) { return name.ends_with(".A_log"); });
  p.check({"*q_proj.bias"}, [](const std::string& name) { return name.ends_with("q_proj.bias"); });
  p.check({"*input_layernorm"},
          [](const std::string& name) { return name.find("input_layernorm") != name.npos; });
}

TEST_CASE("a stack comes without the stack beside it") {
  Tensors both[2];
  const std::string block = "model.layers.0.mlp.experts";
  for (unsigned i : {0u, 1u}) {
    const ExpertSet set = random_experts(4, 16, 32, 3 + 100 * i);
    std::vector<Nvfp4Matrix> gate_up;
    for (size_t e = 0; e < 4; ++e) gate_up.push_back(stack_rows(set.gate[e], set.up[e]));
    add_stack(both[i], block + ".gate_up_proj", gate_up, true, {4});
    add_stack(both[i], block + ".down_proj", set.down, true, {4});
    add_bf16(both[i], block + ".gate_up_proj_bias", {4, 32}, 5 + i);
    add_bf16(both[i], block + ".down_proj_bias", {4, 32}, 15 + i);
    add_bf16(both[i], "model.layers.0.mlp.router.weight", {4, 32}, 25 + i);
  }
  const Pair p(both[0], both[1]);
  p.check({"*gate_up_proj*"}, [](const std::string& name) { return name.find("gate_up_proj") != name.npos; });
  p.check({"*down_proj_bias"}, [](const std::string& name) { return name.ends_with("down_proj_bias"); });
  CHECK(contains(p.error({"*down_proj_weight_scale"}), "down_proj_weight_scale comes without the codes"));
}

}  // namespace module_parts_test
