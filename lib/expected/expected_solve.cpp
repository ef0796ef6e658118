#include "lib/expected/expected_solve.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/e4m3.h"

namespace twofour {
namespace {

constexpr float kHuge = std::numeric_limits<float>::infinity();
constexpr double kUnits[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/// The nearest of ascending numbers, ties to the even index.
template <class Number>
int nearest_of(int first, int last, double x, Number&& number) {
  int best = first;
  for (int i = first + 1; i <= last; ++i) {
    const double before = std::abs(x - number(best)), now = std::abs(x - number(i));
    if (now < before || (now == before && i % 2 == 0)) best = i;
  }
  return best;
}

int magnitude_code(float x) {
  return nearest_of(0, 7, std::abs(static_cast<double>(x)), [](int i) { return kUnits[i]; });
}

float unit_of(float x) {
  const auto unit = static_cast<float>(kUnits[magnitude_code(x)]);
  return std::signbit(x) ? -unit : unit;
}

int scale_code(float x) {
  return nearest_of(1, 126, static_cast<double>(x),
                    [](int i) { return static_cast<double>(e4m3_to_float(static_cast<unsigned>(i))); });
}

/// One row at a time. Sums run in the order in which they are written.
class Row {
 public:
  Row(const ExpectedSolver& solver, const ExpectedHessian* hessian, std::span<const float> diagonal,
      std::span<const float> weights, std::span<const uint8_t> mask)
      : s_(solver),
        h_(hessian),
        diagonal_(diagonal),
        w_(weights),
        k_(weights.size()),
        x_(weights.begin(), weights.end()),
        scales_(k_ / 16) {
    const auto group = static_cast<size_t>(s_.group);
    if (s_.dense) {
      masks_.push_back(std::vector<bool>(group, true));
    } else {
      for (int a = 0; a < 4; ++a) {
        for (int b = a + 1; b < 4; ++b) {
          std::vector<bool> one;
          for (int i = 0; i < s_.group; ++i)
            one.push_back(i / (s_.group / 4) == a || i / (s_.group / 4) == b);
          masks_.push_back(one);
        }
      }
    }
    for (size_t j = 0; !s_.dense && j < mask.size(); j += group) {
      for (size_t m = 0; m < masks_.size(); ++m) {
        bool same = true;
        for (size_t i = 0; i < group; ++i) same = same && masks_[m][i] == (mask[j + i] != 0);
        if (same) given_.push_back(m);
      }
    }
  }

  ExpectedRow solve() {
    if (s_.method == ExpectedSolver::Method::kJoint) joint();
    if (s_.method == ExpectedSolver::Method::kSparseGpt) sparse_gpt();
    if (s_.method == ExpectedSolver::Method::kDiagonal) by_diagonal();
    descend();
    return written();
  }

 private:
  float step(int code) const {
    const float scale = e4m3_to_float(static_cast<unsigned>(code));
    return s_.divides ? scale / s_.global : scale * s_.global;
  }
  float inverse(int code) const { return 1.0f / step(code); }
  float to_code() const { return s_.divides ? s_.global : 1.0f / s_.global; }
  float u(size_t i, size_t j) const { return h_->factor[i * k_ + j]; }
  float hd(size_t i, size_t j) const { return h_->matrix[i * k_ + j]; }

  /// The mask of largest sum of x^2 weights, the first of equal ones, or the given one.
  size_t mask_of(size_t first, std::span<const float> weights) const {
    const auto group = static_cast<size_t>(s_.group);
    if (!given_.empty()) return given_[first / group];
    size_t best = 0;
    float top = -1;
    for (size_t m = 0; m < masks_.size(); ++m) {
      float sum = 0;
      for (size_t i = 0; i < group; ++i) {
        if (masks_[m][i]) sum += x_[first + i] * x_[first + i] * weights[i];
      }
      if (sum > top) {
        top = sum;
        best = m;
      }
    }
    return best;
  }

  int search(std::span<const float> x, std::span<const float> weights) const {
    float largest = 0;
    for (const float v : x) largest = std::max(largest, std::abs(v));
    const int base = largest == 0 ? 0x38 : scale_code(largest / 6.0f * to_code());
    int best = base;
    float least = kHuge;
    for (int d = -12; d <= 2; ++d) {
      const int code = std::clamp(base + d, 1, 126);
      float loss = 0;
      for (size_t i = 0; i < 16; ++i) {
        const float e = x[i] - unit_of(x[i] * inverse(code)) * step(code);
        loss += e * e * weights[i];
      }
      if (loss < least) {
        least = loss;
        best = code;
      }
    }
    return best;
  }

  void pass_on(size_t column, float error, size_t until) {
    for (size_t t = column + 1; t < until; ++t) x_[t] -= error * u(column, t);
  }

  void joint() {
    const auto group = static_cast<size_t>(s_.group);
    for (size_t b = 0; b < k_; b += 16) {
      std::vector<float> weights, kept(16), errors(16);
      for (size_t i = 0; i < 16; ++i) weights.push_back(1.0f / (u(b + i, b + i) * u(b + i, b + i)));
      for (size_t j = 0; j < 16; j += group) {
        const size_t m = mask_of(b + j, std::span(weights).subspan(j));
        for (size_t i = 0; i < group; ++i) kept[j + i] = masks_[m][i] ? x_[b + j + i] : 0.0f;
      }
      const int scale = search(kept, weights);
      scales_[b / 16] = scale;
      for (size_t j = b; j < b + 16; j += group) {
        float least = kHuge;
        std::vector<float> values(group), spent(group);
        for (size_t m = 0; m < masks_.size(); ++m) {
          if (!given_.empty() && given_[j / group] != m) continue;
          std::vector<float> y(x_.begin() + static_cast<ptrdiff_t>(j),
                               x_.begin() + static_cast<ptrdiff_t>(j + group));
          std::vector<float> v(group), e(group);
          float loss = 0;
          for (size_t i = 0; i < group; ++i) {
            v[i] = masks_[m][i] ? unit_of(y[i] * inverse(scale)) * step(scale) : 0.0f;
            e[i] = (y[i] - v[i]) * (1.0f / u(j + i, j + i));
            loss += e[i] * e[i];
            for (size_t t = i + 1; t < group; ++t) y[t] -= e[i] * u(j + i, j + t);
          }
          if (loss < least) {
            least = loss;
            values = v;
            spent = e;
          }
        }
        for (size_t i = 0; i < group; ++i) {
          x_[j + i] = values[i];
          for (size_t t = j + group; t < b + 16; ++t) x_[t] -= spent[i] * u(j + i, t);
          errors[j - b + i] = spent[i];
        }
      }
      for (size_t i = 0; i < 16; ++i) {
        for (size_t t = b + 16; t < k_; ++t) x_[t] -= errors[i] * u(b + i, t);
      }
    }
  }

  void sparse_gpt() {
    const auto group = static_cast<size_t>(s_.group);
    for (size_t b = 0; b < k_; b += 16) {
      std::vector<float> errors(16);
      for (size_t j = b; j < b + 16; j += group) {
        std::vector<float> weights;
        for (size_t i = 0; i < group; ++i) weights.push_back(1.0f / (u(j + i, j + i) * u(j + i, j + i)));
        const size_t m = mask_of(j, weights);
        for (size_t i = 0; i < group; ++i) {
          const float value = masks_[m][i] ? x_[j + i] : 0.0f;
          const float e = (x_[j + i] - value) * (1.0f / u(j + i, j + i));
          x_[j + i] = value;
          pass_on(j + i, e, b + 16);
          errors[j - b + i] = e;
        }
      }
      for (size_t i = 0; i < 16; ++i) {
        for (size_t t = b + 16; t < k_; ++t) x_[t] -= errors[i] * u(b + i, t);
      }
    }
    round(std::vector<float>(k_, 1.0f));
  }

  void by_diagonal() {
    const auto group = static_cast<size_t>(s_.group);
    for (size_t j = 0; !s_.dense && j < k_; j += group) {
      const size_t m = mask_of(j, diagonal_.subspan(j));
      for (size_t i = 0; i < group; ++i) {
        if (!masks_[m][i]) x_[j + i] = 0;
      }
    }
    round(diagonal_);
  }

  void round(std::span<const float> weights) {
    for (size_t b = 0; b < k_; b += 16) {
      const int scale = search(std::span<const float>(x_).subspan(b, 16), weights.subspan(b));
      scales_[b / 16] = scale;
      for (size_t i = b; i < b + 16; ++i) x_[i] = unit_of(x_[i] * inverse(scale)) * step(scale);
    }
  }

  void descend() {
    if (s_.sweeps == 0) return;
    std::vector<float> g(k_);
    for (size_t i = 0; i < k_; ++i) {
      const float change = x_[i] - w_[i];
      for (size_t t = 0; t < k_; ++t) g[t] -= change * hd(i, t);
    }
    float loss = 0;
    for (size_t i = 0; i < k_; ++i) loss += (w_[i] - x_[i]) * g[i];
    for (int sweep = 0; sweep < s_.sweeps; ++sweep) {
      float gain = 0;
      for (size_t b = 0; b < k_; b += 16) {
        const std::vector<float> before(x_.begin() + static_cast<ptrdiff_t>(b),
                                        x_.begin() + static_cast<ptrdiff_t>(b + 16));
        std::vector<float> local(g.begin() + static_cast<ptrdiff_t>(b),
                                 g.begin() + static_cast<ptrdiff_t>(b + 16));
        gain -= improve_block(b, local);
        for (size_t i = 0; i < 16; ++i) {
          const float change = x_[b + i] - before[i];
          for (size_t t = 0; t < k_; ++t) g[t] -= change * hd(b + i, t);
        }
      }
      if (gain <= s_.min_gain * loss) return;
      loss -= gain;
    }
  }

  /// The change of the loss. `g` is the gradient of the block.
  float improve_block(size_t b, std::vector<float>& g) {
    float change = move_scale(b, g);
    const auto group = static_cast<size_t>(s_.group);
    const int code = scales_[b / 16];
    for (size_t j = 0; j < 16; j += group) {
      std::vector<float> delta(group);
      change += best_codes(b + j, std::span<const float>(g).subspan(j), delta);
      for (size_t i = 0; i < group; ++i) {
        x_[b + j + i] = unit_of((x_[b + j + i] + delta[i]) * inverse(code)) * step(code);
        for (size_t t = 0; t < 16; ++t) g[t] -= delta[i] * hd(b + j + i, b + t);
      }
    }
    return change;
  }

  float move_scale(size_t b, std::vector<float>& g) {
    int& code = scales_[b / 16];
    std::vector<float> unit(16), hu(16);
    float curve = 0, slope = 0;
    for (size_t i = 0; i < 16; ++i) unit[i] = unit_of(x_[b + i] * inverse(code));
    for (size_t i = 0; i < 16; ++i) {
      for (size_t j = 0; j < 16; ++j) hu[i] += unit[j] * hd(b + j, b + i);
    }
    for (size_t i = 0; i < 16; ++i) {
      curve += hu[i] * unit[i];
      slope += unit[i] * g[i];
    }
    const int near = scale_code((step(code) + (curve > 0 ? slope / curve : 0.0f)) * to_code());
    int best = code;
    float gain = 0;
    for (int d = -1; d <= 1; ++d) {
      const int other = std::clamp(near + d, 1, 126);
      const float change = step(other) - step(code), f = change * change * curve - 2.0f * change * slope;
      if (f < gain) {
        gain = f;
        best = other;
      }
    }
    if (best == code) return gain;
    const float change = step(best) - step(code);
    for (size_t i = 0; i < 16; ++i) {
      x_[b + i] = unit[i] * step(best);
      g[i] -= hu[i] * change;
    }
    code = best;
    return gain;
  }

  /// Of the kept part of Hd the inverse, by elimination in the order of its columns.
  std::vector<std::vector<double>> kept_inverse(size_t first, const std::vector<size_t>& columns) const {
    const size_t n = columns.size();
    std::vector<std::vector<double>> a(n, std::vector<double>(n));
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j)
        a[i][j] = static_cast<double>(hd(first + columns[i], first + columns[j]));
    }
    for (size_t p = 0; p < n; ++p) {
      const double pivot = 1 / a[p][p];
      for (size_t i = 0; i < n; ++i) {
        if (i == p) continue;
        const double factor = a[i][p] * pivot;
        for (size_t j = 0; j < n; ++j) a[i][j] = j == p ? -factor : a[i][j] - factor * a[p][j];
      }
      for (size_t j = 0; j < n; ++j) a[p][j] = j == p ? pivot : a[p][j] * pivot;
    }
    return a;
  }

