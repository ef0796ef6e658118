#include "lib/prove/expected/expected_hessian.h"

#include <xtensor/xadapt.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xnoalias.hpp>
#include <xtensor/xview.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace twofour {
namespace {

constexpr double kFarFromOne = 4294967296;  // 2^32

using Vector = xt::xtensor<double, 1>;
using Matrix = xt::xtensor_container<std::vector<double>, 2>;

/// Columns [begin, end) of row i.
template <class Array>
auto row_of(Array& a, size_t i, size_t begin, size_t end) {
  return xt::view(a, i, xt::range(begin, end));
}

/// The diagonal of H [k, k].
Vector diagonal_of(std::span<const float> hessian, size_t k) {
  return xt::view(xt::adapt(hessian.data(), {k * k}), xt::range(size_t{0}, k * k, k + 1));
}

/// The diagonal of H + lambda I, and lambda. `diagonal` [k] is the diagonal of H. A 0 in it counts as 1.
std::pair<Vector, double> damped(const Vector& diagonal, double damping) {
  const Vector own = xt::where(xt::equal(diagonal, 0.0), 1.0, diagonal);
  const double lambda = damping * xt::mean(own)();
  return {own + lambda, lambda};
}

/// H + lambda I, and lambda. `hessian` has the upper triangle of H [k, k]. Numbers outside of the diagonal
/// are multiplied by `kept` and rounded to float32.
std::pair<Matrix, double> damped(std::span<const float> hessian, size_t k, double damping, double kept) {
  const auto h = xt::adapt(hessian.data(), {k, k});
  const auto [diagonal, lambda] = damped(diagonal_of(hessian, k), damping);
  Matrix out = Matrix::from_shape({k, k});
  for (size_t i = 0; i < k; ++i) {
    xt::noalias(row_of(out, i, i, k)) = xt::cast<float>(kept * xt::cast<double>(row_of(h, i, i, k)));
    xt::noalias(xt::view(out, xt::range(i, k), i)) = row_of(out, i, i, k);
    out(i, i) = diagonal(i);
  }
  return {std::move(out), lambda};
}

/// Replaces the upper triangle of A [k, k] by the upper triangular R with R'R = A.
void factorize(Matrix& a) {
  const size_t k = a.shape(0);
  for (size_t p = 0; p < k; ++p) {
    a(p, p) = std::sqrt(a(p, p));
    xt::noalias(row_of(a, p, p + 1, k)) /= a(p, p);
    for (size_t i = p + 1; i < k; ++i) xt::noalias(row_of(a, i, i, k)) -= row_of(a, p, i, k) * a(p, i);
  }
}

/// Computes the inverse of R', row by row, for an upper triangular R [k, k]. The result is lower triangular.
/// It replaces the diagonal of R and the elements below it.
void invert_transposed(Matrix& r) {
  for (size_t i = 0; i < r.shape(0); ++i) {
    auto own = row_of(r, i, 0, i);
    own.fill(0);
    for (size_t t = 0; t < i; ++t) {
      xt::noalias(row_of(r, i, 0, t + 1)) -= row_of(r, t, 0, t + 1) * r(t, i);
    }
    xt::noalias(own) /= r(i, i);
    r(i, i) = 1 / r(i, i);
  }
}

}  // namespace

ExpectedMean expect_mean(std::vector<float> numbers, int64_t k) {
  const auto n = static_cast<size_t>(k);
  const Vector diagonal =
      numbers.size() == n ? Vector(xt::adapt(numbers.data(), {n})) : diagonal_of(numbers, n);
  const auto seen = static_cast<double>(xt::count_nonzero(diagonal)());
  double average = xt::sum(diagonal)() / seen;  // NaN if there are no numbers
  ExpectedMean out{std::move(numbers)};
  if (!(average < 1 / kFarFromOne || average > kFarFromOne)) return out;
  for (; average >= 4; average /= 4) out.unit /= 4;
  for (; average < 1; average *= 4) out.unit *= 4;
  for (float& x : out.numbers) x = static_cast<float>(static_cast<double>(x) * out.unit);
  return out;
}

