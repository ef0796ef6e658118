#include "lib/expected/expected_hessian.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace twofour {
namespace {

constexpr double kFarFromOne = 4294967296;  // 2^32

double mean_of(std::span<const float> diagonal) {
  double sum = 0;
  for (const float d : diagonal) sum += d == 0 ? 1.0 : static_cast<double>(d);
  return sum / static_cast<double>(diagonal.size());
}

double with_damping(float d, double lambda) { return (d == 0 ? 1.0 : static_cast<double>(d)) + lambda; }

/// A matrix with rows of its own.
using Rows = std::vector<std::vector<double>>;

/// Upper R with R'R = A, of the upper triangle of A, which R replaces.
void factorize(Rows& a) {
  const size_t k = a.size();
  for (size_t p = 0; p < k; ++p) {
    std::vector<double>& pivot = a[p];
    pivot[p] = std::sqrt(pivot[p]);
    for (size_t j = p + 1; j < k; ++j) pivot[j] /= pivot[p];
    for (size_t i = p + 1; i < k; ++i) {
      const double own = pivot[i];
      double* row = a[i].data();
      for (size_t j = i; j < k; ++j) row[j] -= pivot[j] * own;
    }
  }
}

/// The inverse of R' for an upper R: lower, a row after the other.
Rows inverse_of_transposed(const Rows& r) {
  const size_t k = r.size();
  Rows x(k);
  for (size_t i = 0; i < k; ++i) {
    x[i].assign(i + 1, 0.0);
    for (size_t t = 0; t < i; ++t) {
      const double own = r[t][i];
      for (size_t j = 0; j <= t; ++j) x[i][j] -= x[t][j] * own;
    }
    for (size_t j = 0; j < i; ++j) x[i][j] /= r[i][i];
    x[i][i] = 1 / r[i][i];
  }
  return x;
}

}  // namespace

ExpectedMean expect_mean(std::vector<float> numbers, int64_t k) {
  const auto n = static_cast<size_t>(k);
  double total = 0;
  int seen = 0;
  for (size_t j = 0; j < n; ++j) {
    const float d = numbers.size() == n ? numbers[j] : numbers[j * n + j];
    if (d == 0) continue;
    total += static_cast<double>(d);
    ++seen;
  }
  ExpectedMean out{std::move(numbers)};
  if (seen == 0) return out;
  double average = total / seen;
  if (average >= 1 / kFarFromOne && average <= kFarFromOne) return out;
  for (; average >= 4; average /= 4) out.unit /= 4;
  for (; average < 1; average *= 4) out.unit *= 4;
  for (float& x : out.numbers) x = static_cast<float>(static_cast<double>(x) * out.unit);
  return out;
}

ExpectedHessian expect_hessian(std::span<const float> hessian, int64_t k, double damping, bool with_factor) {
  const auto n = static_cast<size_t>(k);
  std::vector<float> diagonal;
  for (size_t j = 0; j < n; ++j) diagonal.push_back(hessian[j * n + j]);
  ExpectedHessian out;
  out.k = k;
  out.lambda = damping * mean_of(diagonal);
  out.matrix.resize(n * n);
  Rows reversed(n, std::vector<double>(n));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i; j < n; ++j) {
      const float h = hessian[i * n + j];
      const double number = i == j ? with_damping(h, out.lambda) : static_cast<double>(h);
      out.matrix[i * n + j] = out.matrix[j * n + i] = static_cast<float>(number);
      reversed[n - 1 - j][n - 1 - i] = number;
    }
  }
  if (!with_factor) return out;
  factorize(reversed);
  const Rows inverse = inverse_of_transposed(reversed);
  out.factor.resize(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i; j < n; ++j) out.factor[i * n + j] = static_cast<float>(inverse[n - 1 - i][n - 1 - j]);
  }
  return out;
}

std::vector<float> expect_diagonal(std::span<const float> diagonal, double damping) {
  const double lambda = damping * mean_of(diagonal);
  std::vector<float> out;
  for (const float d : diagonal) out.push_back(static_cast<float>(with_damping(d, lambda)));
  return out;
}

ExpectedInverse::ExpectedInverse(std::span<const float> hessian, int64_t k, double damping) {
  const auto n = static_cast<size_t>(k);
  std::vector<float> diagonal;
  for (size_t j = 0; j < n; ++j) diagonal.push_back(hessian[j * n + j]);
  const double lambda = damping * mean_of(diagonal);
  factor_.assign(n, std::vector<double>(n));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i; j < n; ++j) {
      const float h = hessian[i * n + j];
      factor_[n - 1 - j][n - 1 - i] = i == j ? with_damping(h, lambda) : static_cast<double>(h);
    }
  }
  factorize(factor_);
}

void ExpectedInverse::multiply(std::span<float> row) const {
  const size_t n = row.size();
  std::vector<double> x(row.rbegin(), row.rend());
  for (size_t i = 0; i < n; ++i) {
    x[i] /= factor_[i][i];
    for (size_t j = i + 1; j < n; ++j) x[j] -= factor_[i][j] * x[i];
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t j = n; j-- > i + 1;) x[i] -= factor_[i][j] * x[j];
    x[i] /= factor_[i][i];
  }
  for (size_t i = 0; i < n; ++i) row[n - 1 - i] = static_cast<float>(x[i]);
}

double expect_float_form(std::span<const float> hessian, std::span<const float> e) {
  const size_t k = e.size();
  std::vector<float> products(k);
  // What float32 cannot square is taken as a multiple of a power of two, and is exact as such.
  int power = 0;
  float largest = 0;
  for (const float x : e) largest = std::max(largest, std::abs(x));
  if (largest > 1e9f || (largest > 0 && largest < 1e-9f)) std::frexp(largest, &power);
  std::vector<float> near_one(e.begin(), e.end());
  for (float& x : near_one) x = static_cast<float>(std::ldexp(static_cast<double>(x), -power));
  for (size_t i = 0; i < k; ++i) {
    const float own = near_one[i];
    for (size_t j = 0; j < k; ++j) products[j] += own * hessian[i * k + j];
  }
  double form = 0;
  for (size_t j = 0; j < k; ++j) form += static_cast<double>(near_one[j]) * static_cast<double>(products[j]);
  return std::ldexp(form, 2 * power);
}

double expect_form(std::span<const float> hessian, std::span<const float> e) {
  const size_t k = e.size();
  double form = 0;
  for (size_t i = 0; i < k; ++i) {
    if (e[i] == 0) continue;
    double product = 0;
    for (size_t j = 0; j < k; ++j)
      product += static_cast<double>(hessian[i * k + j]) * static_cast<double>(e[j]);
    form += product * static_cast<double>(e[i]);
  }
  return form;
}

}  // namespace twofour
