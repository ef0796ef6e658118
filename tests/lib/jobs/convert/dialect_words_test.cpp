#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/edits.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

// What a conversion to another dialect writes is read by every engine as the modules are stored, however the
// source names what is not quantized.

namespace dialect_words_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

using Names = std::vector<std::string>;

/// How a family calls a block of experts and the matrices in it.
struct Family {
  const char *model_type, *block;
  Names expert;
};
const Family kFamilies[] = {{"qwen3_moe", "mlp", {"gate_proj", "up_proj", "down_proj"}},
                            {"mixtral", "block_sparse_moe", {"w1", "w3", "w2"}}};
constexpr int kLayers = 2, kExperts = 3;

/// Attention in NVFP4, experts, routers and a head in floats.
struct Model {
  Tensors tensors;
  Names quantized, routers, experts;
};

/// A matrix of zeros.
void add_floats(Model& m, const std::string& module, DType type, const std::vector<int64_t>& shape) {
  TensorData t{module + ".weight", type, shape, {}};
  t.bytes.resize(static_cast<size_t>(shape[0] * shape[1] * dtype_bits(type) / 8));
  m.tensors.push_back(std::move(t));
}

Model model_of(const Family& family, const std::string& dialect, DType floats) {
  Model m;
  unsigned seed = 1;
  add_floats(m, "model.embed_tokens", floats, {32, 64});
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string at = fmt::format("model.layers.{}.", layer), block = at + family.block;
    for (const char* leaf : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      const std::string module = at + "self_attn." + leaf;
      const Nvfp4Matrix matrix = random_matrix(64, 64, ++seed);
      dialect == "modelopt" ? add_modelopt(m.tensors, module, matrix)
                            : add_compressed_tensors(m.tensors, module, matrix);
      m.quantized.push_back(module);
    }
    m.routers.push_back(block + ".gate");
    add_floats(m, m.routers.back(), floats, {kExperts, 64});
    for (int e = 0; e < kExperts; ++e) {
      for (const std::string& leaf : family.expert) {
        m.experts.push_back(fmt::format("{}.experts.{}.{}", block, e, leaf));
        const bool down = &leaf == &family.expert.back();
        add_floats(m, m.experts.back(), floats,
                   down ? std::vector<int64_t>{64, 32} : std::vector<int64_t>{32, 64});
      }
    }
  }
  add_floats(m, "lm_head", floats, {32, 64});
  return m;
}

Names operator+(Names a, const Names& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// A quantization_config, and in what manner it says what is quantized.
struct Words {
  std::string manner;
  Json entry;
};

/// Every manner in which a producer says that attention alone is quantized.
std::vector<Words> words_of(const Model& m, const std::string& dialect) {
  std::vector<Words> all;
  const Names head = {"lm_head"};
  if (dialect == "modelopt") {
    const auto add = [&](const char* manner, const Names& ignore) {
      all.push_back(
          {manner, {{"quant_method", "modelopt"}, {"quant_algo", "W4A16_NVFP4"}, {"ignore", ignore}}});
    };
    add("every name", head + m.routers + m.experts);
    add("experts by a glob", Names{"lm_head", "*.experts.*"} + m.routers);
    add("all by globs", {"lm_head", "*.gate", "*experts*"});
    add("routers twice", Names{"lm_head", "*.experts.*"} + m.routers + m.routers);
    add("no names", {});
    Json layers = Json::object();
    for (const std::string& name : m.quantized)
      layers[name] = {{"quant_algo", "W4A16_NVFP4"}, {"group_size", 16}};
    all.push_back(
        {"what is quantized",
         {{"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", layers}}});
    return all;
  }
  const auto add = [&](const char* manner, const Names& targets, const Names& ignore) {
    const Json weights = {
        {"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}};
    all.push_back({manner,
                   {{"quant_method", "compressed-tensors"},
                    {"format", "nvfp4-pack-quantized"},
                    {"config_groups", {{"group_0", {{"targets", targets}, {"weights", weights}}}}},
                    {"ignore", ignore}}});
  };
  const Names linear = {"Linear"};
  add("every name", linear, head + m.routers + m.experts);
  add("experts by an expression", linear, Names{"lm_head", "re:.*\\.experts\\..*"} + m.routers);
  add("all by expressions", linear, {"lm_head", "re:.*gate$", "re:.*experts.*"});
  add("targets by an expression", {"re:.*self_attn.*"}, head);
  add("targets by an expression, routers named", {"re:.*self_attn.*"}, head + m.routers);
  add("targets by name", m.quantized, {});
  add("routers by an expression and by name", linear,
      Names{"lm_head", "re:^model.layers.[0-9]+.*gate$", "re:.*experts.*"} + m.routers);
  add("no names", linear, {});
  return all;
}

Names listed(const fs::path& path) {
  return json_at(path / "config.json").at("quantization_config").at("ignore").get<Names>();
}

}  // namespace

TEST_CASE("engines read what another dialect says of attention in NVFP4 beside experts in floats") {
  for (const Family& family : kFamilies) {
    for (const std::string from : {"modelopt", "compressed-tensors"}) {
      for (const DType floats : {DType::kBF16, DType::kF32}) {
        const Model m = model_of(family, from, floats);
        for (const Words& words : words_of(m, from)) {
          CAPTURE(family.model_type);
          CAPTURE(from);
          CAPTURE(words.manner);
          const Scratch scratch;
          write_checkpoint(scratch / "a", {m.tensors},
                           Json{{"model_type", family.model_type},
                                {"num_hidden_layers", kLayers},
                                {"quantization_config", words.entry}}
                               .dump());
          OneRule rule;
          rule.to = "nvfp4";
          rule.dialect = from == "modelopt" ? "compressed-tensors" : "modelopt";
          convert(scratch / "a", scratch / "b", rule);
          // A source that is read wrongly would hide what the output says.
          const ValidateReport alone = validate(scratch / "b"),
                               report = validate_from(scratch / "a", scratch / "b");
          CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
          CHECK_MESSAGE(findings_of(alone.notes, "engine-lookup").empty(), text_of(alone.notes));
          const Names names = listed(scratch / "b");
          CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
        }
      }
    }
  }
}

}  // namespace dialect_words_test