ExpectedHessian expect_hessian(std::span<const float> hessian, int64_t k, double damping, double shrink,
                               bool with_factor) {
  auto [a, lambda] = damped(hessian, static_cast<size_t>(k), damping, 1 - shrink);
  ExpectedHessian out{k, lambda, std::vector<float>(a.size()), {}};
  xt::noalias(xt::adapt(out.matrix.data(), {k, k})) = xt::cast<float>(a);
  if (!with_factor) return out;
  std::reverse(a.begin(), a.end());  // reverses rows and columns
  factorize(a);
  invert_transposed(a);
  std::reverse(a.begin(), a.end());
  out.factor.resize(a.size());
  xt::noalias(xt::adapt(out.factor.data(), {k, k})) = xt::cast<float>(xt::triu(a));
  return out;
}

std::vector<float> expect_diagonal(std::span<const float> diagonal, double damping) {
  const Vector out = damped(xt::adapt(diagonal.data(), {diagonal.size()}), damping).first;
  return {out.begin(), out.end()};
}

std::vector<float> expect_importance(std::span<const float> diagonal) {
  std::vector<float> out;
  for (size_t i = 0; i < diagonal.size(); ++i) {
    bool is_dead = true;
    for (size_t j = i - i % 16; j < std::min(i - i % 16 + 16, diagonal.size()); ++j)
      is_dead = is_dead && diagonal[j] == 0;
    out.push_back(is_dead ? 1.0f : diagonal[i]);
  }
  return out;
}

ExpectedInverse::ExpectedInverse(std::span<const float> hessian, int64_t k, double damping) {
  Matrix a = damped(hessian, static_cast<size_t>(k), damping, 1).first;
  std::reverse(a.begin(), a.end());
  factorize(a);
  factor_ = std::move(a.storage());
}

void ExpectedInverse::multiply(std::span<float> row) const {
  const size_t n = row.size();
  const auto factor = xt::adapt(factor_.data(), {n, n});
  std::vector<double> numbers(row.rbegin(), row.rend());
  auto x = xt::adapt(numbers.data(), {n});
  for (size_t i = 0; i < n; ++i) {
    x(i) /= factor(i, i);
    xt::noalias(xt::view(x, xt::range(i + 1, n))) -= row_of(factor, i, i + 1, n) * x(i);
  }
  for (size_t i = n; i-- > 0; x(i) /= factor(i, i)) {
    for (size_t j = n; j-- > i + 1;) x(i) -= factor(i, j) * x(j);
  }
  std::transform(numbers.rbegin(), numbers.rend(), row.begin(),
                 [](double v) { return static_cast<float>(v); });
}

double expect_float_form(std::span<const float> hessian, std::span<const float> e) {
  const auto given = xt::adapt(e.data(), {e.size()});
  // Numbers whose squares exceed the range of float32 are scaled by a power of two, which is exact.
  int power = 0;
  const float largest = xt::amax(xt::abs(given))();
  if (largest > 1e9f || (largest > 0 && largest < 1e-9f)) std::frexp(largest, &power);
  const xt::xtensor<float, 1> near_one = xt::cast<double>(given) * std::ldexp(1.0, -power);
  xt::xtensor<float, 1> products = xt::zeros_like(near_one);
  // By hand, four rows of H at a time, because this product takes most of the time of a proof. Each sum is
  // added in the order of rows.
  const size_t k = e.size();
  float* sums = products.data();
  size_t i = 0;
  for (; i + 4 <= k; i += 4) {
    const float* h = hessian.data() + i * k;
    const float a = near_one(i), b = near_one(i + 1), c = near_one(i + 2), d = near_one(i + 3);
    for (size_t j = 0; j < k; ++j)
      sums[j] = sums[j] + a * h[j] + b * h[k + j] + c * h[2 * k + j] + d * h[3 * k + j];
  }
  for (; i < k; ++i) xt::noalias(products) += near_one(i) * xt::adapt(hessian.data() + i * k, {k});
  return std::ldexp(xt::sum(xt::cast<double>(near_one) * xt::cast<double>(products))(), 2 * power);
}

double expect_form(std::span<const float> hessian, std::span<const float> e) {
  const auto h = xt::adapt(hessian.data(), {e.size(), e.size()});
  const Vector own = xt::adapt(e.data(), {e.size()});
  return xt::sum(xt::sum(xt::cast<double>(h) * own, {1}) * own)();
}

}  // namespace twofour
