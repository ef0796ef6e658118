#pragma once
#include <cuda.h>

#include <cstdint>

namespace twofour::cuda {

/// Describes rows [rows, k] of BF16, on a multiple of 16 bytes and k a multiple of 8, to the tensor memory
/// accelerator (TMA), which copies boxes of `box_rows` rows and 64 k into shared memory: rows of 128 bytes
/// there, 16-byte chunk c of row r at place c ^ r % 8, as in describe_rows. Rows behind the last become zero.
CUtensorMap describe_boxes(const uint16_t* x, int64_t rows, int64_t k, int box_rows);

}  // namespace twofour::cuda
