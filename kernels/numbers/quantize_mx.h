#pragma once
#include <cstdint>
#include <span>

#include "formats/dtype.h"
#include "formats/weight_format.h"
#include "kernels/device/isa.h"
#include "kernels/numbers/quantize.h"

namespace twofour {

/// The quantization of MXFP8, MXFP6 and MXFP4. 32 weights along K share a scale 2^e, and become E4M3, E2M3 or
/// E2M1 of weight / 2^e, saturating. With b the largest magnitude of the 32:
///   modelopt            e = ceil(log2(b / 448)), or b / 6, with the quotient and its logarithm in float32.
///                       So quotients a few places above a power of two have its logarithm. At least -127.
///                       E2M1 rounds ties towards zero, and zeros of either sign become code 0x8.
///                       Source: NVIDIA/Model-Optimizer,
///                       modelopt/torch/quantization/qtensor/mxfp{8,4}_tensor.py.
///   compressed_tensors  e = p - 8, or p - 2, with 2^p the largest power of two up to b, the next one from
///                       1.75 * 2^p on. At least -127. -0, and numbers that the weights' type rounds to it,
///                       lose their sign. Other negative weights that round to zero keep it. In FP16, whose
///                       smallest normal number is 2^-14, blocks below 2^-14 have p = -14, and blocks below
///                       0.75 * 2^-14 have the scale 1, under which all their weights are 0.
///                       For E2M3 e = p - 2, with the next power of two from 1.9375 * 2^p on, 0.9375 in the
///                       place of 0.75, and every sign is kept.
///                       Source: vllm-project/compressed-tensors, quantization/utils/mxfp_utils.py, with
///                       llm-compressor's default observer of weights.
/// A power p that FP16 lacks (from 57344 on) is used nevertheless; compressed-tensors writes infinity there.
struct MxRule {
  Arithmetic arithmetic = Arithmetic::modelopt;
  DType weight_type = DType::kF32;  ///< F32, BF16 or F16; does not change ModelOpt's bytes
};

/// Quantizes whole rows. `weights` is [n, k] and finite, k is a multiple of 32, and `rule.weight_type`
/// represents every weight. Writes `values` [n, k] as E4M3 bytes, and `scales` [n, k/32] as E8M0.
void quantize_mxfp8(const MxRule& rule, std::span<const float> weights, uint8_t* values, uint8_t* scales,
                    Isa isa = best_isa());
/// Does the same for MXFP4. Writes `codes` [n, k/2], two E2M1 codes in each byte, the lower k in the low
/// nibble.
void quantize_mxfp4(const MxRule& rule, std::span<const float> weights, uint8_t* codes, uint8_t* scales,
                    Isa isa = best_isa());
/// Does the same for MXFP6, which only compressed_tensors defines. Writes `codes` [n, 3k/4], four E2M3 codes
/// in three bytes, the lowest k in the lowest bits. One set of instructions serves all processors.
void quantize_mxfp6(const MxRule& rule, std::span<const float> weights, uint8_t* codes, uint8_t* scales);
/// Does the same for a format of kMxFormats.
inline void quantize_mx(WeightFormat format, const MxRule& rule, std::span<const float> weights,
                        uint8_t* codes, uint8_t* scales, Isa isa = best_isa()) {
  if (format->sixes) return quantize_mxfp6(rule, weights, codes, scales);
  (format->pairs ? quantize_mxfp4 : quantize_mxfp8)(rule, weights, codes, scales, isa);
}

/// Packs codes of one byte each as the format stores them: one, two or four of them in whole bytes.
void pack_codes(const CodeGrid& grid, std::span<const uint8_t> codes, uint8_t* out);

/// Counts the weights other than 0 that become 0 because FP16 has no power of two for their block. They are
/// in blocks below 2^-14, with compressed_tensors in F16. `back` holds the values that were written for the
/// weights. Both spans hold whole blocks of 32.
uint64_t count_lost_mx(const MxRule& rule, std::span<const float> weights, std::span<const float> back);

/// Computes the values of whole blocks of 32. A value is a number times 2^e, rounded once if float32 does not
/// represent it.
void dequantize_mxfp8(std::span<const uint8_t> values, std::span<const uint8_t> scales, float* out,
                      Isa isa = best_isa());
void dequantize_mxfp4(std::span<const uint8_t> codes, std::span<const uint8_t> scales, float* out,
                      Isa isa = best_isa());
void dequantize_mxfp6(std::span<const uint8_t> codes, std::span<const uint8_t> scales, float* out);
inline void dequantize_mx(WeightFormat format, std::span<const uint8_t> codes,
                          std::span<const uint8_t> scales, float* out, Isa isa = best_isa()) {
  if (format->sixes) return dequantize_mxfp6(codes, scales, out);
  (format->pairs ? dequantize_mxfp4 : dequantize_mxfp8)(codes, scales, out, isa);
}

}  // namespace twofour
