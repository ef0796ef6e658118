#include <algorithm>
#include <cmath>

#include "lib/base/threads/parallel.h"
#include "lib/run/gradients/blocks.h"

namespace twofour {

void add_norm_gradient(const float* x, int64_t m, std::span<const float> weight, double epsilon,
                       const float* dy, float* dx) {
  const auto size = static_cast<int64_t>(weight.size());
#pragma omp parallel for schedule(static) if (m * size > 4096)
  for (int64_t i = 0; i < m; ++i) {
    const float *row = x + i * size, *d = dy + i * size;
    double squares = 0, along = 0;  // along the row, the output does not grow
    for (int64_t j = 0; j < size; ++j) {
      const auto v = static_cast<double>(row[j]);
      squares += v * v;
      along += v * static_cast<double>(weight[static_cast<size_t>(j)]) * static_cast<double>(d[j]);
    }
    const double mean = squares / static_cast<double>(size) + epsilon, factor = 1.0 / std::sqrt(mean);
    const double back = along / (static_cast<double>(size) * mean);
    for (int64_t j = 0; j < size; ++j) {
      const double own = static_cast<double>(weight[static_cast<size_t>(j)]) * static_cast<double>(d[j]);
      dx[i * size + j] += static_cast<float>(factor * (own - back * static_cast<double>(row[j])));
    }
  }
}

std::vector<double> norm_weight_gradient(const float* x, int64_t m, int64_t size, double epsilon,
                                         const float* dy) {
  constexpr int64_t kColumns = 64;
  std::vector<double> factors(static_cast<size_t>(m)), sums(static_cast<size_t>(size));
  parallel_for(factors.size(), [&](size_t i) {
    const float* row = x + static_cast<int64_t>(i) * size;
    double squares = 0;
    for (int64_t j = 0; j < size; ++j) squares += static_cast<double>(row[j]) * static_cast<double>(row[j]);
    factors[i] = 1.0 / std::sqrt(squares / static_cast<double>(size) + epsilon);
  });
  // Rows are added in order, for any number of threads.
  parallel_for(static_cast<size_t>((size + kColumns - 1) / kColumns), [&](size_t strip) {
    const int64_t begin = static_cast<int64_t>(strip) * kColumns, end = std::min(size, begin + kColumns);
    for (int64_t i = 0; i < m; ++i) {
      const double factor = factors[static_cast<size_t>(i)];
      for (int64_t j = begin; j < end; ++j)
        sums[static_cast<size_t>(j)] +=
            factor * static_cast<double>(x[i * size + j]) * static_cast<double>(dy[i * size + j]);
    }
  });
  return sums;
}

}  // namespace twofour
