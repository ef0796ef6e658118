#include "lib/dialects/named_format.h"

#include <fmt/format.h>

#include <map>
#include <string_view>

#include "lib/names/lookup_parts.h"

namespace twofour {
namespace named_formats {
namespace {

using enum NamedFormat::Kind;

int64_t number_of(const Json& json, const char* key) {
  const Json& value = lookups::member(json, key);
  return value.is_number_integer() ? value.get<int64_t>() : 0;
}

/// ModelOpt's names, DeepSeek-V4's entries among them.
NamedFormat of_algorithm(const std::string& algorithm, const Json& entry) {
  static const std::map<std::string_view, NamedFormat::Kind> all = {
      {"NVFP4", kNvfp4},
      {"NVFP4_AWQ", kNvfp4},
      {"W4A8_NVFP4_FP8", kNvfp4},
      {"W4A16_NVFP4", kNvfp4WeightOnly},
      {"FP8", kFp8Tensor},
      {"FP8_PER_CHANNEL_PER_TOKEN", kFp8Row},
      {"FP8_PB_WO", kFp8Blocks},
      {"FP8_PB", kFp8Blocks},
      {"FP8_BLOCK_SCALES", kFp8Blocks},
      {"MXFP8", kMxfp8},
      {"MXFP4", kMxfp4},
      {"W4A8_MXFP4_FP8", kMxfp4},
      {"W4A8_MXFP4_MXFP8", kMxfp4},
      {"W4A16_MXFP4", kMxfp4},
  };
  const auto at = all.find(algorithm);
  if (at == all.end()) return {kOther};
  if (const int64_t block = number_of(entry, "block"); block > 0) return {kFp8Blocks, block, block};
  if (at->second != kFp8Blocks) return {at->second};
  const int64_t size = number_of(entry, "group_size");
  return {kFp8Blocks, size > 0 ? size : kFp8Block, size > 0 ? size : kFp8Block};
}

/// The size of blocks in a list of two numbers.
NamedFormat with_block(const Json& sizes) {
  NamedFormat format{kFp8Blocks};
  if (sizes.is_array() && sizes.size() == 2 && sizes[0].is_number_integer() && sizes[1].is_number_integer()) {
    format.rows = sizes[0].get<int64_t>();
    format.cols = sizes[1].get<int64_t>();
  }
  return format;
}

/// A group of compressed-tensors.
NamedFormat of_group(const Json& group) {
  const Json& weights = lookups::member(group, "weights");
  if (weights.is_null()) return {kFloat};
  const int64_t bits = number_of(weights, "num_bits"), size = number_of(weights, "group_size");
  const std::string type = lookups::text_of(weights, "type"),
                    strategy = lookups::text_of(weights, "strategy");
  if (type == "int") return {bits == 4 ? kInt4 : kOther};
  if (type != "float") return {kOther};
  if (bits == 4 && size == 16)
    return {lookups::member(group, "input_activations").is_object() ? kNvfp4 : kNvfp4WeightOnly};
  if (bits == 4 && size == 32) return {kMxfp4};
  if (bits != 8) return {kOther};
  if (strategy == "tensor") return {kFp8Tensor};
  if (strategy == "channel") return {kFp8Row};
  if (strategy == "group" && size == 32) return {kMxfp8};
  return strategy == "block" ? with_block(lookups::member(weights, "block_structure")) : NamedFormat{kOther};
}

/// The method of DeepSeek-V3 and transformers.
NamedFormat of_fp8(const Json& entry) {
  const Json& block = lookups::member(entry, "weight_block_size");
  if (!block.is_null()) return with_block(block);
  return {entry.contains("fmt") || entry.contains("activation_scheme") ? kFp8Tensor : kFp8Blocks};
}

}  // namespace
}  // namespace named_formats

NamedFormat format_of(const Scheme& s) {
  using enum NamedFormat::Kind;
  if (!s.format->coded) return {kFloat};
  if (s.format->global_scale) return {s.has_input_scale ? kNvfp4 : kNvfp4WeightOnly};
  if (s.format->pairs) return {kMxfp4};
  if (s.format->integers) return {kInt4};
  if (!s.format->tiles || s.format->number != nullptr) return {kOther};
  if (s.is_mxfp8()) return {kMxfp8};
  if (s.granularity == Granularity::kTensor) return {kFp8Tensor};
  if (s.granularity == Granularity::kRow) return {kFp8Row};
  return {kFp8Blocks, s.rows, s.cols};
}

NamedFormat with_size(NamedFormat format, int64_t n, int64_t k) {
  using enum NamedFormat::Kind;
  format.one_block =
      k <= kFp8Block && (format.kind == kFp8Row || (format.kind == kFp8Tensor && n <= kFp8Block));
  return format;
}

NamedFormat format_of(const Checkpoint& checkpoint, const Linear& linear) {
  return with_size(format_of(scheme_of(checkpoint, linear)), linear.n, linear.k);
}

NamedFormat format_of_entry(const Json& entry) {
  using enum NamedFormat::Kind;
  if (entry.is_null()) return {kFloat};
  if (const std::string algorithm = lookups::algorithm_of(entry); !algorithm.empty())
    return named_formats::of_algorithm(algorithm, entry);
  if (entry.is_object() && entry.contains("weights")) return named_formats::of_group(entry);
  if (lookups::text_of(entry, "quant_method") == "fp8") return named_formats::of_fp8(entry);
  return {kOther};
}

bool is_read_as(const NamedFormat& stored, const NamedFormat& promised) {
  using enum NamedFormat::Kind;
  if (stored.kind == kOther || promised.kind == kOther)
    return stored.kind != kFloat && promised.kind != kFloat;
  // Loaders drop scales that they do not ask for.
  if (stored.kind == kNvfp4 && promised.kind == kNvfp4WeightOnly) return true;
  if (stored.one_block && promised.kind == kFp8Blocks) return stored.kind == kFp8Tensor || promised.rows <= 1;
  const bool same_block = stored.rows == 0 || promised.rows == 0 ||
                          (stored.rows == promised.rows && stored.cols == promised.cols);
  return stored.kind == promised.kind && same_block;
}

std::string describe(const NamedFormat& f) {
  static constexpr const char* kNames[] = {"unquantized",
                                           "NVFP4",
                                           "NVFP4 without input scales",
                                           "FP8 with a scale a tensor",
                                           "FP8 with a scale a row",
                                           "FP8 by blocks",
                                           "MXFP8",
                                           "MXFP4",
                                           "INT4",
                                           "a format that is not known"};
  const std::string name = kNames[static_cast<size_t>(f.kind)];
  return f.rows == 0 ? name : fmt::format("{} of {} x {}", name, f.rows, f.cols);
}

}  // namespace twofour
