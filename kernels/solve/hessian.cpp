#include "kernels/solve/hessian.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "kernels/device/check.h"
#include "kernels/solve/solve_ops.h"

namespace twofour {
namespace {

constexpr int64_t kPanel = 64;  // rows of a factor that are computed together, and columns per thread

/// Calls f(first, last) for ranges that divide [begin, end) among threads.
template <class F>
void for_each_panel(int64_t begin, int64_t end, int threads, F&& f) {
  const int64_t parts = (end - begin + kPanel - 1) / kPanel;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (int64_t p = 0; p < parts; ++p) f(begin + p * kPanel, std::min(begin + (p + 1) * kPanel, end));
}

double damping_of(std::span<const float> diagonal, int64_t stride, int64_t k, double damping) {
  double sum = 0;
  for (int64_t j = 0; j < k; ++j) {
    const float d = diagonal[static_cast<size_t>(j * stride)];
    if (!std::isfinite(d) || d < 0) {
      throw Error(fmt::format("column {}: expected a finite sum of squares, found {}", j, d));
    }
    sum += d == 0 ? 1 : double{d};
  }
  return damping * (sum / static_cast<double>(k));
}

double damped(float d, double lambda) { return (d == 0 ? 1 : double{d}) + lambda; }

/// The factorization L L' of the reversed Hd of order k. One array [k, k] holds L' in the upper triangle.
/// Diagonals are stored separately.
class Cholesky {
 public:
  Cholesky(std::span<const float> hessian, int64_t k, double lambda, double shrink, int threads, Isa isa)
      : k_(k), threads_(threads), ops_(solve_ops(isa)), numbers_(static_cast<size_t>(k * k)) {
    for_each_panel(0, k, threads, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        for (int64_t j = i; j < k; ++j) {  // the upper triangle of H, read from its end
          const float h = hessian[static_cast<size_t>((k - 1 - j) * k + k - 1 - i)];
          at(i, j) = i == j ? damped(h, lambda) : double{shrunk(h, shrink)};
        }
      }
    });
    factorize();
  }

  double& at(int64_t i, int64_t j) { return numbers_[static_cast<size_t>(i * k_ + j)]; }
  const double& at(int64_t i, int64_t j) const { return numbers_[static_cast<size_t>(i * k_ + j)]; }

  /// Writes L^-1 to the lower triangle, including the diagonal.
  void invert() {
    for (int64_t first = 0; first < k_; first += kPanel) {
      const int64_t last = std::min(first + kPanel, k_);
      for_each_panel(0, last, threads_,
                     [&](int64_t left, int64_t right) { invert_part(first, last, left, right); });
    }
  }

  /// Computes x := (L L')^-1 x for kVectors vectors [k, kVectors]. Several known numbers are subtracted at
  /// once.
  void solve(double* x) const {
    for (int64_t first = 0; first < k_; first += kPanel) {
      const int64_t last = std::min(first + kPanel, k_);
      for (int64_t i = first; i < last; ++i) {
        divide(x, i);
        subtract_known(x, i, 1, 1, i + 1, last);
      }
      subtract_known(x, first, last - first, 1, last, k_);
    }
    for (int64_t last = k_; last > 0;) {
      const int64_t first = (last - 1) / kPanel * kPanel;
      for (int64_t i = last - 1; i >= first; --i) {
        divide(x, i);
        subtract_known(x, i, 1, -1, first, i);
      }
      subtract_known(x, last - 1, last - first, -1, 0, first);
      last = first;
    }
  }

  /// Returns U of DampedHessian, which is L^-1, transposed and reversed. Call invert() before.
  std::vector<float> factor() const {
    std::vector<float> out(numbers_.size());
    for (int64_t i = 0; i < k_; ++i) {
      for (int64_t j = i; j < k_; ++j)
        out[static_cast<size_t>(i * k_ + j)] = static_cast<float>(at(k_ - 1 - i, k_ - 1 - j));
    }
    return out;
  }

  int64_t k() const { return k_; }
  int threads() const { return threads_; }

  static constexpr int64_t kVectors = 64;  // number of vectors that are solved together

 private:
  /// Subtracts a sum from rows [first, last) and columns [left, right). The sum is over rows t in [begin,
  /// end) of number `row` of t times number `column` of t.
  void subtract(int64_t begin, int64_t end, int64_t first, int64_t last, int64_t left, int64_t right) {
    ops_.subtract_products({&at(begin, first), k_, 1, &at(begin, left), k_, &at(first, left), k_, end - begin,
                            last - first, right - left});
  }

