#pragma once
#include <string>
#include <string_view>

#include "formats/json.h"
#include "lib/source/dialects/scheme.h"

// Schemes that configurations distinguish: NVFP4 with and without input scales, FP8 by its granularity, and
// MXFP8 as its own format.

namespace twofour {

namespace schemes {
inline const Scheme kFloat{};
inline const Scheme kNvfp4{.format = WeightFormat::kNvfp4, .has_input_scale = true};
inline const Scheme kNvfp4WeightOnly{.format = WeightFormat::kNvfp4};
inline const Scheme kFp8Tensor{.format = WeightFormat::kFp8};
inline const Scheme kFp8Row{.format = WeightFormat::kFp8, .granularity = Granularity::kRow};
inline const Scheme kFp8Blocks{.format = WeightFormat::kFp8, .granularity = Granularity::kBlock};  ///< blocks
                                                                                                   ///< of any
                                                                                                   ///< size
inline const Scheme kMxfp8{.format = WeightFormat::kMxfp8};
inline const Scheme kMxfp4{.format = WeightFormat::kMxfp4};
inline const Scheme kInt4{.format = WeightFormat::kInt4};
inline const Scheme kOther{.format = WeightFormat::kOther};
/// FP8 in blocks of that size; 0: not stated.
Scheme fp8_blocks(int64_t rows, int64_t cols);
}  // namespace schemes

/// True for FP8 in blocks of any size.
bool is_fp8_blocks(const Scheme& said);

/// The scheme of stored tensors as a configuration would state it.
Scheme as_said(const Scheme& stored);
/// The scheme of an entry in any configuration: in quantized_layers or config_groups, of method "fp8", or
/// DeepSeek-V4's. null: floats.
Scheme said_scheme(const Json& entry);

/// A scheme's name for people and for tables of engines' loaders: "unquantized", "NVFP4", "NVFP4 without
/// input scales", "FP8 by blocks" (with their size if `with_size`).
std::string said_name(const Scheme& said, bool with_size = true);

/// A config's setting for the inputs of a module.
enum class InputPromise {
  kUnknown,  ///< no setting, or one that no rule here reads
  kFloats,   ///< not quantized
  kDynamic,  ///< quantized at run time, without a stored scale
  kStatic,   ///< quantized with a stored scale
};

/// An algorithm of ModelOpt or TensorRT-LLM. One row each.
struct Algorithm {
  const char* name;
  const Scheme& scheme;  ///< kOther: a format without checks
  InputPromise inputs = InputPromise::kUnknown;
  bool scales_inputs_first = false;  ///< the algorithm has a pre_quant_scale
};
/// The algorithm of that name; nullptr: unknown.
const Algorithm* find_algorithm(std::string_view name);

}  // namespace twofour
