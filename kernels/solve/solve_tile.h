#pragma once
#include <cstdint>

#include "kernels/solve/group_maps.h"
#include "kernels/solve/solve_ops.h"

// Solvers for a tile of rows, `W` of them in the lanes of a vector. Rows do not influence each other, so W
// changes no bit. Included by one file an instruction set; nothing here may emit a function that another file
// could share, hence the parameter W everywhere.

namespace twofour {
namespace {

template <int W>
struct Lanes {
  typedef float F __attribute__((vector_size(4 * W)));
  typedef int32_t I __attribute__((vector_size(4 * W)));
  typedef double D __attribute__((vector_size(4 * W)));
  typedef float LooseF __attribute__((vector_size(4 * W), aligned(4), may_alias));
  typedef int32_t LooseI __attribute__((vector_size(4 * W), aligned(4), may_alias));
  typedef double LooseD __attribute__((vector_size(4 * W), aligned(8), may_alias));

  static F load(const float* p) { return *reinterpret_cast<const LooseF*>(p); }
  static I load(const int32_t* p) { return *reinterpret_cast<const LooseI*>(p); }
  static void store(float* p, F x) { *reinterpret_cast<LooseF*>(p) = x; }
  static void store(int32_t* p, I x) { *reinterpret_cast<LooseI*>(p) = x; }
  static F splat(float x) { return F{} + x; }
  static I splat(int32_t x) { return I{} + x; }
  static F pick(I which, F a, F b) { return which ? a : b; }
  static I pick(I which, I a, I b) { return which ? a : b; }
  static F magnitude(F x) { return reinterpret_cast<F>(reinterpret_cast<I>(x) & 0x7FFFFFFF); }
  static F larger(F a, F b) { return a < b ? b : a; }