  /// Subtracts `count` known numbers of each vector from its numbers [first, last). The known numbers begin
  /// at i and go upwards or downwards (`step` 1 or -1).
  void subtract_known(double* x, int64_t i, int64_t count, int64_t step, int64_t first, int64_t last) const {
    if (first >= last) return;
    const bool is_below = step > 0;  // numbers are at (i, row) if true, otherwise at (row, i)
    ops_.subtract_products({is_below ? &at(i, first) : &at(first, i), is_below ? k_ : -1, is_below ? 1 : k_,
                            x + i * kVectors, step * kVectors, x + first * kVectors, kVectors, count,
                            last - first, kVectors});
  }

  void divide(double* x, int64_t i) const {
    for (int64_t v = 0; v < kVectors; ++v) x[i * kVectors + v] /= diagonal_[static_cast<size_t>(i)];
  }

  void factorize() {
    diagonal_.resize(static_cast<size_t>(k_));
    for (int64_t first = 0; first < k_; first += kPanel) {
      const int64_t last = std::min(first + kPanel, k_);
      const auto subtract_earlier = [&](int64_t left, int64_t right) {
        subtract(0, first, first, last, left, right);
      };
      for_each_panel(first, k_, threads_, subtract_earlier);
      for (int64_t i = first; i < last; ++i) {
        finish_row(first, i, i, last);
        const double pivot = at(i, i);
        if (!(pivot > 0) || !std::isfinite(pivot)) throw_indefinite(k_ - 1 - i, pivot);
        diagonal_[static_cast<size_t>(i)] = std::sqrt(pivot);
        for (int64_t j = i + 1; j < last; ++j) at(i, j) /= diagonal_[static_cast<size_t>(i)];
      }
      for_each_panel(last, k_, threads_, [&](int64_t left, int64_t right) {
        for (int64_t i = first; i < last; ++i) {
          finish_row(first, i, left, right);
          for (int64_t j = left; j < right; ++j) at(i, j) /= diagonal_[static_cast<size_t>(i)];
        }
      });
    }
  }

  /// Subtracts the rows of the panel above row i from its columns.
  void finish_row(int64_t first, int64_t i, int64_t left, int64_t right) {
    if (i > first && right > left) subtract(first, i, i, i + 1, left, right);
  }

  /// Computes rows [first, last) of L^-1, in columns [left, right) up to the diagonal.
  void invert_part(int64_t first, int64_t last, int64_t left, int64_t right) {
    right = std::min(right, last);
    for (int64_t i = first; i < last; ++i) {
      for (int64_t j = left; j < std::min(right, i); ++j) at(i, j) = 0;
    }
    if (left < first) {
      const int64_t corner = std::min(right, first);
      for (int64_t t = left; t < corner; ++t) {  // the rows above may end within these columns
        subtract(t, t + 1, first, last, left, t + 1);
      }
      if (corner < first) subtract(corner, first, first, last, left, right);
    }
    for (int64_t i = first; i < last; ++i) {
      const int64_t end = std::min(right, i);
      for (int64_t t = first; t < i && left < end; ++t) {
        const int64_t width_end = std::min(end, t + 1);
        if (width_end > left) subtract(t, t + 1, i, i + 1, left, width_end);
      }
      for (int64_t j = left; j < end; ++j) at(i, j) /= diagonal_[static_cast<size_t>(i)];
      if (i >= left && i < right) at(i, i) = 1 / diagonal_[static_cast<size_t>(i)];
    }
  }

  int64_t k_;
  int threads_;
  const SolveOps& ops_;
  std::vector<double> numbers_, diagonal_;
};

void check_shape(std::span<const float> hessian, int64_t k) {
  twofour::check(k > 0 && hessian.size() == static_cast<size_t>(k * k), "a square Hessian");
}

}  // namespace

void mirror_upper(std::span<float> square, int64_t k) {
  constexpr int64_t kTile = 32;  // the L1 cache holds the rows and columns of a tile
  for (int64_t first = 0; first < k; first += kTile) {
    for (int64_t left = 0; left <= first; left += kTile) {
      for (int64_t i = first; i < std::min(first + kTile, k); ++i) {
        for (int64_t j = left; j < std::min(left + kTile, i); ++j)
          square[static_cast<size_t>(i * k + j)] = square[static_cast<size_t>(j * k + i)];
      }
    }
  }
}

void throw_indefinite(int64_t column, double pivot) {
  throw Error(
      fmt::format("column {}: expected a positive definite Hessian, found a pivot of {}; it is no sum of "
                  "products",
                  column, pivot));
}

