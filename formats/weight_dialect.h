#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "formats/dtype.h"

namespace twofour {

/// The number format of a linear's weights.
enum class WeightFormat { kFloat, kFp8, kMxfp4, kNvfp4 };
/// "floats", "FP8", "MXFP4" or "NVFP4".
const char* weight_format_name(WeightFormat format);
/// In twofour.json: "float", "fp8", "mxfp4" or "nvfp4".
const char* weight_format_key(WeightFormat format);

/// How many weights of FP8 share a scale.
enum class Granularity { kTensor, kRow, kBlock };

/// A set of element types.
class DTypes {
 public:
  template <class... T>
  constexpr DTypes(T... types) : bits_((0u | ... | (1u << static_cast<unsigned>(types)))) {}
  constexpr bool has(DType type) const { return bits_ >> static_cast<unsigned>(type) & 1u; }

 private:
  uint32_t bits_;
};

/// How a producer stores the weights of a linear, or of a stack of experts, in a format other than NVFP4
/// (those are in formats/dialect.h). Suffixes follow the module's name.
struct WeightDialect {
  const char* producers;
  WeightFormat format;
  const char* weight;  ///< suffix of values or codes
  DTypes weight_types;
  const char* scale;  ///< suffix; nullptr: the format has none
  DTypes scale_types;
  const char* input_scale;  ///< the tensor may be absent
  const char* bias;         ///< the tensor may be absent
  /// Without ".weight", so that the name alone must say that it is a stack of experts.
  bool bare;
};

/// Every such dialect twofour reads. Sources: Hugging Face transformers,
/// integrations/{mxfp4,finegrained_fp8}.py; vllm-project/compressed-tensors, compressors;
/// NVIDIA/Model-Optimizer, modelopt/torch/export/quant_utils.py and examples/deepseek.
std::span<const WeightDialect> weight_dialects();

/// FP8: rows and columns of weights that share a scale, in every dialect that has blocks.
inline constexpr int64_t kFp8Block = 128;
/// MXFP4 and MXFP8: weights along K that share a scale. Source: OCP Microscaling Formats (MX) v1.0, 5.2.
inline constexpr int64_t kMxGroup = 32;

/// Whether a matrix of that name is applied as one, by the last part of the module's name: an embedding is
/// looked up, a norm multiplies element by element, a convolution slides.
bool is_linear_name(std::string_view module);

}  // namespace twofour
