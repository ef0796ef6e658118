#include "lib/checkpoint/output_dialect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "formats/error.h"
#include "lib/checkpoint/quantization_config.h"
#include "lib/names/config_pattern.h"

namespace twofour {
namespace {

using enum Granularity;

/// The version whose arithmetic quantize_nvfp4_row has. Loaders want the producer's name, too.
constexpr const char* kModelOptVersion = "0.45.0";
constexpr const char* kCompressedTensorsVersion = "0.12.2";

// ModelOpt. Source: NVIDIA/Model-Optimizer, modelopt/torch/export; vLLM, quantization/modelopt.py.

/// `groups` and `group_size`: of NVFP4, null: none.
ConfigEntries modelopt_entries(const QuantizedConfig& c, const char* algorithm, const Json& groups,
                               const Json& group_size) {
  const Json producer = {{"name", "modelopt"}, {"version", kModelOptVersion}};
  Json entry = Json::object(), file = Json::object();
  if (!groups.is_null()) entry["config_groups"] = groups;
  entry["ignore"] = c.unquantized;
  entry["quant_algo"] = algorithm;
  entry["producer"] = producer;
  entry["quant_method"] = "modelopt";
  if (c.fp8_kv_cache) entry["kv_cache_scheme"] = {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
  file["quant_algo"] = algorithm;
  file["kv_cache_quant_algo"] = c.fp8_kv_cache ? Json("FP8") : Json(nullptr);
  if (!group_size.is_null()) file["group_size"] = group_size;
  file["exclude_modules"] = c.unquantized;
  return {std::move(entry), {{"producer", producer}, {"quantization", std::move(file)}}};
}

ConfigEntries modelopt_nvfp4(const QuantizedConfig& c) {
  const Json weights = {{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
  const Json activations = c.weight_only ? Json(nullptr) : weights;
  const Json groups = {
      {"group_0", {{"input_activations", activations}, {"weights", weights}, {"targets", {"Linear"}}}}};
  // vLLM wants group_size, kv_cache_quant_algo and exclude_modules, all three.
  return modelopt_entries(c, c.weight_only ? "W4A16_NVFP4" : "NVFP4", groups, 16);
}

ConfigEntries modelopt_fp8(const QuantizedConfig& c, Granularity granularity) {
  const char* algorithm = granularity == kTensor ? "FP8"
                          : granularity == kRow  ? "FP8_PER_CHANNEL_PER_TOKEN"
                                                 : "FP8_PB_WO";
  return modelopt_entries(c, algorithm, nullptr, nullptr);
}

// compressed-tensors. Source: vllm-project/compressed-tensors, quantization/quant_scheme.py.

Json compressed_tensors_entry(const QuantizedConfig& c, const char* format, Json weights, Json activations) {
  const Json kv_cache = {{"num_bits", 8},     {"type", "float"},  {"strategy", "tensor"},
                         {"symmetric", true}, {"dynamic", false}, {"observer", "minmax"}};
  return {{"config_groups",
           {{"group_0",
             {{"format", format},
              {"input_activations", std::move(activations)},
              {"output_activations", nullptr},
              {"targets", {"Linear"}},
              {"weights", std::move(weights)}}}}},
          {"format", format},
          {"global_compression_ratio", nullptr},
          {"ignore", c.unquantized},
          {"kv_cache_scheme", c.fp8_kv_cache ? kv_cache : Json(nullptr)},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"},
          {"version", kCompressedTensorsVersion}};
}

ConfigEntries compressed_tensors_nvfp4(const QuantizedConfig& c) {
  const Json weights = {{"num_bits", 4},       {"type", "float"},   {"strategy", "tensor_group"},
                        {"group_size", 16},    {"symmetric", true}, {"dynamic", false},
                        {"observer", "minmax"}};
  Json activations = weights;
  activations["dynamic"] = "local";
  if (c.weight_only) activations = nullptr;
  return {compressed_tensors_entry(c, "nvfp4-pack-quantized", weights, activations)};
}

/// As llm-compressor's FP8_DYNAMIC and FP8_BLOCK put it, and their like with a scale a tensor.
ConfigEntries compressed_tensors_fp8(const QuantizedConfig& c, Granularity granularity) {
  const auto args = [](const char* strategy, bool dynamic) {
    return Json{{"num_bits", 8},        {"type", "float"},
                {"strategy", strategy}, {"symmetric", true},
                {"dynamic", dynamic},   {"observer", dynamic ? Json(nullptr) : Json("minmax")},
                {"group_size", nullptr}};
  };
  // Loaders of experts take a scale a tensor on both sides, or a channel and a token.
  const bool block = granularity == kBlock, tensor = granularity == kTensor;
  Json weights = args(block ? "block" : tensor ? "tensor" : "channel", false);
  Json activations = args(block ? "group" : tensor ? "tensor" : "token", true);
  if (block) {
    weights["block_structure"] = {kFp8Block, kFp8Block};
    activations["group_size"] = kFp8Block;
  }
  return {compressed_tensors_entry(c, "float-quantized", weights, activations)};
}

// DeepSeek. Source: Hugging Face transformers, integrations/finegrained_fp8.py.

ConfigEntries deepseek_fp8(const QuantizedConfig& c, Granularity) {
  Json unquantized = Json::array();
  for (std::string name : c.unquantized) {
    if (name.ends_with('*')) name.pop_back();  // loaders look for names within names
    unquantized.push_back(name);
  }
  const Json entry = {{"activation_scheme", "dynamic"},
                      {"fmt", "e4m3"},
                      {"quant_method", "fp8"},
                      {"weight_block_size", {kFp8Block, kFp8Block}},
                      {"modules_to_not_convert", unquantized}};
  return {entry};
}

int64_t fp8_blocks(int64_t n) { return (n + kFp8Block - 1) / kFp8Block; }

/// ModelOpt exports the axes that it reduced, and vLLM wants them.
std::vector<int64_t> modelopt_scale_shape(int64_t n, int64_t k, Granularity granularity) {
  if (granularity == kRow) return {n};
  return {fp8_blocks(n), 1, fp8_blocks(k), 1};
}

std::vector<int64_t> two_axis_scale_shape(int64_t n, int64_t k, Granularity granularity) {
  if (granularity == kRow) return {n, 1};
  return {fp8_blocks(n), fp8_blocks(k)};
}

/// The row of formats/dialect.h for linears that are not stacked.
const Nvfp4Dialect* nvfp4_of(std::string_view name) {
  const auto all = nvfp4_dialects();
  return &*std::find_if(all.begin(), all.end(), [&](auto& d) { return d.name == name && !d.stacked; });
}

constexpr Granularity kRowFirst[] = {kRow, kTensor, kBlock};
constexpr Granularity kBlockAlone[] = {kBlock};

}  // namespace

std::vector<int64_t> OutputDialect::fp8_scales(int64_t n, int64_t k, Granularity granularity) const {
  return granularity == kTensor ? scalar_shape() : fp8_scale_shape(n, k, granularity);
}

std::vector<std::string> OutputDialect::patterns(const std::vector<std::string>& globs) const {
  return excludes_by_glob ? globs : globs_to_regexes(globs);
}

std::span<const OutputDialect> output_dialects() {
  static const OutputDialect all[] = {
      {"modelopt", nvfp4_of("modelopt"), 0, DType::kF32, true, kRowFirst, ".weight_scale", ".input_scale",
       modelopt_scale_shape, modelopt_nvfp4, modelopt_fp8},
      {"compressed-tensors", nvfp4_of("compressed-tensors"), 1, DType::kBF16, false, kRowFirst,
       ".weight_scale", nullptr, two_axis_scale_shape, compressed_tensors_nvfp4, compressed_tensors_fp8},
      {"deepseek", nullptr, 1, std::nullopt, true, kBlockAlone, ".weight_scale_inv", nullptr,
       two_axis_scale_shape, nullptr, deepseek_fp8},
  };
  return all;
}

std::vector<std::string> output_dialect_names(bool nvfp4_only) {
  std::vector<std::string> names;
  for (const OutputDialect& d : output_dialects()) {
    if (d.nvfp4 != nullptr || !nvfp4_only) names.emplace_back(d.name);
  }
  return names;
}

const OutputDialect& output_dialect(std::string_view name, bool with_nvfp4) {
  for (const OutputDialect& d : output_dialects()) {
    if (d.name == name && (d.nvfp4 != nullptr || !with_nvfp4)) return d;
  }
  throw Error(fmt::format("--dialect: expected one of {}, found '{}'",
                          fmt::join(output_dialect_names(with_nvfp4), ", "), name));
}

std::map<std::string, std::string> config_texts(const Checkpoint& source, ConfigEntries entries) {
  std::map<std::string, std::string> texts = {
      {"config.json", format_json(config_with_quantization(source, std::move(entries.quantization_config)))}};
  if (!entries.hf_quant_config.is_null())
    texts["hf_quant_config.json"] = format_json(entries.hf_quant_config);
  return texts;
}

}  // namespace twofour
