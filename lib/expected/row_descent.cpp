#include <algorithm>

#include "lib/expected/row_solver.h"

namespace twofour {

void RowSolver::descend() {
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

float RowSolver::improve_block(size_t b, std::vector<float>& g) {
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

float RowSolver::move_scale(size_t b, std::vector<float>& g) {
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

std::vector<std::vector<double>> RowSolver::kept_inverse(size_t first,
                                                         const std::vector<size_t>& columns) const {
  const size_t n = columns.size();
  std::vector<std::vector<double>> a(n, std::vector<double>(n));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) a[i][j] = static_cast<double>(hd(first + columns[i], first + columns[j]));
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

float RowSolver::best_codes(size_t first, std::span<const float> g, std::vector<float>& delta) const {
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

}  // namespace twofour
