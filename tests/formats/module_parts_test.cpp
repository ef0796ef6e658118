#include <doctest/doctest.h>

#include <set>
#include <string>

#include "formats/dialect.h"
#include "formats/module_parts.h"

namespace module_parts_test {

using namespace twofour;

TEST_CASE("every suffix of a dialect is on the list of parts") {
  std::set<std::string> names;
  const auto add = [&](const char* suffix) {
    if (suffix != nullptr && *suffix == '.') names.insert(suffix + 1);
  };
  for (const WeightDialect& d : weight_dialects()) {
    for (const char* suffix :
         {d.weight, d.scale, d.input_scale, d.bias, d.zero_points, d.group_index, d.shape})
      add(suffix);
  }
  for (const Nvfp4Dialect& d : nvfp4_dialects()) {
    for (const char* suffix : {d.codes, d.block_scale, d.global_scale, d.input_scale}) add(suffix);
  }
  CHECK(names.size() > 12);
  for (const std::string& name : names) {
    CAPTURE(name);
    CHECK(find_module_part(name).kind != PartKind::kUnknown);
  }
}

TEST_CASE("a name is on the list once") {
  std::set<std::string_view> names;
  for (const ModulePart& part : module_parts()) CHECK(names.insert(part.name).second);
}

TEST_CASE("buffers of quantizers are looked up by their own names") {
  const auto kind = [](const char* below) { return find_module_part(below).kind; };
  CHECK(kind("pre_quant_scale") == PartKind::kTerm);
  CHECK(kind("input_quantizer._pre_quant_scale") == PartKind::kTerm);
  CHECK(kind("input_quantizer.pre_quant_scale") == PartKind::kTerm);
  CHECK(kind("weight_quantizer._amax") == PartKind::kState);
  CHECK(kind("weight_quantizer._double_scale") == PartKind::kState);
  CHECK(kind("weight_quantizer.0._amax") == PartKind::kState);
  CHECK(kind("weight_quantizer.1._scale") == PartKind::kUnknown);
  CHECK(kind("_pre_quant_scale") == PartKind::kTerm);
  CHECK(kind("output_zero_point") == PartKind::kPart);
  // Not below a quantizer, or what a quantizer's scale would be: nobody knows what it means.
  CHECK(kind("_amax") == PartKind::kUnknown);
  CHECK(kind("amax") == PartKind::kUnknown);
  CHECK(kind("weight_quantizer.scale") == PartKind::kUnknown);
  CHECK(kind("weight_quantizer._scale") == PartKind::kUnknown);
  CHECK(kind("weight_quantizer.") == PartKind::kUnknown);
  CHECK(kind("") == PartKind::kUnknown);
  CHECK(kind("lora_A.default.weight") == PartKind::kTerm);
  CHECK(kind("xlora_A.weight") == PartKind::kUnknown);
}

TEST_CASE("a tensor's name is taken apart by the longest part") {
  const auto module = [](const char* tensor) {
    const auto name = parse_part_name(tensor);
    return name ? std::string(name->module) + "|" + std::string(name->part->name) : "";
  };
  CHECK(module("a.b.weight_g_idx") == "a.b|weight_g_idx");
  CHECK(module("a.b.g_idx") == "a.b|g_idx");
  CHECK(module("a.down_proj_weight_scale_2") == "a.down_proj|weight_scale_2");
  CHECK(module("a.b.lora_A.default.weight") == "a.b|adapter");
  CHECK(module("a.b.svdquant_lora_a") == "a.b|svdquant_lora_a");
  CHECK(module("a.b.base_layer.lora_B.weight") == "a.b.base_layer|adapter");
  CHECK(module("a.experts.down_proj_lora_A.weight") == "a.experts.down_proj|adapter");
  CHECK(module("a.q_lora_rank_norm.weight") == "a.q_lora_rank_norm|weight");
  CHECK(module("a.b.ia3_l") == "a.b|adapter");
  // A quantizer's buffer is its module's; a stack's quantizer is behind "_".
  CHECK(module("a.b.input_quantizer._pre_quant_scale") == "a.b|pre_quant_scale");
  CHECK(module("a.b.weight_quantizer.svdquant_lora_a") == "a.b|svdquant_lora_a");
  CHECK(module("a.experts.down_proj_input_quantizer._pre_quant_scale") ==
        "a.experts.down_proj|pre_quant_scale");
  CHECK(module("a.b._pre_quant_scale") == "a.b|pre_quant_scale");
  CHECK(module("a.b.weight_quantizer.0._amax") == "a.b|amax");
  CHECK(module("input_quantizer._pre_quant_scale") == "|pre_quant_scale");
  // The term belongs to the file as a whole.
  CHECK(module("comfy_quant") == "|comfy_quant");
  CHECK(module("a.b.x").empty());
  CHECK(module("weight").empty());
  CHECK(module(".weight").empty());
}

}  // namespace module_parts_test
