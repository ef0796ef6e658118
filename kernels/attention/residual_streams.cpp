#include "kernels/attention/residual_streams.h"

#include <algorithm>
#include <cmath>

#include "kernels/device/check.h"
#include "kernels/floats/float_multiply.h"

namespace twofour::cpu {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// The products of the mixer's rows with the norm of all streams of each token, [m, rows]. The norm has no
/// weight, so its factor comes after the products.
std::vector<float> normed_products(const StreamMixer& mixer, const float* x, int64_t m) {
  const int64_t width = mixer.streams * mixer.hidden, rows = static_cast<int64_t>(mixer.base.size());
  check(static_cast<int64_t>(mixer.weight.size()) == rows * width, "a row of weights for each number");
  std::vector<float> out(static_cast<size_t>(m * rows));
  multiply(x, m, mixer.weight.data(), rows, width, out.data(), rows);
#pragma omp parallel for schedule(static) if (m > 1)
  for (int64_t i = 0; i < m; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < width; ++j) {
      const auto v = static_cast<double>(x[i * width + j]);
      sum += v * v;
    }
    const auto factor =
        static_cast<float>(1 / std::sqrt(sum / static_cast<double>(width) + mixer.norm_epsilon));
    for (int64_t r = 0; r < rows; ++r) out[static_cast<size_t>(i * rows + r)] *= factor;
  }
  return out;
}

/// Divides numbers by their sum plus epsilon.
void divide_by_sum(double* first, int64_t count, int64_t step, double epsilon) {
  double sum = epsilon;
  for (int64_t i = 0; i < count; ++i) sum += first[i * step];
  for (int64_t i = 0; i < count; ++i) first[i * step] /= sum;
}

/// Sinkhorn's normalization of a matrix [n, n]: a softmax of each row; then columns; then rows and columns by
/// turns.
void normalize_mix(const StreamMixer& mixer, double* a) {
  const int64_t n = mixer.streams;
  for (int64_t row = 0; row < n; ++row) {
    double* x = a + row * n;
    const double most = *std::max_element(x, x + n);
    for (int64_t i = 0; i < n; ++i) x[i] = std::exp(x[i] - most);
    divide_by_sum(x, n, 1, 0);
    for (int64_t i = 0; i < n; ++i) x[i] += mixer.epsilon;
  }
  for (int64_t turn = 0; turn < mixer.iterations; ++turn) {
    for (int64_t row = 0; row < n && turn > 0; ++row) divide_by_sum(a + row * n, n, 1, mixer.epsilon);
    for (int64_t column = 0; column < n; ++column) divide_by_sum(a + column, n, n, mixer.epsilon);
  }
}

}  // namespace

StreamMix mix_streams(const StreamMixer& mixer, const float* x, int64_t m) {
  const int64_t n = mixer.streams, rows = 2 * n + n * n;
  check(static_cast<int64_t>(mixer.base.size()) == rows && mixer.scale.size() == 3, "the rows of a mixer");
  const std::vector<float> products = normed_products(mixer, x, m);
  StreamMix out;
  out.read.resize(static_cast<size_t>(m * n)), out.write.resize(out.read.size());
  out.mix.resize(static_cast<size_t>(m * n * n));
#pragma omp parallel for schedule(static) if (m > 16)
  for (int64_t i = 0; i < m; ++i) {
    std::vector<double> token(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      const size_t kind = r < n ? 0 : r < 2 * n ? 1 : 2;
      token[static_cast<size_t>(r)] = static_cast<double>(products[static_cast<size_t>(i * rows + r)]) *
                                          static_cast<double>(mixer.scale[kind]) +
                                      static_cast<double>(mixer.base[static_cast<size_t>(r)]);
    }
    for (int64_t j = 0; j < n; ++j) {
      const auto to = static_cast<size_t>(i * n + j);
      out.read[to] = static_cast<float>(sigmoid(token[static_cast<size_t>(j)]) + mixer.epsilon);
      out.write[to] = static_cast<float>(2 * sigmoid(token[static_cast<size_t>(n + j)]));
    }
    double* mix = token.data() + 2 * n;
    normalize_mix(mixer, mix);
    for (int64_t j = 0; j < n * n; ++j)
      out.mix[static_cast<size_t>(i * n * n + j)] = static_cast<float>(mix[j]);
  }
  return out;
}

std::vector<float> mix_for_head(const StreamMixer& mixer, const float* x, int64_t m) {
  std::vector<float> read = normed_products(mixer, x, m);
  for (size_t i = 0; i < read.size(); ++i) {
    const double logit = static_cast<double>(read[i]) * static_cast<double>(mixer.scale[0]) +
                         static_cast<double>(mixer.base[i % mixer.base.size()]);
    read[i] = static_cast<float>(sigmoid(logit) + mixer.epsilon);
  }
  return read;
}

void read_streams(std::span<const float> read, const float* x, int64_t streams, int64_t hidden, float* out) {
  const int64_t m = static_cast<int64_t>(read.size()) / streams;
#pragma omp parallel for schedule(static) if (m > 1)
  for (int64_t i = 0; i < m; ++i) {
    float* to = out + i * hidden;
    std::fill_n(to, hidden, 0.0f);
    for (int64_t j = 0; j < streams; ++j) {
      const float weight = read[static_cast<size_t>(i * streams + j)];
      const float* from = x + (i * streams + j) * hidden;
      for (int64_t c = 0; c < hidden; ++c) to[c] += weight * from[c];
    }
  }
}

void write_streams(const StreamMix& mix, const float* y, int64_t streams, int64_t hidden, float* x) {
  const int64_t m = static_cast<int64_t>(mix.write.size()) / streams;
#pragma omp parallel for schedule(static) if (m > 1)
  for (int64_t i = 0; i < m; ++i) {
    float* own = x + i * streams * hidden;
    const std::vector<float> before(own, own + streams * hidden);
    for (int64_t k = 0; k < streams; ++k) {
      const float weight = mix.write[static_cast<size_t>(i * streams + k)];
      float* to = own + k * hidden;
      for (int64_t c = 0; c < hidden; ++c) to[c] = weight * y[i * hidden + c];
      for (int64_t j = 0; j < streams; ++j) {
        // The mix is used transposed: stream j, the row, counts in stream k.
        const float part = mix.mix[static_cast<size_t>((i * streams + j) * streams + k)];
        const float* from = before.data() + j * hidden;
        for (int64_t c = 0; c < hidden; ++c) to[c] += part * from[c];
      }
    }
  }
}

}  // namespace twofour::cpu
