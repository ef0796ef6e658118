#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/safetensors.h"

namespace twofour {

/// The encoding of the weights of a synthetic matrix.
enum class SynthEncoding {
  kNvfp4,
  kNvfp4FourOverSix,
  kFp8,    ///< scale = largest magnitude of a tile / 448
  kMxfp8,  ///< groups of 32; scale = the least power of two that brings them into E4M3
  kMxfp4,  ///< groups of 32; scale = the least power of two that brings them into E2M1
  kInt4,   ///< -8 .. 7; scale = largest magnitude of a group / 7
  kUint4,  ///< 0 .. 15 with a zero point; scale = range of a group / 15
};

/// The ways to store codes of 4 or 8 bits.
enum class SynthCodes {
  kBytes,    ///< [N, K]
  kNibbles,  ///< [N, K/2], the even k in the low nibble
  kBlocks,   ///< [E, N, K/32, 16], with two codes in a byte
  kPacked,   ///< I32 [N, K/8] of codes + 8, the lowest k in the low bits
  kAwq,      ///< I32 [K, N/8]; bits 4i to 4i + 3 hold column 0, 2, 4, 6, 1, 3, 5, 7 of eight
  kGptq,     ///< I32 [K/8, N] of codes + 8, the lowest k in the low bits
};

/// The kinds of tensors of a quantized matrix.
enum class SynthPart {
  kCodes,
  kScales,
  kGlobal,      ///< one scale above the others
  kInputScale,  ///< one scale of activations
  kKvScale,     ///< one scale of the KV cache
  kZeros,       ///< zero points, packed like the codes
  kShape,       ///< I64 [2], which holds N and K
  kGroups,      ///< I32 [K], the group of each column
};

/// A number format as one producer stores it. The texts for tensors are suffixes of the module's name.
struct SynthFormat {
  SynthEncoding encoding;
  SynthCodes codes;
  const char* weight;
  DType weight_type;
  const char* scale;
  DType scale_type;
  int64_t rows, columns;  ///< size of a tile that shares a scale; 0 for all
  const char* global = nullptr;
  const char* input = nullptr;
  size_t scalar_rank = 0;      ///< rank of single scales, [] or [1]
  bool divides = false;        ///< single scales are stored as their reciprocals
  bool powers_of_two = false;  ///< for FP8, scales are powers of two, rounded up
  bool shared = false;         ///< modules that are drawn together share a scale, under their parent's name
  const char* algorithm = nullptr;  ///< its name in ModelOpt's configs
};

/// A matrix [n, k], or a stack of `e` matrices.
struct SynthMatrix {
  std::string name;
  int64_t e, n, k;  ///< e = 0 if it is not a stack
  int64_t rows() const { return (e > 0 ? e : 1) * n; }
};

struct SynthTensor {
  TensorInfo info;
  SynthPart part;
};

/// The tensors of a quantized matrix. Throws Error if the dimensions do not fit the codes.
std::vector<SynthTensor> quantized_tensors(const SynthMatrix& matrix, const SynthFormat& format);

/// True if all scales of a matrix depend on the largest magnitude of the matrix.
bool needs_amax(const SynthFormat& format);
/// The smallest number of rows that can be encoded separately. They must begin at a multiple of this number.
/// 0 if all rows must be encoded together.
int64_t strip_rows(const SynthFormat& format);

/// A run of bytes of a tensor.
struct SynthBytes {
  SynthPart part;
  uint64_t offset;  ///< in the tensor
  std::vector<uint8_t> bytes;
};

/// Encodes `weights` [rows, k], which are rows of `matrix` from `row` on, and returns their codes and scales.
/// `amax` is the largest magnitude of the matrix, if needs_amax(). The result is the same on any machine.
std::vector<SynthBytes> encode_rows(const SynthMatrix& matrix, const SynthFormat& format, int64_t row,
                                    std::span<const float> weights, float amax);

/// The tensors of a matrix that do not depend on single weights. These are single scales, shape and groups.
/// `input` is the largest magnitude of the activations, from which the input scale follows.
std::vector<SynthBytes> encode_single(const SynthMatrix& matrix, const SynthFormat& format, float amax,
                                      float input);

// Formats of public checkpoints.
extern const SynthFormat kModelOptNvfp4, kModelOptNvfp4WeightOnly, kModelOptNvfp4FourOverSix,
    kModelOptNvfp4FourOverSixWeightOnly, kQuarkNvfp4, kCtNvfp4, kModelOptFp8, kModelOptFp8Table,
    kModelOptFp8Mtp, kModelOptFp8Pb, kModelOptMxfp8, kVendorMxfp8, kDeepSeekFp8, kDeepSeekV4Fp8,
    kDeepSeekV4BaseFp8, kLingFp8, kCtFp8Row, kCtFp8Block, kGptOssMxfp4, kDeepSeekV4Mxfp4, kLingMxfp4,
    kCtMxfp4, kCtInt4G32, kCtInt4G128, kAwqInt4, kGptqInt4;

}  // namespace twofour
