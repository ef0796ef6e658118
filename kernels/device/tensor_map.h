#pragma once
#include <cuda.h>

#include <cstdint>

namespace twofour::cuda {

/// Describes a BF16 matrix [rows, k] to the tensor memory accelerator (TMA). `x` is aligned to 16 bytes and
/// `k` is a multiple of 8. The TMA copies boxes of `box_rows` rows and 64 k into shared memory. There, rows
/// take 128 bytes, and 16-byte chunk c of row r is at place c ^ r % 8, as in describe_rows. Rows after the
/// last row become zero.
CUtensorMap describe_boxes(const uint16_t* x, int64_t rows, int64_t k, int box_rows);

}  // namespace twofour::cuda