DampedHessian damped_hessian(std::span<const float> hessian, int64_t k, Regularization regularization,
                             bool with_factor, int threads, Isa isa) {
  check_shape(hessian, k);
  const double shrink = regularization.shrink;
  twofour::check(shrink >= 0 && shrink <= 1, "a shrink from 0 to 1");
  DampedHessian out;
  out.k = k;
  out.lambda = damping_of(hessian, k + 1, k, regularization.damping);
  out.shrink = shrink;
  out.matrix.resize(hessian.size());
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = i; j < k; ++j) {
      const auto upper = static_cast<size_t>(i * k + j);
      const float h = hessian[upper];
      if (!std::isfinite(h))
        throw Error(fmt::format("columns {} and {}: expected a finite sum, found {}", i, j, h));
      out.matrix[upper] = i == j ? static_cast<float>(damped(h, out.lambda)) : shrunk(h, shrink);
    }
  }
  mirror_upper(out.matrix, k);
  if (!with_factor) return out;
  Cholesky cholesky(hessian, k, out.lambda, shrink, threads, isa);
  cholesky.invert();
  out.factor = cholesky.factor();
  return out;
}

std::vector<float> damped_diagonal(std::span<const float> diagonal, double damping) {
  const double lambda = damping_of(diagonal, 1, static_cast<int64_t>(diagonal.size()), damping);
  std::vector<float> out;
  for (const float d : diagonal) out.push_back(static_cast<float>(damped(d, lambda)));
  return out;
}

std::vector<float> importance_weights(std::span<const float> diagonal) {
  std::vector<float> out = damped_diagonal(diagonal, 0);  // which has 1 in place of 0
  for (size_t b = 0; b < out.size(); b += kSolveBlock) {
    const auto block = diagonal.subspan(b, std::min<size_t>(kSolveBlock, out.size() - b));
    if (std::any_of(block.begin(), block.end(), [](float d) { return d > 0; }))
      std::copy(block.begin(), block.end(), out.begin() + static_cast<ptrdiff_t>(b));
  }
  return out;
}

struct DampedInverse::Factor {
  Cholesky cholesky;
};

DampedInverse::DampedInverse(std::span<const float> hessian, int64_t k, double damping, int threads,
                             Isa isa) {
  check_shape(hessian, k);
  factor_ = std::make_unique<Factor>(
      Factor{Cholesky(hessian, k, damping_of(hessian, k + 1, k, damping), 0, threads, isa)});
}

DampedInverse::~DampedInverse() = default;

std::vector<float> DampedInverse::factor() {
  factor_->cholesky.invert();
  return factor_->cholesky.factor();
}

void DampedInverse::multiply(std::span<float> rows) const {
  constexpr int64_t kVectors = Cholesky::kVectors;
  const Cholesky& cholesky = factor_->cholesky;
  const int64_t k = cholesky.k();
  const int threads = cholesky.threads();
  twofour::check(rows.size() % static_cast<size_t>(k) == 0, "whole rows");
  const auto count = static_cast<int64_t>(rows.size()) / k;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (int64_t first = 0; first < count; first += kVectors) {
    std::vector<double> x(static_cast<size_t>(k * kVectors));
    const int64_t here = std::min(kVectors, count - first);
    const auto each = [&](auto&& f) {
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t v = 0; v < here; ++v)
          f(rows[static_cast<size_t>((first + v) * k + k - 1 - i)], x[static_cast<size_t>(i * kVectors + v)]);
      }
    };
    each([](float& row, double& own) { own = double{row}; });
    cholesky.solve(x.data());
    each([](float& row, double& own) { row = static_cast<float>(own); });
  }
}

std::vector<double> quadratic_forms(std::span<const float> hessian, int64_t k, std::span<const float> rows,
                                    int threads, Isa isa) {
  check_shape(hessian, k);
  twofour::check(k % kSolveBlock == 0 && rows.size() % static_cast<size_t>(k) == 0,
                 "whole rows of whole blocks");
  const SolveOps& ops = solve_ops(isa);
  const auto count = static_cast<int64_t>(rows.size()) / k;
  std::vector<double> forms(static_cast<size_t>(count));
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (int64_t first = 0; first < count; first += kSolveRows) {
    const int64_t here = std::min<int64_t>(kSolveRows, count - first);
    std::vector<float> products(static_cast<size_t>(k * kSolveRows)), part(kSolveBlock * kSolveRows);
    for (int64_t b = 0; b < k; b += kSolveBlock) {
      for (int64_t i = 0; i < kSolveBlock; ++i) {
        for (int64_t r = 0; r < here; ++r)
          part[static_cast<size_t>(i * kSolveRows + r)] = -rows[static_cast<size_t>((first + r) * k + b + i)];
      }
      ops.subtract(hessian.data(), k, b, 0, part.data(), products.data());
    }
    for (int64_t r = 0; r < here; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += double{rows[static_cast<size_t>((first + r) * k + i)]} *
               double{products[static_cast<size_t>(i * kSolveRows + r)]};
      forms[static_cast<size_t>(first + r)] = sum;
    }
  }
  return forms;
}

}  // namespace twofour
