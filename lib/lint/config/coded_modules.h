#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/weight_format.h"
#include "lib/lint/bytes/input.h"

namespace twofour {

/// A linear, or a stack of experts, whose weights are stored as codes, by names, types and shapes alone.
struct CodedModule {
  std::string name;
  size_t tensor;                  ///< the codes
  WeightFormat format;            ///< integers of any bits are kInt4, FP8 by groups weight_formats::kMxfp8
  std::string_view suffix;        ///< suffix of the codes: ".weight_packed"
  std::string_view scale_suffix;  ///< suffix of the scale by which producers differ; empty: no such scale
  std::optional<size_t> scale{};  ///< scales of blocks, groups, rows or the matrix
  std::optional<size_t> input_scale{};  ///< scale of calibrated inputs
  bool divides = false;                 ///< NVFP4: the global scale is a divisor
  bool is_stack = false;                ///< true for a stack of experts
  bool has_zero_points = false;         ///< integers
  bool has_order = false;               ///< integers: a list assigns columns to groups
  int64_t n = 0, k = 0;                 ///< size of one matrix; 0: unknown from the headers
  int64_t scales_n = 0, scales_k = 0;   ///< number of scales of one matrix, along N and K; 0: unknown
  int64_t words = 0;                    ///< integers: number of 32-bit words along the packed dimension
  bool along_n = false;                 ///< AWQ: words hold rows
  int bits = 0;                         ///< bits of integers; 0: unknown from the headers
  bool is_fp8() const { return format->tiles && format->group == 0; }
  bool is_mxfp8() const { return format->tiles && format->group > 0; }
  bool is_mxfp4() const { return format->pairs && !format->global_scale; }
  /// The format for people: "NVFP4", "FP8 with a scale a row".
  std::string text() const;
};

/// All coded modules, in the order of their codes. Includes FP8 without any scale, but no other module that
/// lacks scales or zero points.
std::vector<CodedModule> find_coded_modules(const LintInput& input);

}  // namespace twofour
