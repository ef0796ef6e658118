#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "formats/dtype.h"
#include "formats/weight_format.h"

namespace twofour {

/// The weights of FP8 that share a scale.
enum class Granularity { kTensor, kRow, kBlock };

/// How INT4 codes, 0 to 15, lie in I32 words, eight in each. Nibble 0 is the lowest four bits.
enum class Int4Packing {
  kAlongK,  ///< compressed-tensors: words [N, K/8], nibble i holds k + i
  kGptq,    ///< words [K/8, N], nibble i holds k + i
  kAwq,     ///< words [K, N/8], nibbles hold n + 0, 2, 4, 6, 1, 3, 5, 7
};
/// Codes in a word.
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
  /// True if ".weight" is absent, so that only the module's name shows that it is a stack of experts.
  bool bare;
  // For INT4, suffixes of tensors that may be absent; nullptr: the dialect has none.
  const char* zero_points = nullptr;
  const char* group_index = nullptr;
  const char* shape = nullptr;  ///< N and K
};

/// Every such dialect twofour reads. Sources: Hugging Face transformers,
/// integrations/{mxfp4,finegrained_fp8}.py; vllm-project/compressed-tensors, compressors;
/// NVIDIA/Model-Optimizer, modelopt/torch/export/quant_utils.py and examples/deepseek; AutoAWQ,
/// awq/modules/linear/gemm.py; AutoGPTQ, auto_gptq/nn_modules/qlinear.
std::span<const WeightDialect> weight_dialects();

/// FP8: rows and columns of weights that share a scale, if blocks are written.
inline constexpr int64_t kFp8Block = 128;

}  // namespace twofour
