#include "kernels/floats/float_multiply.h"

#include <algorithm>

#include "kernels/floats/float_ops.h"

namespace twofour::cpu {

void multiply(const float* x, int64_t m, const float* w, int64_t n, int64_t k, float* out, int64_t stride,
              Isa isa) {
  constexpr int64_t kRows = 256, kColumns = 192;
  const FloatOps& ops = float_ops(isa);
  const int64_t down = (m + kRows - 1) / kRows, across = (n + kColumns - 1) / kColumns;
#pragma omp parallel for schedule(dynamic) if (down * across > 1)
  for (int64_t item = 0; item < down * across; ++item) {
    const int64_t i = item % down * kRows, j = item / down * kColumns;
    ops.multiply_rows(std::min(kRows, m - i), std::min(kColumns, n - j), k, {x + i * k, k}, {w + j * k, k},
                      out + i * stride + j, stride);
  }
}

}  // namespace twofour::cpu