  /// The nearest E2M1 value, ties to the even code, at most 6 in magnitude.
  static F nearest_unit(F x) {
    const F magic = splat(0x1.8p23f);
    F a = magnitude(x);
    a = pick(a < splat(6.0f), a, splat(6.0f));
    const I below2 = a < splat(2.0f), below4 = a < splat(4.0f);
    const F scale = pick(below2, splat(2.0f), pick(below4, splat(1.0f), splat(0.5f)));
    const F step = pick(below2, splat(0.5f), pick(below4, splat(1.0f), splat(2.0f)));
    const F rounded = ((a * scale + magic) - magic) * step;
    const I sign = reinterpret_cast<I>(x) & static_cast<int32_t>(0x80000000u);
    return reinterpret_cast<F>(reinterpret_cast<I>(rounded) | sign);
  }
  static F look_up(const float* table, I at) {
    int32_t places[W];
    float out[W];
    store(places, at);
    for (int lane = 0; lane < W; ++lane) out[lane] = table[places[lane]];
    return load(out);
  }
};

/// The block scale nearest to each want.
template <int W>
typename Lanes<W>::I nearest_scales(const SolvePlan& plan, typename Lanes<W>::F want) {
  float wants[W];
  int32_t out[W];
  Lanes<W>::store(wants, want);
  for (int lane = 0; lane < W; ++lane) out[lane] = plan.nearest(wants[lane]);
  return Lanes<W>::load(out);
}

template <int W>
typename Lanes<W>::I clamp_scale(typename Lanes<W>::I code) {
  using L = Lanes<W>;
  code = L::pick(code < L::splat(1), L::splat(1), code);
  return L::pick(code > L::splat(126), L::splat(126), code);
}

/// Of the block scales from 12 below to 2 above that of the largest magnitude the first of least weighted
/// square error.
template <int W>
typename Lanes<W>::I search_scale(const SolvePlan& plan, const typename Lanes<W>::F* x,
                                  const float* weights) {
  using L = Lanes<W>;
  using F = typename L::F;
  F largest = {};
  for (int i = 0; i < kSolveBlock; ++i) largest = L::larger(largest, L::magnitude(x[i]));
  typename L::I base = nearest_scales<W>(plan, largest / L::splat(6.0f) * plan.to_code);
  base = L::pick(largest == F{}, L::splat(0x38), base);
  typename L::I best = base;
  F least = L::splat(__builtin_inff());
  for (int d = -12; d <= 2; ++d) {
    const typename L::I code = clamp_scale<W>(base + d);
    const F step = L::look_up(plan.step, code), inverse = L::look_up(plan.inverse, code);
    F loss = {};
    for (int i = 0; i < kSolveBlock; ++i) {
      const F e = x[i] - L::nearest_unit(x[i] * inverse) * step;
      loss = loss + e * e * weights[i];
    }
    const typename L::I better = loss < least;
    least = L::pick(better, loss, least);
    best = L::pick(better, code, best);
  }
  return best;
}

/// Which lanes keep column i under their mask.
template <class Pattern, int W>
typename Lanes<W>::I keeps(typename Lanes<W>::I mask, int i) {
  using L = Lanes<W>;
  typename L::I kept = {};
  for (int m = 0; m < Pattern::kMasks; ++m) {
    for (int j = 0; j < Pattern::kKept; ++j) {
      if (Pattern::kColumns[m][j] == i) kept = kept | (mask == L::splat(m));
    }
  }
  return kept;
}

/// The mask of largest sum of scores; of equal ones the first.
template <class Pattern, int W>
typename Lanes<W>::I best_mask(const typename Lanes<W>::F* scores) {
  using L = Lanes<W>;
  typename L::I best = {};
  typename L::F top = L::splat(-1.0f);
  for (int m = 0; m < Pattern::kMasks; ++m) {
    typename L::F sum = {};
    for (int j = 0; j < Pattern::kKept; ++j) sum = sum + scores[Pattern::kColumns[m][j]];
    const typename L::I better = sum > top;
    top = L::pick(better, sum, top);
    best = L::pick(better, L::splat(m), best);
  }
  return best;
}

/// The masks of a block's groups: those given, else those of largest sum of x^2 weights.
template <class Pattern, int W>
void choose_masks(const SolveTile& tile, int64_t first, int lane, const typename Lanes<W>::F* x,
                  const float* weights, typename Lanes<W>::I* masks) {
  using L = Lanes<W>;
  for (int j = 0; j < kSolveBlock / Pattern::kGroup; ++j) {
    if (tile.is_given) {
      masks[j] = L::load(tile.masks + (first / Pattern::kGroup + j) * kSolveRows + lane);
      continue;
    }
    typename L::F scores[Pattern::kGroup];
    for (int i = 0; i < Pattern::kGroup; ++i) {
      const typename L::F one = x[j * Pattern::kGroup + i];
      scores[i] = one * one * weights[j * Pattern::kGroup + i];
    }
    masks[j] = best_mask<Pattern, W>(scores);
  }
}

/// x where a column stays, else 0.
template <class Pattern, int W>
void keep_masked(const typename Lanes<W>::F* x, const typename Lanes<W>::I* masks,
                 typename Lanes<W>::F* out) {
  using L = Lanes<W>;
  for (int i = 0; i < kSolveBlock; ++i) {
    out[i] =
        L::pick(keeps<Pattern, W>(masks[i / Pattern::kGroup], i % Pattern::kGroup), x[i], typename L::F{});
  }
}

/// `kColumns` columns of subtract_block.
template <int W, int kColumns>
void subtract_columns(const float* matrix, int64_t k, const float* errors, float* to) {
  using L = Lanes<W>;
  constexpr int kParts = kSolveRows / W;
  typename L::F sums[kColumns][kParts];
  for (int c = 0; c < kColumns; ++c) {
    for (int p = 0; p < kParts; ++p) sums[c][p] = L::load(to + c * kSolveRows + p * W);
  }
  for (int i = 0; i < kSolveBlock; ++i) {
    const float* row = matrix + i * k;
    for (int p = 0; p < kParts; ++p) {
      const typename L::F e = L::load(errors + i * kSolveRows + p * W);
      for (int c = 0; c < kColumns; ++c) sums[c][p] = sums[c][p] - e * row[c];
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    for (int p = 0; p < kParts; ++p) L::store(to + c * kSolveRows + p * W, sums[c][p]);
  }
}

template <int W>
void subtract_block(const float* matrix, int64_t k, int64_t first, int64_t from, const float* errors,
                    float* to) {
  constexpr int kColumns = W / 4;  // as many sums as registers hold
  matrix += first * k;
  int64_t t = from;
  for (; t + kColumns <= k; t += kColumns)
    subtract_columns<W, kColumns>(matrix + t, k, errors, to + t * kSolveRows);
  for (; t < k; ++t) subtract_columns<W, 1>(matrix + t, k, errors, to + t * kSolveRows);
}

/// A group of OBS under one mask: values and errors of its columns, and the sum of squares of the errors.
template <class Pattern, int W>
typename Lanes<W>::F solve_group(const typename Lanes<W>::F* x, const float* factor, int64_t k, int mask,
                                 typename Lanes<W>::F step, typename Lanes<W>::F inverse,
                                 typename Lanes<W>::F* values, typename Lanes<W>::F* errors) {
  using L = Lanes<W>;
  constexpr int kGroup = Pattern::kGroup;
  typename L::F y[kGroup], loss = {};
  for (int i = 0; i < kGroup; ++i) y[i] = x[i];
  for (int i = 0; i < kGroup; ++i) {
    bool kept = false;
    for (const int column : Pattern::kColumns[mask]) kept = kept || column == i;
    values[i] = kept ? L::nearest_unit(y[i] * inverse) * step : typename L::F{};
    errors[i] = (y[i] - values[i]) * (1.0f / factor[i * k + i]);
    loss = loss + errors[i] * errors[i];
    for (int t = i + 1; t < kGroup; ++t) y[t] = y[t] - errors[i] * factor[i * k + t];
  }
  return loss;
}

template <class Pattern, int W>
void joint(const SolvePlan& plan, const SolveTile& tile) {
  using L = Lanes<W>;
  using F = typename L::F;
  constexpr int kGroup = Pattern::kGroup;
  const int64_t k = plan.k;
  for (int64_t first = 0; first < k; first += kSolveBlock) {
    const float* u = plan.factor + first * k + first;
    float weights[kSolveBlock];
    for (int i = 0; i < kSolveBlock; ++i) weights[i] = 1.0f / (u[i * k + i] * u[i * k + i]);
    for (int lane = 0; lane < kSolveRows; lane += W) {
      F x[kSolveBlock], some[kSolveBlock], e[kSolveBlock];
      typename L::I masks[kSolveBlock / kGroup];
      for (int i = 0; i < kSolveBlock; ++i) x[i] = L::load(tile.values + (first + i) * kSolveRows + lane);
      choose_masks<Pattern, W>(tile, first, lane, x, weights, masks);
      keep_masked<Pattern, W>(x, masks, some);
      const typename L::I scale = search_scale<W>(plan, some, weights);
      L::store(tile.scales + first / kSolveBlock * kSolveRows + lane, scale);
      const F step = L::look_up(plan.step, scale), inverse = L::look_up(plan.inverse, scale);
      for (int j = 0; j < kSolveBlock; j += kGroup) {
        F least = L::splat(__builtin_inff()), values[kGroup] = {}, errors[kGroup] = {};
        for (int m = 0; m < Pattern::kMasks; ++m) {
          F v[kGroup], d[kGroup];
          const F loss = solve_group<Pattern, W>(x + j, u + j * k + j, k, m, step, inverse, v, d);
          typename L::I better = loss < least;
          if (tile.is_given) better = better & (masks[j / kGroup] == L::splat(m));
          least = L::pick(better, loss, least);
          for (int i = 0; i < kGroup; ++i) {
            values[i] = L::pick(better, v[i], values[i]);
            errors[i] = L::pick(better, d[i], errors[i]);
          }
        }
        for (int i = 0; i < kGroup; ++i) {
          x[j + i] = values[i];
          e[j + i] = errors[i];
          for (int t = j + kGroup; t < kSolveBlock; ++t) x[t] = x[t] - errors[i] * u[(j + i) * k + t];
        }
      }
      for (int i = 0; i < kSolveBlock; ++i) {
        L::store(tile.values + (first + i) * kSolveRows + lane, x[i]);
        L::store(tile.errors + i * kSolveRows + lane, e[i]);
      }
    }
    subtract_block<W>(plan.factor, k, first, first + kSolveBlock, tile.errors, tile.values);
  }
}

template <class Pattern, int W>
void prune(const SolvePlan& plan, const SolveTile& tile) {
  using L = Lanes<W>;
  using F = typename L::F;
  constexpr int kGroup = Pattern::kGroup;
  const int64_t k = plan.k;
  for (int64_t first = 0; first < k; first += kSolveBlock) {
    const float* u = plan.factor + first * k + first;
    for (int lane = 0; lane < kSolveRows; lane += W) {
      F x[kSolveBlock], e[kSolveBlock];
      for (int i = 0; i < kSolveBlock; ++i) x[i] = L::load(tile.values + (first + i) * kSolveRows + lane);
      for (int j = 0; j < kSolveBlock; j += kGroup) {
        typename L::I mask = {};
        if (tile.is_given) {
          mask = L::load(tile.masks + (first + j) / kGroup * kSolveRows + lane);
        } else {
          F scores[kGroup];
          for (int i = 0; i < kGroup; ++i) {
            const float diagonal = u[(j + i) * k + j + i];
            scores[i] = x[j + i] * x[j + i] * (1.0f / (diagonal * diagonal));
          }
          mask = best_mask<Pattern, W>(scores);
        }
        for (int i = 0; i < kGroup; ++i) {
          const int at = j + i;
          const F value = L::pick(keeps<Pattern, W>(mask, i), x[at], F{});
          e[at] = (x[at] - value) * (1.0f / u[at * k + at]);
          x[at] = value;
          for (int t = at + 1; t < kSolveBlock; ++t) x[t] = x[t] - e[at] * u[at * k + t];
        }
      }
      for (int i = 0; i < kSolveBlock; ++i) {
        L::store(tile.values + (first + i) * kSolveRows + lane, x[i]);
        L::store(tile.errors + i * kSolveRows + lane, e[i]);
      }
    }
    subtract_block<W>(plan.factor, k, first, first + kSolveBlock, tile.errors, tile.values);
  }
}

template <class Pattern, int W>
void round_rows(const SolvePlan& plan, const SolveTile& tile, bool masked, bool weighted) {
  using L = Lanes<W>;
  using F = typename L::F;
  for (int64_t first = 0; first < plan.k; first += kSolveBlock) {
    float weights[kSolveBlock];
    for (int i = 0; i < kSolveBlock; ++i) weights[i] = weighted ? plan.diagonal[first + i] : 1.0f;
    for (int lane = 0; lane < kSolveRows; lane += W) {
      F x[kSolveBlock];
      for (int i = 0; i < kSolveBlock; ++i) x[i] = L::load(tile.values + (first + i) * kSolveRows + lane);
      if (masked) {
        typename L::I masks[kSolveBlock / Pattern::kGroup];
        choose_masks<Pattern, W>(tile, first, lane, x, plan.diagonal + first, masks);
        keep_masked<Pattern, W>(x, masks, x);
      }
      const typename L::I scale = search_scale<W>(plan, x, weights);
      L::store(tile.scales + first / kSolveBlock * kSolveRows + lane, scale);
      const F step = L::look_up(plan.step, scale), inverse = L::look_up(plan.inverse, scale);
      for (int i = 0; i < kSolveBlock; ++i) {
        L::store(tile.values + (first + i) * kSolveRows + lane, L::nearest_unit(x[i] * inverse) * step);
      }
    }
  }
}

/// Moves a block's scale to the best neighbour of the least-squares scale of its codes. -> the change of the
/// loss.
template <int W>
typename Lanes<W>::F move_scale(const SolvePlan& plan, const float* h, typename Lanes<W>::F* x,
                                typename Lanes<W>::F* g, typename Lanes<W>::I& scale) {
  using L = Lanes<W>;
  using F = typename L::F;
  const F step = L::look_up(plan.step, scale), inverse = L::look_up(plan.inverse, scale);
  F unit[kSolveBlock], hu[kSolveBlock], curve = {}, slope = {};
  for (int i = 0; i < kSolveBlock; ++i) unit[i] = L::nearest_unit(x[i] * inverse);
  for (int i = 0; i < kSolveBlock; ++i) {
    hu[i] = F{};
    for (int j = 0; j < kSolveBlock; ++j) hu[i] = hu[i] + unit[j] * h[j * plan.k + i];
  }
  for (int i = 0; i < kSolveBlock; ++i) {
    curve = curve + hu[i] * unit[i];
    slope = slope + unit[i] * g[i];
  }
  const typename L::I has_codes = curve > F{};
  const F want = step + L::pick(has_codes, slope / L::pick(has_codes, curve, L::splat(1.0f)), F{});
  const typename L::I near = nearest_scales<W>(plan, want * plan.to_code);
  typename L::I best = scale;
  F gain = {};
  for (int d = -1; d <= 1; ++d) {
    const typename L::I code = clamp_scale<W>(near + d);
    const F change = L::look_up(plan.step, code) - step;
    const F f = change * change * curve - 2.0f * change * slope;
    const typename L::I better = f < gain;
    gain = L::pick(better, f, gain);
    best = L::pick(better, code, best);
  }
  const F now = L::look_up(plan.step, best), change = now - step;
  const typename L::I moved = best != scale;
  for (int i = 0; i < kSolveBlock; ++i) {
    x[i] = L::pick(moved, unit[i] * now, x[i]);
    g[i] = L::pick(moved, g[i] - hu[i] * change, g[i]);
  }
  scale = best;
  return gain;
}

/// Gives a group the mask and the codes of least loss, all else fixed. `h` is Hd at the group. -> the change
/// of the loss.
template <class Pattern, int W>
typename Lanes<W>::F move_group(const SolvePlan& plan, const float* h, const float* maps,
                                const typename Lanes<W>::I* given, typename Lanes<W>::F step,
                                typename Lanes<W>::F inverse, typename Lanes<W>::F* x,
                                const typename Lanes<W>::F* g, typename Lanes<W>::F* change) {
  using L = Lanes<W>;
  using F = typename L::F;
  constexpr int kGroup = Pattern::kGroup, kKept = Pattern::kKept;
  F least = {};
  for (int i = 0; i < kGroup; ++i) change[i] = F{};
  for (int m = 0; m < Pattern::kMasks; ++m, maps += kMaskNumbers<Pattern>) {
    const int* columns = Pattern::kColumns[m];
    bool kept[kGroup] = {};
    for (int j = 0; j < kKept; ++j) kept[columns[j]] = true;
    F pull[kKept], best[kKept];
    for (int j = 0; j < kKept; ++j) {
      pull[j] = g[columns[j]];
      for (int i = 0; i < kGroup; ++i) {
        if (!kept[i]) pull[j] = pull[j] + x[i] * h[columns[j] * plan.k + i];
      }
    }
    for (int j = 0; j < kKept; ++j) {
      best[j] = x[columns[j]];
      for (int i = 0; i < kKept; ++i) best[j] = best[j] + pull[i] * maps[j * kKept + i];
    }
    for (int order = 0; order < 2; ++order) {
      const float* ratios = maps + (1 + order) * kKept * kKept;
      F y[kKept], delta[kGroup];
      for (int j = 0; j < kKept; ++j) y[j] = best[order == 0 ? j : kKept - 1 - j];
      for (int i = 0; i < kGroup; ++i) delta[i] = -x[i];
      for (int j = 0; j < kKept; ++j) {
        const int column = columns[order == 0 ? j : kKept - 1 - j];
        const F value = L::nearest_unit(y[j] * inverse) * step;
        for (int t = j + 1; t < kKept; ++t) y[t] = y[t] - (y[j] - value) * ratios[j * kKept + t];
        delta[column] = value - x[column];
      }
      F f = {};
      for (int i = 0; i < kGroup; ++i) {
        F t = -2.0f * g[i];
        for (int c = 0; c < kGroup; ++c) t = t + delta[c] * h[c * plan.k + i];
        f = f + t * delta[i];
      }
      typename L::I better = f < least;
      if (given != nullptr) better = better & (*given == L::splat(m));
      least = L::pick(better, f, least);
      for (int i = 0; i < kGroup; ++i) change[i] = L::pick(better, delta[i], change[i]);
    }
  }
  return least;
}

template <class Pattern, int W>
void sweep(const SolvePlan& plan, const SolveTile& tile) {
  using L = Lanes<W>;
  using F = typename L::F;
  constexpr int kGroup = Pattern::kGroup;
  const int64_t k = plan.k;
  for (int64_t first = 0; first < k; first += kSolveBlock) {
    const float* h = plan.matrix + first * k + first;
    for (int lane = 0; lane < kSolveRows; lane += W) {
      F x[kSolveBlock], before[kSolveBlock], g[kSolveBlock];
      for (int i = 0; i < kSolveBlock; ++i) {
        before[i] = x[i] = L::load(tile.values + (first + i) * kSolveRows + lane);
        g[i] = L::load(tile.gradient + (first + i) * kSolveRows + lane);
      }
      int32_t* scales = tile.scales + first / kSolveBlock * kSolveRows + lane;
      const typename L::I moves = L::load(tile.moves + lane), old = L::load(scales);
      typename L::I scale = old;
      F gain = move_scale<W>(plan, h, x, g, scale);
      const F step = L::look_up(plan.step, scale), inverse = L::look_up(plan.inverse, scale);
      for (int j = 0; j < kSolveBlock; j += kGroup) {
        typename L::I given = {};
        if (tile.is_given) given = L::load(tile.masks + (first + j) / kGroup * kSolveRows + lane);
        F change[kGroup];
        gain = gain + move_group<Pattern, W>(
                          plan, h + j * k + j, plan.maps + (first + j) / kGroup * kGroupNumbers<Pattern>,
                          tile.is_given ? &given : nullptr, step, inverse, x + j, g + j, change);
        for (int i = 0; i < kGroup; ++i) {
          x[j + i] = L::nearest_unit((x[j + i] + change[i]) * inverse) * step;
          for (int t = 0; t < kSolveBlock; ++t) g[t] = g[t] - change[i] * h[(j + i) * k + t];
        }
      }
      L::store(scales, L::pick(moves, scale, old));
      L::store(tile.gains + lane, L::load(tile.gains + lane) - L::pick(moves, gain, F{}));
      for (int i = 0; i < kSolveBlock; ++i) {
        x[i] = L::pick(moves, x[i], before[i]);
        L::store(tile.values + (first + i) * kSolveRows + lane, x[i]);
        L::store(tile.errors + i * kSolveRows + lane, x[i] - before[i]);
      }
    }
    subtract_block<W>(plan.matrix, k, first, 0, tile.errors, tile.gradient);
  }
}

template <int W>
void subtract_products(const double* a, const double* b, double* c, int64_t stride, int64_t count, int rows,
                       int64_t columns) {
  using L = Lanes<W>;
  using D = typename L::D;
  constexpr int kWide = W / 2, kRows = 4, kVectors = 2;
  for (; rows >= kRows; rows -= kRows, a += kRows, c += kRows * stride) {
    int64_t x = 0;
    for (; x + kVectors * kWide <= columns; x += kVectors * kWide) {
      D sums[kRows][kVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v)
          sums[r][v] = *reinterpret_cast<const typename L::LooseD*>(c + r * stride + x + v * kWide);
      }
      for (int64_t t = 0; t < count; ++t) {
        for (int v = 0; v < kVectors; ++v) {
          const D other = *reinterpret_cast<const typename L::LooseD*>(b + t * stride + x + v * kWide);
          for (int r = 0; r < kRows; ++r) sums[r][v] = sums[r][v] - other * a[t * stride + r];
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v)
          *reinterpret_cast<typename L::LooseD*>(c + r * stride + x + v * kWide) = sums[r][v];
      }
    }
    for (; x < columns; ++x) {
      for (int r = 0; r < kRows; ++r) {
        double sum = c[r * stride + x];
        for (int64_t t = 0; t < count; ++t) sum = sum - b[t * stride + x] * a[t * stride + r];
        c[r * stride + x] = sum;
      }
    }
  }
  for (; rows > 0; --rows, ++a, c += stride) {
    int64_t x = 0;
    for (; x + kWide <= columns; x += kWide) {
      D sum = *reinterpret_cast<const typename L::LooseD*>(c + x);
      for (int64_t t = 0; t < count; ++t)
        sum = sum - *reinterpret_cast<const typename L::LooseD*>(b + t * stride + x) * a[t * stride];
      *reinterpret_cast<typename L::LooseD*>(c + x) = sum;
    }
    for (; x < columns; ++x) {
      double sum = c[x];
      for (int64_t t = 0; t < count; ++t) sum = sum - b[t * stride + x] * a[t * stride];
      c[x] = sum;
    }
  }
}

/// Calls f<Pattern> by the plan's pattern.
#define TWOFOUR_BY_PATTERN(plan, f, ...)                   \
  ((plan).is_dense     ? f<AllOfFour, kWidth>(__VA_ARGS__) \
   : (plan).group == 4 ? f<TwoOfFour, kWidth>(__VA_ARGS__) \
                       : f<FourOfEightPaired, kWidth>(__VA_ARGS__))

template <int kWidth>
struct SolveFunctions {
  static void joint_rows(const SolvePlan& plan, const SolveTile& tile) {
    TWOFOUR_BY_PATTERN(plan, joint, plan, tile);
  }
  static void prune_rows(const SolvePlan& plan, const SolveTile& tile) {
    TWOFOUR_BY_PATTERN(plan, prune, plan, tile);
  }
  static void round(const SolvePlan& plan, const SolveTile& tile, bool masked, bool weighted) {
    TWOFOUR_BY_PATTERN(plan, round_rows, plan, tile, masked, weighted);
  }
  static void sweep_rows(const SolvePlan& plan, const SolveTile& tile) {
    TWOFOUR_BY_PATTERN(plan, sweep, plan, tile);
  }
};

#undef TWOFOUR_BY_PATTERN

template <int kWidth>
constexpr SolveOps solve_functions() {
  using Functions = SolveFunctions<kWidth>;
  return {Functions::joint_rows, Functions::prune_rows,  Functions::round,
          Functions::sweep_rows, subtract_block<kWidth>, subtract_products<kWidth>};
}

}  // namespace
}  // namespace twofour
