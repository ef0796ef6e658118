#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/weight_format.h"
#include "lib/lint/bytes/input.h"

namespace twofour {

/// A linear, or a stack of experts, whose weights are stored as codes. It is found by names, types and shapes
/// alone.
struct CodedModule {
  std::string name;
  size_t tensor;            ///< the codes
  WeightFormat format;      ///< integers of any width are kInt4, FP8 in groups is weight_formats::kMxfp8
  std::string_view suffix;  ///< suffix of the codes' name: ".weight_packed"
  /// Suffix of the scale by which producers differ; empty: it has no such scale.
  std::string_view scale_suffix;
  std::optional<size_t> scale{};        ///< scales of blocks, groups, rows or the matrix
  std::optional<size_t> input_scale{};  ///< scale of the inputs, from calibration
  bool divides = false;                 ///< NVFP4: true if the global scale is a divisor
  bool is_stack = false;                ///< true for a stack of experts
  bool has_zero_points = false;         ///< integers: true if zero points are stored
  bool has_order = false;               ///< integers: true if a list assigns columns to groups
  int64_t n = 0, k = 0;                 ///< size of one matrix; 0: the headers do not show it
  int64_t scales_n = 0, scales_k = 0;   ///< number of scales of one matrix along N and K; 0: unknown
  int64_t words = 0;                    ///< integers: number of 32-bit words along the packed dimension
  bool along_n = false;                 ///< AWQ: true if a word holds several rows
  int bits = 0;                         ///< width of integers in bits; 0: the headers do not show it
  bool is_fp8() const { return format->tiles && format->group == 0; }
  bool is_mxfp8() const { return format->tiles && format->group > 0; }
  bool is_mxfp4() const { return format->pairs && !format->global_scale; }
  /// Returns the format for messages: "NVFP4", "FP8 with a scale a row".
  std::string text() const;
};

/// Returns all coded modules, in the order of their codes. FP8 without any scale is included. Other modules
/// that lack scales or zero points are not.
std::vector<CodedModule> find_coded_modules(const LintInput& input);

}  // namespace twofour