  /// The best codes of a group, as changes; of the masks and both orders the first of least loss below 0.
  float best_codes(size_t first, std::span<const float> g, std::vector<float>& delta) const {
    const auto group = static_cast<size_t>(s_.group);
    const int code = scales_[first / 16];
    float least = 0;
    for (size_t m = 0; m < masks_.size(); ++m) {
      if (!given_.empty() && given_[first / group] != m) continue;
      std::vector<size_t> columns;
      for (size_t i = 0; i < group; ++i) {
        if (masks_[m][i]) columns.push_back(i);
      }
      const size_t n = columns.size();
      const auto inverted = kept_inverse(first, columns);
      std::vector<float> pull(n), best(n);
      for (size_t a = 0; a < n; ++a) {
        pull[a] = g[columns[a]];
        for (size_t i = 0; i < group; ++i) {
          if (!masks_[m][i]) pull[a] += x_[first + i] * hd(first + columns[a], first + i);
        }
      }
      for (size_t a = 0; a < n; ++a) {
        best[a] = x_[first + columns[a]];
        for (size_t c = 0; c < n; ++c) best[a] += pull[c] * static_cast<float>(inverted[a][c]);
      }
      for (int order = 0; order < 2; ++order) {
        std::vector<size_t> turn(n);
        for (size_t a = 0; a < n; ++a) turn[a] = order == 0 ? a : n - 1 - a;
        std::vector<std::vector<double>> rest(n, std::vector<double>(n));
        for (size_t a = 0; a < n; ++a) {
          for (size_t c = 0; c < n; ++c) rest[a][c] = inverted[turn[a]][turn[c]];
        }
        std::vector<float> y(n), now(group);
        for (size_t a = 0; a < n; ++a) y[a] = best[turn[a]];
        for (size_t i = 0; i < group; ++i) now[i] = -x_[first + i];
        for (size_t a = 0; a < n; ++a) {
          const float value = unit_of(y[a] * inverse(code)) * step(code);
          std::vector<double> ratio(n);
          for (size_t t = a + 1; t < n; ++t) ratio[t] = rest[a][t] / rest[a][a];
          for (size_t t = a + 1; t < n; ++t) y[t] -= (y[a] - value) * static_cast<float>(ratio[t]);
          for (size_t p = a + 1; p < n; ++p) {
            for (size_t q = a + 1; q < n; ++q) rest[p][q] -= ratio[p] * rest[a][q];
          }
          now[columns[turn[a]]] = value - x_[first + columns[turn[a]]];
        }
        float f = 0;
        for (size_t i = 0; i < group; ++i) {
          float t = -2.0f * g[i];
          for (size_t c = 0; c < group; ++c) t += now[c] * hd(first + c, first + i);
          f += t * now[i];
        }
        if (f < least) {
          least = f;
          delta = now;
        }
      }
    }
    return least;
  }

