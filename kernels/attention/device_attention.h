#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/stream.h"

/// The operations between the products of a decoder's layer, on the device in float32. attention.h defines
/// them. Functions only put work on the caller's stream, and do not wait. They throw Error with CUDA's
/// message.

namespace twofour::cuda {

/// Computes x / sqrt(mean of x^2 + epsilon) * weight for each of `m` rows of `size` numbers. Rows of x and of
/// out are `stride` floats apart. x and out may be the same memory.
struct RmsNorm {
  const float* x = nullptr;
  int64_t stride = 0;
  const float* weight = nullptr;  ///< [size]
  int64_t m = 0, size = 0;
  double epsilon = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};
void rms_norm(const RmsNorm& norm, Stream stream);

/// Arguments for preparing heads for attention: each head is normalized, clipped and rotated.
struct HeadRows {
  int64_t m = 0, stride = 0;  ///< number of rows, and floats from one row to the next
  int64_t heads = 0, head_size = 0;
  int64_t head_stride = 0;      ///< floats from one head of x to the next; 0: head_size
  const float* x = nullptr;     ///< [m, heads, head_size]
  const float* norm = nullptr;  ///< [head_size], or nullptr
  double epsilon = 0;
  float clip = 0;                      ///< magnitude to which numbers are clamped; 0: not clamped
  const float* frequencies = nullptr;  ///< [pairs]
  int64_t pairs = 0;                   ///< number of pairs to rotate; 0: nothing is rotated
  float amplitude = 1;
  bool interleaved = false;
  int64_t rotated_from = 0;
  float* out = nullptr;  ///< row i begins at out + (place + i) * out_stride
  int64_t out_stride = 0;
  bool out_by_position = false;  ///< true: place is the position of row 0; false: place is 0
};
/// The largest number of HeadRows in one launch: queries, keys and values.
inline constexpr int kMostHeadRows = 3;
struct PreparedHeads {
  HeadRows rows[kMostHeadRows];
  int count = 0;
  int64_t begin = 0;  ///< the position of row 0
};
void prepare_heads(const PreparedHeads& heads, Stream stream);

/// Multiplies each head by the sigmoid of its gates: x[i, h, j] *= sigmoid(gates[i, h, j]).
struct HeadGates {
  int64_t m = 0, heads = 0, size = 0;
  const float* gates = nullptr;
  int64_t stride = 0, head_stride = 0;  ///< floats between rows and between heads of gates
  float* x = nullptr;                   ///< [m, heads, size]
};
void gate_heads(const HeadGates& gates, Stream stream);

/// Keys and values of latent attention. For each head, `both` holds the first head_size - rotated numbers of
/// the key, followed by the value. `low` holds the rotated numbers of a single key, which all heads share.
struct LatentHeads {
  int64_t m = 0, heads = 0, head_size = 0, value_size = 0, rotated = 0;
  const float* both = nullptr;  ///< [m, heads, head_size - rotated + value_size]
  const float* low = nullptr;   ///< [m, low_stride]; the last `rotated` numbers of a row are read
  int64_t low_stride = 0;
  float* keys = nullptr;    ///< [m, heads, head_size]
  float* values = nullptr;  ///< [m, heads, value_size]
};
void split_latent_heads(const LatentHeads& heads, Stream stream);

/// Causal attention of one sequence, like cpu::Attention but on the device.
struct DeviceAttention {
  int64_t queries = 0, keys = 0;  ///< `keys` is not read if `position` is set
  int64_t heads = 0, kv_heads = 0;
  int64_t head_size = 0, value_size = 0;
  const float* q = nullptr;  ///< rows [heads, head_size], `stride` floats apart
  int64_t stride = 0;
  const float* k = nullptr;      ///< [keys, kv_heads, head_size]
  const float* v = nullptr;      ///< [keys, kv_heads, value_size]
  const float* sinks = nullptr;  ///< [heads], or nullptr
  float scale = 1;
  int64_t window = 0;
  const int32_t* position = nullptr;  ///< position of the only query of attend_one(), in device memory
};
/// The largest size of a head or of its value.
inline constexpr int64_t kMostHeadSize = 256;

/// Writes softmax(scale q k) v to `out` [queries, heads, value_size]. Products run on tensor cores. Each
/// number is represented as the sum of two BF16 numbers, with an error of at most 2^-17 of the number. Sums
/// are in float32.
void attend(const DeviceAttention& in, float* out, Stream stream);

/// Computes attend() for one query, the token at *in.position. First prepares the query, key and value with
/// `heads`, and stores key and value in the caches: in.q is not read, and heads.rows[1] and [2] write to in.k
/// and in.v. Blocks share the keys. All sums are in float32. `workspace` must be zeroed before its first use;
/// later calls with the same sizes can reuse it one after the other.
size_t attend_one_workspace(const DeviceAttention& in);
void attend_one(const DeviceAttention& in, const PreparedHeads& heads, float* out, void* workspace,
                Stream stream);

}  // namespace twofour::cuda
