#pragma once
#include <cstdint>

#include "formats/dtype.h"

struct CUstream_st;  // the type that cudaStream_t points to

namespace twofour::cuda {

/// A cudaStream_t, declared so that callers need no CUDA header. Null is the default stream.
using Stream = CUstream_st*;

/// The number formats of activations on the device.
enum class Float : int32_t { f32, bf16, f16 };

/// The number of bytes of one number.
constexpr int64_t size_of(Float type) { return type == Float::f32 ? 4 : 2; }

/// The element type of such numbers in a file.
constexpr DType dtype_of(Float type) {
  return type == Float::f32 ? DType::kF32 : type == Float::bf16 ? DType::kBF16 : DType::kF16;
}

}  // namespace twofour::cuda
