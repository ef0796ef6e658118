#pragma once
#include "kernels/device/ptx.cuh"
#include "kernels/floats/device_matrix.h"

/// A row of numbers in shared memory by which weights are multiplied, and how it is loaded.

namespace twofour::cuda {

/// The threads and warps of a block that multiplies a row.
inline constexpr int kRowThreads = 256, kRowWarps = kRowThreads / 32;

/// A row in shared memory. It holds the first four of every eight numbers, then the last four of every eight,
/// so that neighbouring lanes read adjacent 16 bytes. Zeros pad it to a multiple of 8.
struct SharedRow {
  float* data;
  int64_t half;  ///< number of floats

  __device__ float& at(int64_t k) const { return data[(k >> 2 & 1) * half + (k >> 3) * 4 + (k & 3)]; }
  __device__ float dot(int64_t k, const float (&w)[8]) const {
    const float4 a = *reinterpret_cast<const float4*>(data + (k >> 1));
    const float4 b = *reinterpret_cast<const float4*>(data + half + (k >> 1));
    return w[0] * a.x + w[1] * a.y + w[2] * a.z + w[3] * a.w + w[4] * b.x + w[5] * b.y + w[6] * b.z +
           w[7] * b.w;
  }
};

__device__ __forceinline__ float gate_unit(float gate, float up, const GateUnits& g) {
  if (g.limit > 0) {
    gate = fminf(gate, g.limit);
    up = fminf(fmaxf(up, -g.limit), g.limit);
  }
  return gate / (1.0f + expf(-g.slope * (gate + g.cubic * gate * gate * gate))) * (up + g.offset);
}

__device__ __forceinline__ float4 add_fours(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ __forceinline__ float4 gate_fours(const float4& gate, const float4& up, const GateUnits& g) {
  return make_float4(gate_unit(gate.x, up.x, g), gate_unit(gate.y, up.y, g), gate_unit(gate.z, up.z, g),
                     gate_unit(gate.w, up.w, g));
}
__device__ __forceinline__ float4 multiply_fours(const float4& a, const float4& b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ __forceinline__ float square_of_four(const float4& v) {
  return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
}

/// Loads a row of the input into shared memory. The norm's factor multiplies the finished products, so that
/// no product waits for it.
class InputRow {
 public:
  __device__ __forceinline__ InputRow(const RowInput& in, int64_t row, int64_t k, const SharedRow& to)
      : in_(in), k_(k), to_(to), x_(in.x + row * in.stride) {
    const auto is_wide = [](const float* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
    if (in.up != nullptr) up_ = in.up + row * in.stride;
    if (blockIdx.x == 0 && blockIdx.y == 0) sum_ = in.sum;
    is_wide_ =
        k % 4 == 0 && is_wide(x_) && is_wide(in.more) && is_wide(up_) && is_wide(in.norm) && is_wide(sum_);
  }

  /// Starts loading the weights of the norm, which do not depend on preceding kernels, and does not wait for
  /// them.
  __device__ __forceinline__ void prepare() {
    if (!is_wide_ || in_.norm == nullptr) return;
#pragma unroll
    for (int j = 0; j < kNormsAhead; ++j) norms_[j] = norm_at(first_ + j * kStep);
  }

  /// Loads the row in the form in which it is multiplied, without factor().
  __device__ __forceinline__ void load() const {
    const float squares = is_wide_ ? load_fours() : load_each();
    if (in_.norm != nullptr) {
      const float sum = sum_of_warp(squares);
      if (threadIdx.x % 32 == 0) sums()[threadIdx.x / 32] = sum;
    }
    __syncthreads();
  }

  /// The factor of the products of the row. Call it after the row is loaded.
  __device__ __forceinline__ float factor() const {
    if (in_.norm == nullptr) return 1;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kRowWarps; ++i) squares += sums()[i];
    return rsqrtf(__fdividef(squares, static_cast<float>(k_)) + static_cast<float>(in_.epsilon));
  }

 private:
  static constexpr int kFours = 4, kNormsAhead = 2, kStep = kRowThreads * 4;

  __device__ __forceinline__ float4 norm_at(int i) const {
    return i < k_ ? __ldg(reinterpret_cast<const float4*>(in_.norm + i)) : make_float4(0, 0, 0, 0);
  }

  __device__ __forceinline__ float4* place(int i) const { return reinterpret_cast<float4*>(&to_.at(i)); }

  __device__ __forceinline__ float* sums() const { return to_.data + 2 * to_.half; }  // [kRowWarps]

  /// Loads up to 16 numbers of a thread at once, four at a time.
  __device__ __forceinline__ float load_fours() const {
    const int padded = static_cast<int>(2 * to_.half), k = static_cast<int>(k_);
    float squares = 0;
#pragma unroll 1
    for (int first = first_; first < padded; first += kFours * kStep) {
      float4 values[kFours] = {};
#pragma unroll
      for (int j = 0; j < kFours; ++j) {
        const int i = first + j * kStep;
        if (i < k) values[j] = *reinterpret_cast<const float4*>(x_ + i);
      }
      const float* other = in_.more != nullptr ? in_.more : up_;
      if (other != nullptr) {
#pragma unroll
        for (int j = 0; j < kFours; ++j) {
          const int i = first + j * kStep;
          if (i >= k) continue;
          const float4 with = *reinterpret_cast<const float4*>(other + i);
          values[j] =
              in_.more != nullptr ? add_fours(values[j], with) : gate_fours(values[j], with, in_.gate);
        }
      }
#pragma unroll
      for (int j = 0; j < kFours; ++j) {
        const int i = first + j * kStep;
        if (i >= padded) continue;
        if (sum_ != nullptr && i < k) *reinterpret_cast<float4*>(sum_ + i) = values[j];
        if (in_.norm != nullptr) {
          squares += square_of_four(values[j]);
          values[j] = multiply_fours(values[j], j < kNormsAhead && first == first_ ? norms_[j] : norm_at(i));
        }
        *place(i) = values[j];
      }
    }
    return squares;
  }

  /// Loads the numbers of a thread one after the other.
  __device__ __forceinline__ float load_each() const {
    float squares = 0;
#pragma unroll 1
    for (int64_t i = threadIdx.x; i < 2 * to_.half; i += kRowThreads) {
      float v = i < k_ ? x_[i] : 0.0f;
      if (i < k_ && in_.more != nullptr) v += in_.more[i];
      if (i < k_ && sum_ != nullptr) sum_[i] = v;
      if (i < k_ && up_ != nullptr) v = gate_unit(v, up_[i], in_.gate);
      squares += v * v;
      to_.at(i) = i < k_ && in_.norm != nullptr ? v * in_.norm[i] : v;
    }
    return squares;
  }

  const RowInput& in_;
  int64_t k_;
  const SharedRow& to_;
  const float *x_, *up_ = nullptr;
  float* sum_ = nullptr;  ///< the output for x + more; may be null
  float4 norms_[kNormsAhead];
  int first_ = static_cast<int>(threadIdx.x) * 4;
  bool is_wide_ = false;
};

/// The shared memory that an InputRow takes for rows of `k` numbers, in bytes.
constexpr size_t row_shared(int64_t k) {
  return static_cast<size_t>((k + 7) / 8 * 8) * sizeof(float) + kRowWarps * sizeof(float);
}

}  // namespace twofour::cuda
