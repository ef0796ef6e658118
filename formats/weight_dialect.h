#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "formats/dtype.h"
#include "formats/weight_format.h"

namespace twofour {

/// The set of FP8 weights that share a scale.
enum class Granularity { kTensor, kRow, kBlock };

/// The packing of INT4 codes, 0 to 15, in I32 words of eight codes. Nibble 0 is the lowest four bits.
enum class Int4Packing {
  kAlongK,  ///< compressed-tensors: words are [N, K/8], and nibble i holds k + i
  kGptq,    ///< words are [K/8, N], and nibble i holds k + i
  kAwq,     ///< words are [K, N/8], and the nibbles hold n + 0, 2, 4, 6, 1, 3, 5, 7
};
/// The number of INT4 codes in a word.
inline constexpr int64_t kInt4Pack = 8;

/// A set of element types.
class DTypes {
 public:
  template <class... T>
  constexpr DTypes(T... types) : bits_((0u | ... | (1u << static_cast<unsigned>(types)))) {}
  constexpr bool has(DType type) const { return bits_ >> static_cast<unsigned>(type) & 1u; }

 private:
  uint32_t bits_;
};

/// The form in which a producer stores the weights of a linear or of a stack of experts in a format other
/// than NVFP4. The dialects of NVFP4 are in formats/dialect.h. A suffix follows the module's name.
struct WeightDialect {
  const char* producers;
  WeightFormat format;
  const char* weight;  ///< suffix of the tensor with values or codes
  DTypes weight_types;
  const char* scale;  ///< suffix of the scale; nullptr if the format has no scale
  DTypes scale_types;
  const char* input_scale;  ///< the tensor may be absent
  const char* bias;         ///< the tensor may be absent
  /// True if the name has no ".weight". Then only the module's name shows that the tensor is a stack of
  /// experts.
  bool bare;
  // Suffixes of tensors of INT4 that may be absent. nullptr if the dialect has no such tensor.
  const char* zero_points = nullptr;
  const char* group_index = nullptr;
  const char* shape = nullptr;  ///< suffix of the tensor that holds N and K
  /// Suffix of the F32 scale that multiplies block scales of the whole matrix. nullptr if the format has
  /// none.
  const char* global_scale = nullptr;
};

/// All dialects of formats other than NVFP4 that twofour reads. Sources: Hugging Face transformers,
/// integrations/{mxfp4,finegrained_fp8}.py; vllm-project/compressed-tensors, compressors;
/// NVIDIA/Model-Optimizer, modelopt/torch/export/quant_utils.py and examples/deepseek; AutoAWQ,
/// awq/modules/linear/gemm.py; AutoGPTQ, auto_gptq/nn_modules/qlinear.
std::span<const WeightDialect> weight_dialects();

/// True if the number of bytes of codes for each scale does not tell another row from `dialect`, whose names
/// and types fit. Shapes are those of the codes and of their scales.
bool fits_scales(const WeightDialect& dialect, std::span<const int64_t> codes,
                 std::span<const int64_t> scales);

/// True if a matrix of codes has as many bytes for each scale as MXFP6.
bool are_sixes(std::span<const int64_t> codes, std::span<const int64_t> scales);

/// The number of rows and of columns of weights that share a scale when FP8 is written in blocks.
inline constexpr int64_t kFp8Block = 128;

}  // namespace twofour
