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
  size_t tensor;                  ///< of the codes
  WeightFormat format;            ///< integers of any bits are kInt4, FP8 by groups weight_formats::kMxfp8
  std::string_view suffix;        ///< of the codes: ".weight_packed"
  std::string_view scale_suffix;  ///< of the scale by which producers differ; empty: it has none
  std::optional<size_t> scale{};  ///< of blocks, groups, rows or the matrix
  std::optional<size_t> input_scale{};  ///< of calibrated inputs
  bool divides = false;                 ///< NVFP4: the global scale does
  bool is_stack = false;                ///< of experts
  bool has_zero_points = false;         ///< integers
  bool has_order = false;               ///< integers: columns belong to groups by a list
  int64_t n = 0, k = 0;                 ///< of one matrix; 0: not known from the headers
  int64_t scales_n = 0, scales_k = 0;   ///< scales of one matrix, along N and K; 0: not known
  int64_t words = 0;                    ///< of 32 bits along the packed dimension, of integers
  bool along_n = false;                 ///< AWQ: words hold rows
  int bits = 0;                         ///< of integers; 0: not known from the headers
  bool is_fp8() const { return format->tiles && format->group == 0; }
  bool is_mxfp8() const { return format->tiles && format->group > 0; }
  bool is_mxfp4() const { return format->pairs && !format->global_scale; }
  /// For people: "NVFP4", "FP8 with a scale a row".
  std::string text() const;
};

/// All of them, in the order of their codes. FP8 without any scale is among them; what else lacks a part that
/// makes it numbers is not.
std::vector<CodedModule> find_coded_modules(const LintInput& input);

}  // namespace twofour
