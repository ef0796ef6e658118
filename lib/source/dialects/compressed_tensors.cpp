#include <fmt/format.h>

#include <algorithm>

#include "formats/naming.h"
#include "lib/base/names/config_pattern.h"
#include "lib/source/config/model_config.h"
#include "lib/source/dialects/dialect_rows.h"
#include "lib/source/dialects/target_patterns.h"

// Source: vllm-project/compressed-tensors, quantization/quant_scheme.py.

namespace twofour {
namespace compressed_tensors {
namespace {

using enum Granularity;

constexpr const char* kCompressedTensorsVersion = "0.12.2";

Json config_entry(const QuantizedConfig& c, const std::string& format, Json groups) {
  const Json kv_cache = {{"num_bits", 8},     {"type", "float"},  {"strategy", "tensor"},
                         {"symmetric", true}, {"dynamic", false}, {"observer", "minmax"}};
  return {{"config_groups", std::move(groups)},
          {"format", format},
          {"global_compression_ratio", nullptr},
          {"ignore", c.unquantized},
          {"kv_cache_scheme", c.fp8_kv_cache ? kv_cache : Json(nullptr)},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"},
          {"version", kCompressedTensorsVersion}};
}

Json group_of(const char* format, Json weights, Json activations) {
  return {{"format", format},
          {"input_activations", std::move(activations)},
          {"output_activations", nullptr},
          {"weights", std::move(weights)}};
}

/// Returns a group with these targets. The keys are in the producer's order.
Json with_targets(const Json& group, const std::vector<std::string>& targets) {
  Json full = Json::object();
  for (const auto& [key, value] : group.items()) {
    if (key == "weights") full["targets"] = targets;
    full[key] = value;
  }
  full["targets"] = targets;
  return full;
}

Json nvfp4_group(bool weight_only) {
  const Json weights = {{"num_bits", 4},       {"type", "float"},   {"strategy", "tensor_group"},
                        {"group_size", 16},    {"symmetric", true}, {"dynamic", false},
                        {"observer", "minmax"}};
  Json activations = weights;
  activations["dynamic"] = "local";
  if (weight_only) activations = nullptr;
  return group_of("nvfp4-pack-quantized", weights, activations);
}

Json float8_args(const char* strategy, bool dynamic) {
  return {{"num_bits", 8},        {"type", "float"},
          {"strategy", strategy}, {"symmetric", true},
          {"dynamic", dynamic},   {"observer", dynamic ? Json(nullptr) : Json("minmax")},
          {"group_size", nullptr}};
}

/// Returns the group of an FP8 scheme, as llm-compressor's presets FP8, FP8_DYNAMIC and FP8_BLOCK write it.
Json fp8_group(const Scheme& s) {
  // Loaders of experts accept one scale per tensor for weights and inputs, or one per channel of weights and
  // one per token of inputs.
  const bool block = s.granularity == kBlock, tensor = s.granularity == kTensor;
  Json weights = float8_args(block ? "block" : tensor ? "tensor" : "channel", false);
  Json activations = float8_args(block    ? "group"
                                 : tensor ? "tensor"
                                          : "token",
                                 !tensor || !s.has_input_scale);
  if (block) {
    weights["block_structure"] = {s.rows, s.cols};
    activations["group_size"] = s.cols;
  }
  return group_of("float-quantized", weights, activations);
}

/// Returns the group of an MX format. Each 32 weights share a scale, which is a power of two.
Json mx_group(int bits, const char* format) {
  Json weights = {
      {"num_bits", bits},  {"type", "float"},  {"strategy", "group"},  {"group_size", 32},
      {"symmetric", true}, {"dynamic", false}, {"observer", "minmax"}, {"scale_dtype", "torch.uint8"}};
  Json activations = weights;
  activations["dynamic"] = true;
  activations["observer"] = nullptr;
  // Loaders of experts accept MXFP4 only as a format of weights alone, and MXFP6 has no activations of 6
  // bits.
  if (bits < 8) activations = nullptr;
  return group_of(format, weights, activations);
}

Json entry_of(const Scheme& s) {
  if (s.format == WeightFormat::kNvfp4) return nvfp4_group(!s.has_input_scale);
  if (s.format->in_groups())
    return s.format->global_scale ? nullptr : mx_group(s.format->bits, s.format->packed_as);
  if (s.is_mxfp8()) return mx_group(8, "mxfp8-quantized");
  if (!s.format->tiles) return nullptr;
  if (s.granularity == kBlock && !s.is_block(128, 128) && !s.is_block(32, 32) && !s.is_block(1, 128))
    return nullptr;
  return fp8_group(s);
}

ConfigEntries config_of(const QuantizedConfig& c, const Scheme& s) {
  Json group = entry_of(s);
  if (s.is_mxfp8()) group["input_activations"] = nullptr;  // as in the preset for weights alone
  // "Linear" does not include the class of heads of any engine.
  std::vector<std::string> targets = {"Linear"};
  for (const std::string& head : c.heads) targets.push_back(fmt::format("re:.*{}$", leaf_of(head)));
  return {
      config_entry(c, group.at("format").get<std::string>(), {{"group_0", with_targets(group, targets)}})};
}

std::optional<Spelling> spelling_of(const Scheme& s, int64_t n, int64_t k) {
  if (s.format == WeightFormat::kMxfp4 || s.format == WeightFormat::kMxfp6)
    return Spelling{".weight_packed", DType::kU8, ".weight_scale", DType::kU8, {n, k / kMxGroup}};
  if (entry_of(s).is_null() || !s.format->tiles) return std::nullopt;
  Spelling spelling{".weight", DType::kF8E4M3, ".weight_scale", std::nullopt};
  if (s.is_mxfp8()) {
    spelling.scale_type = DType::kU8;
    spelling.scale_shape = {n, k / kMxGroup};
  } else {
    if (s.scale_type == DType::kF8E8M0 || s.scale_type == DType::kU8) spelling.scale_type = DType::kF32;
    spelling.scale_shape = s.granularity == kTensor ? std::vector<int64_t>{1} : two_axis_scale_shape(n, k, s);
    if (s.granularity == kTensor) spelling.input_scale = ".input_scale";
  }
  return spelling;
}

ConfigEntries mixed_config(const WrittenModel& model) {
  std::vector<std::vector<std::string>> members(model.entries.size());
  for (const WrittenModule& m : model.modules) {
    if (!m.entry) continue;
    members[*m.entry].push_back(m.name);
    for (const auto rename : {name_in_vllm, name_in_transformers}) {
      if (auto other = other_name(model.source->config(), m.name, rename); !other.empty())
        members[*m.entry].push_back(std::move(other));
    }
  }
  Json groups = Json::object();
  for (size_t i = 0; i < members.size(); ++i) {
    groups[fmt::format("group_{}", i)] = with_targets(model.entries[i], target_patterns(members, i));
  }
  return {config_entry({globs_to_regexes(model.unquantized), model.fp8_kv_cache}, "mixed-precision",
                       std::move(groups))};
}

constexpr Granularity kGranularities[] = {kRow, kTensor, kBlock};

}  // namespace
}  // namespace compressed_tensors

const OutputDialect& compressed_tensors_dialect() {
  static const OutputDialect row = {
      .name = "compressed-tensors",
      .nvfp4 = single_nvfp4_dialect("compressed-tensors"),
      .scalar_rank = 1,
      .kv_scale_type = DType::kBF16,
      .excludes_by_glob = false,
      .fp8_granularities = compressed_tensors::kGranularities,
      .config = compressed_tensors::config_of,
      .spelling = compressed_tensors::spelling_of,
      .entry = compressed_tensors::entry_of,
      .mixed_config = compressed_tensors::mixed_config,
  };
  return row;
}

}  // namespace twofour
