#pragma once
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "kernels/device/device_memory.h"
#include "kernels/multiply/dense_multiply.h"
#include "kernels/multiply/sparse_multiply.h"

/// Random inputs of the kernel benches, in device memory.

namespace twofour {

/// The number of bytes through which benches rotate. It is several times the L2 cache of any device.
inline constexpr int64_t kRotation = 1'400'000'000;

/// The number of copies of `bytes` bytes that fill kRotation. At least 2.
int rotations(int64_t bytes);

/// Random bytes from the function `byte`, as a repeated pattern. Equal cache lines are far apart.
cuda::DeviceMemory random_bytes(int64_t bytes, const std::function<uint8_t(uint32_t)>& byte, unsigned seed);

uint8_t any_byte(uint32_t random);
uint8_t scale_byte(uint32_t random);  ///< an E4M3 block scale in the range of models
uint8_t legal_meta(uint32_t random);

/// Random numbers with magnitudes from 0.5 to 2 and either sign.
cuda::DeviceMemory random_bf16(int64_t count, unsigned seed);

/// The bytes of one expert that a multiplication reads: 7 for 16 weights in both 2:4 layouts, and 9 in NVFP4.
constexpr int64_t sparse_bytes(int64_t n, int64_t k) { return n * k / 16 * 7; }
constexpr int64_t dense_bytes(int64_t n, int64_t k) { return n * k / 16 * 9; }

/// Random 2:4 experts. Bytes of v7-packed are drawn as metadata, which is legal for all four kinds of its
/// bytes.
struct RandomSparse {
  std::vector<cuda::DeviceMemory> parts;
  cuda::DeviceMemory global_scale;
  cuda::SparseExperts experts;

  RandomSparse(cuda::SparseLayout layout, int64_t e, int64_t n, int64_t k);
  /// The experts of layer l, which are l * e to (l + 1) * e - 1.
  cuda::SparseExperts of_layer(int64_t l, int64_t e) const;
};

/// Random experts of several layers in g8.
struct RandomDense {
  cuda::DeviceMemory codes, scales, global_scale;
  cuda::DenseWeights weights;
  int64_t code_bytes, scale_bytes;  ///< bytes of one layer

  RandomDense(int64_t layers, int64_t e, int64_t n, int64_t k, bool gated);
  cuda::DenseWeights of_layer(int64_t l) const;
};

/// Draws different experts for each of `tokens` tokens. Results are ordered by token.
std::vector<int32_t> random_experts(std::mt19937& random, int experts, int tokens, int topk);

}  // namespace twofour