  ExpectedRow written() const {
    ExpectedRow out;
    for (size_t b = 0; b < k_; b += 16) {
      const int code = scales_[b / 16];
      bool any = false;
      for (size_t i = b; i < b + 16; ++i) {
        const float x = x_[i] * inverse(code);
        const int magnitude = magnitude_code(x);
        any = any || magnitude != 0;
        out.codes.push_back(
            static_cast<uint8_t>(magnitude == 0 || !std::signbit(x) ? magnitude : magnitude + 8));
      }
      out.scales.push_back(any ? static_cast<uint8_t>(code) : s_.zero_scale);
    }
    return out;
  }

  const ExpectedSolver& s_;
  const ExpectedHessian* h_;
  std::span<const float> diagonal_, w_;
  size_t k_;
  std::vector<float> x_;
  std::vector<int> scales_;
  std::vector<std::vector<bool>> masks_;
  std::vector<size_t> given_;
};

/// A row and its global scale. Where the latter is far from 1, both in a unit of a power of two, so that no
/// square vanishes or overflows.
struct RowInUnits {
  ExpectedSolver solver;
  std::vector<float> weights;
};

RowInUnits in_units(const ExpectedSolver& solver, std::span<const float> weights) {
  RowInUnits out{solver, {weights.begin(), weights.end()}};
  int exponent = 0;  // the global scale is in [2^exponent, 2^(exponent + 1)); of a divisor, its inverse
  std::frexp(solver.global, &exponent);
  exponent = solver.divides ? 1 - exponent : exponent - 1;
  if (exponent >= -40 && exponent <= 24) return out;
  const int shift = -16 - exponent;
  out.solver.global =
      static_cast<float>(std::ldexp(static_cast<double>(solver.global), solver.divides ? -shift : shift));
  for (float& w : out.weights) w = static_cast<float>(std::ldexp(static_cast<double>(w), shift));
  return out;
}

}  // namespace

ExpectedRow expect_row(const ExpectedSolver& solver, const ExpectedHessian& hessian,
                       std::span<const float> weights, std::span<const uint8_t> mask) {
  std::vector<float> diagonal;
  const auto k = static_cast<size_t>(hessian.k);
  for (size_t j = 0; j < k; ++j) diagonal.push_back(hessian.matrix[j * k + j]);
  const RowInUnits in = in_units(solver, weights);
  return Row(in.solver, &hessian, diagonal, in.weights, mask).solve();
}

ExpectedRow expect_row_by_diagonal(const ExpectedSolver& solver, std::span<const float> diagonal,
                                   std::span<const float> weights, std::span<const uint8_t> mask) {
  const RowInUnits in = in_units(solver, weights);
  return Row(in.solver, nullptr, diagonal, in.weights, mask).solve();
}

}  // namespace twofour
