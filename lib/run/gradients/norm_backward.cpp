#include <cmath>

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

}  // namespace twofour
