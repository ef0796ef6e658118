#include "lib/source/dialects/configured_scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "lib/base/names/lookup_parts.h"

namespace twofour {
namespace configured_schemes {
namespace {

using enum InputPromise;
using namespace schemes;

/// The known algorithms. The NVFP4 algorithms differ in additional tensors and in the range of the global
/// scale. Sources: NVIDIA/Model-Optimizer, modelopt/torch/export/{model_config,quant_utils}.py; TensorRT-LLM,
/// quantization/mode.py.
constexpr Algorithm kAlgorithms[] = {
    {"NVFP4", kNvfp4, kStatic},
    {"W4A16_NVFP4", kNvfp4WeightOnly, kFloats},
    {"NVFP4_AWQ", kNvfp4, kStatic, true},
    {"NVFP4_SVD", kNvfp4, kStatic, true},
    {"NVFP4_SVDQUANT", kNvfp4, kStatic, true},
    {"NVFP4_ARC", kNvfp4, kStatic},
    {"W4A8_NVFP4_FP8", kNvfp4, kStatic},
    {"W4A8_MXFP4_FP8", kMxfp4},
    {"W4A8_MXFP4_MXFP8", kMxfp4},
    {"W4A16_MXFP4", kMxfp4, kFloats},
    {"MXFP4", kMxfp4},
    {"MXFP8", kMxfp8, kDynamic},
    {"FP8", kFp8Tensor, kStatic},
    {"FP8_PER_CHANNEL_PER_TOKEN", kFp8Row, kDynamic},
    {"FP8_PB_WO", kFp8Blocks, kDynamic},
    {"FP8_PB_REAL", kFp8Blocks},
    {"FP8_PB", kFp8Blocks, kDynamic},
    {"FP8_BLOCK_SCALES", kFp8Blocks, kDynamic},
    {"W4A16_AWQ", kOther, kFloats, true},
    {"W4A8_AWQ", kOther, kUnknown, true},
    {"W4A16", kOther, kFloats},
    {"W4A16_GPTQ", kOther, kFloats},
    {"W8A16", kOther, kFloats},
    {"W8A16_GPTQ", kOther, kFloats},
    {"INT8", kOther},
    {"W8A8_SQ_PER_CHANNEL", kOther, kUnknown, true},
    {"W8A8_SQ_PER_TENSOR_PLUGIN", kOther, kUnknown, true},
    {"W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", kOther, kUnknown, true},
    {"W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN", kOther, kUnknown, true},
    {"W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN", kOther, kUnknown, true},
    {"W4A8_QSERVE_PER_GROUP", kOther},
    {"W4A8_QSERVE_PER_CHANNEL", kOther},
    {"MIXED_PRECISION", kOther},
    {"NO_QUANT", kOther, kFloats},
};

/// Returns the scheme of an algorithm in an entry of ModelOpt or DeepSeek-V4.
Scheme of_algorithm(const std::string& name, const Json& entry) {
  const Algorithm* algorithm = find_algorithm(name);
  if (algorithm == nullptr || !algorithm->scheme.format->is_known()) return kOther;
  const int64_t block = integer_of(entry, "block").value_or(0);
  if (block > 0) return fp8_blocks(block, block);
  if (!is_fp8_blocks(algorithm->scheme)) return algorithm->scheme;
  const int64_t size = integer_of(entry, "group_size").value_or(0);
  return fp8_blocks(size > 0 ? size : kFp8Block, size > 0 ? size : kFp8Block);
}

/// Returns FP8 in blocks. `sizes` is a list of the two numbers of a block's size.
Scheme of_block(const Json& sizes) {
  const auto [rows, cols] = pair_of(sizes).value_or(std::pair<int64_t, int64_t>());
  return fp8_blocks(rows, cols);
}

/// Returns the scheme of a group of compressed-tensors.
Scheme of_group(const Json& group) {
  const Json& weights = member(group, "weights");
  if (weights.is_null()) return kFloat;
  const int64_t bits = integer_of(weights, "num_bits").value_or(0);
  const int64_t size = integer_of(weights, "group_size").value_or(0);
  const std::string type = text_of(weights, "type"), strategy = text_of(weights, "strategy");
  if (type == "int") return bits == 4 ? kInt4 : kOther;
  if (type != "float") return kOther;
  if (bits == 4 && size == 16)
    return member(group, "input_activations").is_object() ? kNvfp4 : kNvfp4WeightOnly;
  if (bits == 4 && size == 32) return kMxfp4;
  if (bits == 6 && size == 32) return kMxfp6;
  if (bits != 8) return kOther;
  if (strategy == "tensor") return kFp8Tensor;
  if (strategy == "channel") return kFp8Row;
  if (strategy == "group" && size == 32) return kMxfp8;
  return strategy == "block" ? of_block(member(weights, "block_structure")) : kOther;
}

/// Returns the scheme of an entry of method "fp8" of DeepSeek-V3 and transformers.
Scheme of_fp8(const Json& entry) {
  const Json& block = member(entry, "weight_block_size");
  if (!block.is_null()) return of_block(block);
  return entry.contains("fmt") || entry.contains("activation_scheme") ? kFp8Tensor : kFp8Blocks;
}

}  // namespace
}  // namespace configured_schemes

Scheme schemes::fp8_blocks(int64_t rows, int64_t cols) {
  return {WeightFormat::kFp8, Granularity::kBlock, rows, cols};
}

bool is_fp8_blocks(const Scheme& configured) {
  return configured.format == WeightFormat::kFp8 && configured.granularity == Granularity::kBlock;
}

Scheme as_configured(const Scheme& s) {
  if (s.format->number != nullptr || s.format->variant_of != nullptr) return schemes::kOther;
  if (s.is_mxfp8()) return schemes::kMxfp8;
  Scheme configured{.format = s.format, .has_input_scale = s.format->global_scale && s.has_input_scale};
  if (!s.format->tiles) return configured;
  configured.granularity = s.granularity;
  configured.rows = s.rows;
  configured.cols = s.cols;
  return configured;
}

Scheme configured_scheme(const Json& entry) {
  if (entry.is_null()) return schemes::kFloat;
  if (const std::string algorithm = lookups::algorithm_of(entry); !algorithm.empty())
    return configured_schemes::of_algorithm(algorithm, entry);
  if (entry.is_object() && entry.contains("weights")) return configured_schemes::of_group(entry);
  if (text_of(entry, "quant_method") == "fp8") return configured_schemes::of_fp8(entry);
  return schemes::kOther;
}

std::string scheme_label(const Scheme& configured, bool with_size) {
  if (!configured.format->coded) return "unquantized";
  if (configured == schemes::kNvfp4WeightOnly) return "NVFP4 without input scales";
  if (configured.format->global_scale) return configured.format->name;
  if (!is_fp8_blocks(configured)) return describe(configured);
  return with_size && configured.rows > 0
             ? fmt::format("FP8 by blocks of {} x {}", configured.rows, configured.cols)
             : "FP8 by blocks";
}

const Algorithm* find_algorithm(std::string_view name) {
  using configured_schemes::kAlgorithms;
  const auto at = std::find_if(std::begin(kAlgorithms), std::end(kAlgorithms),
                               [&](const Algorithm& a) { return name == a.name; });
  return at == std::end(kAlgorithms) ? nullptr : &*at;
}

}  // namespace twofour
