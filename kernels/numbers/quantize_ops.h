#pragma once
#include <cstdint>

// Files that are compiled for one instruction set include this file. Nothing here may emit a function: the
// linker might keep the copy that only the newest processors can run. So <cstdint> is the only standard
// header.

namespace twofour {

enum class Isa;

/// The type to which compressed-tensors rounds the quotient of a block's largest magnitude.
enum class RoundTo { f32, bf16, f16 };

/// A QuantizeRule and a GlobalScale in the form that instruction sets use. The global scale is positive and
/// finite.
struct BlockScaleChoice {
  enum Choice { max, mse, four_over_six };

  bool compressed_tensors;
  bool keeps_zero;  ///< true for ZeroBlock::zero
  Choice choice;
  RoundTo quotient;
  float stored;  ///< the global scale
  // For ModelOpt. Names and meanings are as in quantize.cpp.
  float six_g, sixth, scale_max, to_e4m3, from_e4m3;
  // Tables for mse, indexed by the byte of a block scale, 1 .. 126.
  const float* steps;     ///< the value of code 1.0: E4M3 times a number, rounded three times at most, within
                          ///< 2^-60 .. 2^60
  const uint8_t* chosen;  ///< the block scale to store if the index wins; three spare bytes follow
  /// Quantizes one block, for the few that the vectors skip.
  void (*one_block)(const void* context, const float* x, uint8_t* codes, uint8_t* scale);
  const void* context;
};

/// An MxRule in the form that instruction sets use.
struct MxPlan {
  bool compressed_tensors, is_half;
  float largest;  ///< the largest number of the format: 6 or 448
  const float*
      limits;      ///< for ModelOpt: by exponent bits, the largest quotient that does not take the next scale
  int offset;      ///< for compressed-tensors, the exponent of the format's largest power of two
  float smallest;  ///< for compressed-tensors, quotients up to this magnitude lose their sign
};

/// Sums like QuantizeError's, in lanes. Number i goes to lane i % 16.
struct ErrorLanes {
  double weights[16], errors[16], products[16], largest[16];
};

/// The functions for one instruction set. All give the same bytes as the portable loops. Each function
/// processes as many of the `count` items (numbers, or blocks of sixteen) as fill its vectors, beginning with
/// the first. It returns the number of processed items.
struct QuantizeOps {
  int64_t (*widen_bf16)(const uint8_t* bytes, int64_t count, float* out);
  int64_t (*widen_f16)(const uint8_t* bytes, int64_t count, float* out);
  int64_t (*round_to_bf16)(const float* x, int64_t count, uint8_t* out);
  /// Processes whole groups if groups fill vectors; see casts.h.
  int64_t (*decode_int4)(const uint8_t* codes, int64_t count, int64_t group, const float* zero_points,
                         const float* scales, float* out);
  /// Raises `largest` to the largest magnitude. Both are the bits of floats.
  int64_t (*largest_magnitude)(const float* x, int64_t count, int32_t& largest);
  int64_t (*quantize)(const BlockScaleChoice& plan, const float* x, int64_t blocks, uint8_t* codes,
                      uint8_t* scales);
  /// `step` holds the step of each of the 256 block scales.
  int64_t (*dequantize)(const float* step, const uint8_t* codes, const uint8_t* scales, int64_t blocks,
                        float* out);
  int64_t (*add_errors)(const float* weights, const float* values, int64_t count, ErrorLanes& sums);
  /// Adds only to ErrorLanes::weights.
  int64_t (*add_squares)(const float* weights, int64_t count, double* sums);
  int64_t (*encode_fp8)(const float* x, int64_t count, float scale, uint8_t* out);
  int64_t (*decode_fp8)(const uint8_t* bytes, int64_t count, float scale, float* out);
  /// Looks up blocks of 32 codes in tables of 16 bytes. Block i uses table which[i].
  int64_t (*look_up_codes)(const uint8_t* tables, const uint8_t* codes, const uint8_t* which, int64_t blocks,
                           uint8_t* out);
  /// `count` is a multiple of four.
  int64_t (*prune_2_4)(float* x, int64_t count);
  /// Functions that process blocks of 32.
  int64_t (*quantize_mxfp8)(const MxPlan& plan, const float* x, int64_t blocks, uint8_t* values,
                            uint8_t* scales);
  int64_t (*quantize_mxfp4)(const MxPlan& plan, const float* x, int64_t blocks, uint8_t* codes,
                            uint8_t* scales);
};

extern const QuantizeOps kQuantizeAvx2;
extern const QuantizeOps kQuantizeAvx512;

/// The vector functions for `isa`, which must be available. Null for the portable instruction set and NEON.
const QuantizeOps* quantize_ops(Isa isa);

}  // namespace twofour
