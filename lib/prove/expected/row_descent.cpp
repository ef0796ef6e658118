#include <xtensor/xadapt.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xnoalias.hpp>
#include <xtensor/xview.hpp>

#include <algorithm>
#include <utility>

#include "lib/prove/expected/row_solver.h"

namespace twofour {
namespace {

using Row = xt::xtensor<float, 1>;
using Square = xt::xtensor<double, 2>;

/// The inverse of A [n, n], by elimination of its columns in ascending order.
Square inverse_of(Square a) {
  for (size_t p = 0; p < a.shape(0); ++p) {
    const double pivot = 1 / std::exchange(a(p, p), 1.0);
    for (size_t i = 0; i < a.shape(0); ++i) {
      if (i == p) continue;
      const double factor = std::exchange(a(i, p), 0.0) * pivot;
      for (size_t j = 0; j < a.shape(1); ++j) a(i, j) -= factor * a(p, j);
    }
    xt::noalias(xt::view(a, p)) *= pivot;
  }
  return a;
}

}  // namespace

void RowSolver::descend() {
  if (s_.sweeps == 0) return;
  const auto h = xt::adapt(h_->matrix.data(), {k_, k_});
  const auto x = xt::adapt(x_.data(), {k_});
  Row g = xt::zeros<float>({k_});
  const auto move = [&](size_t i, float change) { xt::noalias(g) -= change * xt::view(h, i, xt::all()); };
  for (size_t i = 0; i < k_; ++i) move(i, x_[i] - w_[i]);
  float loss = xt::sum((xt::adapt(w_.data(), {k_}) - x) * g)();
  for (int sweep = 0; sweep < s_.sweeps; ++sweep) {
    float gain = 0;
    for (size_t b = 0; b < k_; b += s_.block) {
      const Row before = xt::view(x, xt::range(b, b + s_.block));
      Row local = xt::view(g, xt::range(b, b + s_.block));
      gain -= improve_block(b, local);
      for (size_t i = 0; i < s_.block; ++i) move(b + i, x_[b + i] - before(i));
    }
    if (gain <= s_.min_gain * loss) return;
    loss -= gain;
  }
}

float RowSolver::improve_block(size_t b, std::span<float> g) {
  float change = s_.scales == ExpectedSolver::Scales::kGiven ? 0.0f : move_scale(b, g);
  const auto group = static_cast<size_t>(s_.group);
  const int code = scales_[b / s_.block];
  for (size_t j = b; j < b + s_.block; j += group) {
    std::vector<float> delta(group);
    change += best_codes(j, g.subspan(j - b), delta);
    for (size_t i = 0; i < group; ++i) {
      x_[j + i] = unit_of((x_[j + i] + delta[i]) * inverse(code)) * step(code);
      for (size_t t = 0; t < s_.block; ++t) g[t] -= delta[i] * hd(j + i, b + t);
    }
  }
  return change;
}

float RowSolver::move_scale(size_t b, std::span<float> g) {
  int& code = scales_[b / s_.block];
  const auto h = xt::adapt(h_->matrix.data(), {k_, k_});
  auto gradient = xt::adapt(g.data(), {s_.block});
  Row unit = xt::zeros<float>({s_.block}), hu = unit;
  for (size_t i = 0; i < s_.block; ++i) {
    unit(i) = unit_of(x_[b + i] * inverse(code));
    xt::noalias(hu) += unit(i) * xt::view(h, b + i, xt::range(b, b + s_.block));
  }
  const float curve = xt::sum(hu * unit)(), slope = xt::sum(unit * gradient)();
  const int near = scale_code(step(code) + (curve > 0 ? slope / curve : 0.0f));
  int best = code;
  float gain = 0;
  for (int d = -1; d <= 1; ++d) {
    const int other = clamp_scale(near + d);
    const float change = step(other) - step(code), f = change * change * curve - 2.0f * change * slope;
    if (f < gain) {
      gain = f;
      best = other;
    }
  }
  if (best == code) return gain;
  xt::noalias(gradient) -= hu * (step(best) - step(code));
  for (size_t i = 0; i < s_.block; ++i) x_[b + i] = unit(i) * step(best);
  code = best;
  return gain;
}

float RowSolver::best_codes(size_t first, std::span<const float> g, std::vector<float>& delta) const {
  const auto group = static_cast<size_t>(s_.group);
  const float step_of_code = step(scales_[first / s_.block]), inverse_step = 1.0f / step_of_code;
  const xt::xtensor<float, 2> h = xt::view(xt::adapt(h_->matrix.data(), {k_, k_}),
                                           xt::range(first, first + group), xt::range(first, first + group));
  float least = 0;
  for (size_t m = 0; m < masks_.size(); ++m) {
    if (!given_.empty() && given_[first / group] != m) continue;
    std::vector<size_t> columns;
    Row pull = xt::adapt(g.data(), {group});
    for (size_t i = 0; i < group; ++i) {
      if (masks_[m][i]) {
        columns.push_back(i);
      } else {
        xt::noalias(pull) += x_[first + i] * xt::view(h, i);
      }
    }
    const size_t n = columns.size();
    Square inverted = inverse_of(xt::view(h, xt::keep(columns), xt::keep(columns)));
    std::vector<float> best(n);
    for (size_t a = 0; a < n; ++a) {
      best[a] = x_[first + columns[a]];
      for (size_t c = 0; c < n; ++c) best[a] += pull(columns[c]) * static_cast<float>(inverted(a, c));
    }
    for (int order = 0; order < 2; ++order) {  // columns in ascending, then in descending order
      Square rest = inverted;
      std::vector<float> y = best, now(group);
      for (size_t i = 0; i < group; ++i) now[i] = -x_[first + i];
      for (size_t a = 0; a < n; ++a) {
        const float value = unit_of(y[a] * inverse_step) * step_of_code;
        for (size_t t = a + 1; t < n; ++t) {
          const double ratio = rest(a, t) / rest(a, a);
          y[t] -= (y[a] - value) * static_cast<float>(ratio);
          for (size_t q = a + 1; q < n; ++q) rest(t, q) -= ratio * rest(a, q);
        }
        now[columns[a]] += value;
      }
      float f = 0;
      for (size_t i = 0; i < group; ++i) {
        float t = -2.0f * g[i];
        for (size_t c = 0; c < group; ++c) t += now[c] * h(c, i);
        f += t * now[i];
      }
      if (f < least) {
        least = f;
        delta = now;
      }
      std::reverse(columns.begin(), columns.end());
      std::reverse(best.begin(), best.end());
      std::reverse(inverted.begin(), inverted.end());  // reverses rows and columns
    }
  }
  return least;
}

}  // namespace twofour
