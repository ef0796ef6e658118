#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/device/launch.cuh"

namespace twofour::cuda {

/// What a multiplication of rows by experts keeps in its workspace, bytes from its start.
struct MultiplyWorkspace {
  int64_t halves, factors;  ///< activations as its kernel reads them
  int64_t route, sorted;    ///< rows by expert: Route, and the rows in its order
  int64_t bytes;

  MultiplyWorkspace(int64_t half_bytes, int64_t factor_count, int64_t rows, int64_t experts) {
    halves = 0;
    factors = halves + align_up(half_bytes);
    route = factors + align_up(factor_count * 4);
    sorted = route + align_up(16 + std::min(rows, experts) * 16);
    bytes = sorted + align_up(rows * 4);
  }
};

}  // namespace twofour::cuda
