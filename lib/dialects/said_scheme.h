#pragma once
#include <string>
#include <string_view>

#include "formats/json.h"
#include "lib/dialects/scheme.h"

// Schemes as far as configurations tell them apart: NVFP4 with and without input scales, FP8 by its
// granularity, MXFP8 a format of its own.

namespace twofour {

namespace schemes {
inline const Scheme kFloat{};
inline const Scheme kNvfp4{.format = WeightFormat::kNvfp4, .has_input_scale = true};
inline const Scheme kNvfp4WeightOnly{.format = WeightFormat::kNvfp4};
inline const Scheme kFp8Tensor{.format = WeightFormat::kFp8};
inline const Scheme kFp8Row{.format = WeightFormat::kFp8, .granularity = Granularity::kRow};
inline const Scheme kFp8Blocks{.format = WeightFormat::kFp8, .granularity = Granularity::kBlock};  ///< any
inline const Scheme kMxfp8{.format = WeightFormat::kMxfp8};
inline const Scheme kMxfp4{.format = WeightFormat::kMxfp4};
inline const Scheme kInt4{.format = WeightFormat::kInt4};
inline const Scheme kOther{.format = WeightFormat::kOther};
/// FP8 in blocks of that size; 0: not said.
Scheme fp8_blocks(int64_t rows, int64_t cols);
}  // namespace schemes

/// Whether it is FP8 in blocks, of any size.
bool is_fp8_blocks(const Scheme& said);

/// The scheme of tensors as a configuration would say it.
Scheme as_said(const Scheme& stored);
/// The scheme that an entry of any configuration names: of quantized_layers, of config_groups, of the "fp8"
/// method or of DeepSeek-V4's. Null names floats.
Scheme said_scheme(const Json& entry);

/// For people and for tables of what engines have: "unquantized", "NVFP4", "NVFP4 without input scales",
/// "FP8 by blocks", of which the size is said, too, `with_size`.
std::string said_name(const Scheme& said, bool with_size = true);

/// What a config says of the inputs of a module.
enum class InputPromise {
  kUnknown,  ///< nothing, or what no rule here follows
  kFloats,   ///< they are not quantized
  kDynamic,  ///< quantized while the model runs: no scale is stored
  kStatic,   ///< quantized by a stored scale
};

/// ModelOpt's algorithms, TensorRT-LLM's among them. One row each.
struct Algorithm {
  const char* name;
  const Scheme& scheme;  ///< kOther: a format that nothing is held against
  InputPromise inputs = InputPromise::kUnknown;
  bool scales_inputs_first = false;  ///< pre_quant_scale belongs to it
};
/// nullptr: nobody knows it.
const Algorithm* find_algorithm(std::string_view name);

}  // namespace twofour
