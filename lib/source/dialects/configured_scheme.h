#pragma once
#include <string>
#include <string_view>

#include "formats/json.h"
#include "lib/source/dialects/scheme.h"

// The schemes that configurations tell apart: NVFP4 with and without input scales, FP8 by its granularity,
// and MXFP8 as its own format.

namespace twofour {

namespace schemes {
inline const Scheme kFloat{};
inline const Scheme kNvfp4{.format = WeightFormat::kNvfp4, .has_input_scale = true};
inline const Scheme kNvfp4WeightOnly{.format = WeightFormat::kNvfp4};
inline const Scheme kFp8Tensor{.format = WeightFormat::kFp8};
inline const Scheme kFp8Row{.format = WeightFormat::kFp8, .granularity = Granularity::kRow};
/// The size of the blocks is left open.
inline const Scheme kFp8Blocks{.format = WeightFormat::kFp8, .granularity = Granularity::kBlock};
inline const Scheme kMxfp8{.format = WeightFormat::kMxfp8};
inline const Scheme kMxfp4{.format = WeightFormat::kMxfp4};
inline const Scheme kMxfp6{.format = WeightFormat::kMxfp6};
inline const Scheme kInt4{.format = WeightFormat::kInt4};
inline const Scheme kOther{.format = WeightFormat::kOther};
/// Returns FP8 in blocks of rows x cols weights; 0: the configuration does not state the size.
Scheme fp8_blocks(int64_t rows, int64_t cols);
}  // namespace schemes

/// True for FP8 in blocks of any size.
bool is_fp8_blocks(const Scheme& configured);

/// Returns the scheme of stored tensors in the form in which a configuration would state it.
Scheme as_configured(const Scheme& stored);
/// Returns the scheme of a configuration's entry: an entry of quantized_layers, a group of config_groups, a
/// config of method "fp8", or DeepSeek-V4's. null means floats.
Scheme configured_scheme(const Json& entry);

/// Returns the name of a scheme for messages and for the tables of engines' loaders: "unquantized", "NVFP4",
/// "NVFP4 without input scales", "FP8 by blocks" (with the size of blocks if `with_size`).
std::string scheme_label(const Scheme& configured, bool with_size = true);

/// The quantization of a module's inputs that a config states.
enum class InputPromise {
  kUnknown,  ///< nothing, or something that no rule here reads
  kFloats,   ///< not quantized
  kDynamic,  ///< quantized at run time, without a stored scale
  kStatic,   ///< quantized with a stored scale
};

/// An algorithm of ModelOpt or TensorRT-LLM. Each is one row.
struct Algorithm {
  const char* name;
  const Scheme& scheme;  ///< its scheme; kOther: a format that is not checked
  InputPromise inputs = InputPromise::kUnknown;
  bool scales_inputs_first = false;  ///< the algorithm has a pre_quant_scale
};
/// Returns the algorithm of that name; nullptr if it is unknown.
const Algorithm* find_algorithm(std::string_view name);

}  // namespace twofour
