#include "kernels/moe/moe_cpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "formats/error.h"
#include "formats/half.h"
#include "formats/layouts/checkpoint_rows.h"
#include "formats/layouts/layouts.h"
#include "kernels/moe/moe.h"
#include "kernels/moe/moe_strips.h"
#include "kernels/numbers/casts.h"

namespace twofour::cpu {
namespace {

/// The number of tokens that are computed at a time. It bounds the memory.
constexpr int64_t kMaxTokens = 512;

/// The offset of byte `byte` of the atom at (n, group) in its part of one expert.
template <class L>
int64_t offset_of(const Shape& one, int64_t n, int64_t group, int byte) {
  const Stored s = L::place(one, {0, n, group, byte});
  return s.at.row * L::part(s.part, one).cols + s.at.col;
}

/// True if strips can describe how a layout stores its rows. A 2:4 layout must store each byte of an atom in
/// one part, with adjacent rows and a fixed step from group to group. A dense layout must store the codes of
/// a row without gaps, and its scales with one fixed step within four groups and a second one from four
/// groups to the next.
template <class L>
constexpr bool has_strips(bool gated) {
  const Shape one{1, 96, 160, gated};
  const auto at = [&](int64_t n, int64_t group, int byte) {
    const Stored s = L::place(one, {0, n, group, byte});
    return std::pair(s.part, s.at.row * L::part(s.part, one).cols + s.at.col);
  };
  for (int64_t n = 0; n < one.n; ++n) {
    for (int64_t group = 0; group < one.groups(); ++group) {
      for (int byte = 0; byte < static_cast<int>(sizeof(typename L::Atom)); ++byte) {
        const auto [part, first] = at(n, 0, byte);
        int64_t expected = 0;
        if constexpr (std::is_same_v<typename L::Atom, SparseGroup>) {
          expected = at(0, 0, byte).second + n + group * (at(0, 1, byte).second - at(0, 0, byte).second);
        } else if (byte < 8) {
          expected = at(n, 0, 0).second + group * 8 + byte;
        } else {
          expected = first + group % 4 * (at(0, 1, byte).second - at(0, 0, byte).second) +
                     group / 4 * (at(0, 4, byte).second - at(0, 0, byte).second);
        }
        const bool sparse = std::is_same_v<typename L::Atom, SparseGroup>;
        const int wanted = sparse ? part : byte < 8 ? 0 : 1;
        if (at(n, group, byte) != std::pair(wanted, expected)) return false;
      }
    }
  }
  return true;
}

/// Multiplies rows [n0, n0 + rows) of expert `e` by some tokens. out is [tokens, kStripRows].
using MultiplyRows = void(const Experts& w, const MoeStrips& ops, int64_t e, int64_t n0, int rows,
                          const float* const* x, int tokens, float* out);

template <class L>
void multiply_sparse_rows(const Experts& w, const MoeStrips& ops, int64_t e, int64_t n0, int rows,
                          const float* const* x, int tokens, float* out) {
  const Shape one{1, w.shape.n, w.shape.k, w.shape.gated};
  SparseStrip strip{};
  for (int byte = 0; byte < static_cast<int>(sizeof(SparseGroup)); ++byte) {
    const int p = L::place(one, {0, n0, 0, byte}).part;
    const int64_t first = offset_of<L>(one, n0, 0, byte);
    strip.bytes[byte] = w.parts[p] + e * L::part(p, one).bytes() + first;
    strip.steps[byte] = offset_of<L>(one, n0, 1, byte) - first;
  }
  strip.rows = rows;
  strip.groups = one.groups();
  ops.sparse(strip, x, tokens, out);
}

template <class L>
void multiply_dense_rows(const Experts& w, const MoeStrips& ops, int64_t e, int64_t n0, int rows,
                         const float* const* x, int tokens, float* out) {
  constexpr int kScaleByte = sizeof(DenseGroup) - 1;
  const Shape one{1, w.shape.n, w.shape.k, w.shape.gated};
  DenseStrip strip{};
  for (int r = 0; r < rows; ++r) {
    strip.codes[r] = w.parts[0] + e * L::part(0, one).bytes() + offset_of<L>(one, n0 + r, 0, 0);
    strip.scales[r] = w.parts[1] + e * L::part(1, one).bytes() + offset_of<L>(one, n0 + r, 0, kScaleByte);
  }
  const int64_t first = offset_of<L>(one, n0, 0, kScaleByte);
  strip.scale_step = offset_of<L>(one, n0, 1, kScaleByte) - first;
  strip.scale_tile = offset_of<L>(one, n0, 4, kScaleByte) - first;
  strip.rows = rows;
  strip.groups = one.groups();
  ops.dense(strip, x, tokens, out);
}

/// The function that multiplies rows of a layout. `even_first` is true if it needs the even k of each group
/// before the odd k.
struct Multiplier {
  MultiplyRows* multiply = nullptr;
  bool even_first = false;
};

Multiplier multiplier(const Experts& w, const char* name) {
  Multiplier found;
  const bool known = with_stored(w.layout, [&]<class L>() {
    static_assert(has_strips<L>(false) && has_strips<L>(true), "a layout with rows that strips describe");
    if constexpr (std::is_same_v<typename L::Atom, SparseGroup>) {
      found = {multiply_sparse_rows<L>, false};
    } else {
      found = {multiply_dense_rows<L>, true};
    }
  });
  if (!known) throw Error(fmt::format("moe: {}: expected a layout, found \"{}\"", name, w.layout));
  return found;
}

/// The position of k in an activation.
int64_t position(int64_t k, bool even_first) {
  return even_first ? k / kGroup * kGroup + k % 2 * (kGroup / 2) + k % kGroup / 2 : k;
}

void check(const Moe& layer, const cuda::MoeTokens& in) {
  const Shape &up = layer.w13.shape, &down = layer.w2.shape;
  const bool fits = up.e == down.e && down.n == up.k && up.k % kGroup == 0 && down.k % kGroup == 0 &&
                    up.n == (up.gated ? 2 : 1) * down.k && !down.gated;
  if (!fits) {
    throw Error(
        fmt::format("moe: expected w13 [E, {}I, H] and w2 [E, H, I], found [{}, {}, {}] and "
                    "[{}, {}, {}]",
                    up.gated ? "2" : "", up.e, up.n, up.k, down.e, down.n, down.k));
  }
  if (in.m < 0 || in.topk < 1)
    throw Error(fmt::format("moe: expected tokens with experts, found {} with {}", in.m, in.topk));
  if (in.m > 0 && !(in.hidden && in.topk_ids && in.topk_weights && in.out))
    throw Error("moe: expected hidden, topk_ids, topk_weights and out, found nullptr");
}

float activate(float gate, float up, float limit) {
  if (limit > 0) {
    gate = std::min(gate, limit);
    up = std::clamp(up, -limit, limit);
  }
  return gate / (1 + std::exp(-gate)) * up;
}

void store(void* out, cuda::Float type, int64_t at, float value) {
  if (type == cuda::Float::f32) {
    static_cast<float*>(out)[at] = value;
  } else {
    static_cast<uint16_t*>(out)[at] =
        type == cuda::Float::bf16 ? bf16_from_float(value) : fp16_from_float(value);
  }
}

/// The rows of some tokens whose experts are on this device, grouped by expert.
class Rows {
 public:
  Rows(const Moe& layer, const cuda::MoeTokens& in) : layer_(layer), in_(in) {
    const auto count = static_cast<size_t>(in.m * in.topk);
    const std::span map(layer.expert_map, static_cast<size_t>(layer.expert_map ? layer.map_size : 0));
    at_.assign(count, -1);
    for (const auto& [e, rows] : route_rows({in.topk_ids, count}, in.topk, layer.w13.shape.e, map)) {
      experts_.push_back({e, static_cast<int64_t>(rows_.size()), static_cast<int64_t>(rows.size())});
      for (const RoutedRow& row : rows) {
        at_[static_cast<size_t>(row.m * in.topk + row.t)] = static_cast<int64_t>(rows_.size());
        rows_.push_back(row);
      }
    }
  }

  void run(Isa isa) {
    const MoeStrips& ops = moe_strips(isa);
    const Multiplier up = multiplier(layer_.w13, "w13"), down = multiplier(layer_.w2, "w2");
    const int64_t h = layer_.w2.shape.n, i = layer_.w2.shape.k, count = static_cast<int64_t>(rows_.size());
    const auto size = [](int64_t a, int64_t b) { return static_cast<size_t>(a * b); };
    std::vector<float> hidden = prepare_hidden(up.even_first);
    std::vector<float> active(size(count, i)), y(size(count, h));
    std::vector<const float*> x(rows_.size());

    // Gate and up
    for (int64_t r = 0; r < count; ++r)
      x[static_cast<size_t>(r)] = &hidden[size(layer_.weight_on_input ? r : row(r).m, h)];
    const bool gated = layer_.w13.shape.gated;
    for_strips(i, [&](const Expert& e, int64_t n0, int n, int64_t r0, int rows) {
      float gate[kStripTokens * kStripRows], other[kStripTokens * kStripRows];
      up.multiply(layer_.w13, ops, e.e, n0, n, &x[static_cast<size_t>(r0)], rows, gate);
      if (gated) up.multiply(layer_.w13, ops, e.e, i + n0, n, &x[static_cast<size_t>(r0)], rows, other);
      const float g = layer_.w13.global_scale[e.e];
      for (int r = 0; r < rows; ++r) {
        float* to = &active[size(r0 + r, i)];
        for (int c = 0; c < n; ++c) {
          const float first = g * gate[r * kStripRows + c];
          to[position(n0 + c, down.even_first)] =
              gated ? activate(first, g * other[r * kStripRows + c], layer_.limit)
                    : std::max(first, 0.0f) * std::max(first, 0.0f);
        }
      }
    });

    // Down
    for (int64_t r = 0; r < count; ++r) x[static_cast<size_t>(r)] = &active[size(r, i)];
    for_strips(h, [&](const Expert& e, int64_t n0, int n, int64_t r0, int rows) {
      float sums[kStripTokens * kStripRows];
      down.multiply(layer_.w2, ops, e.e, n0, n, &x[static_cast<size_t>(r0)], rows, sums);
      for (int r = 0; r < rows; ++r) {
        const float weight = layer_.weight_on_input ? 1.0f : weight_of(row(r0 + r));
        const float factor = layer_.w2.global_scale[e.e] * weight;
        for (int c = 0; c < n; ++c)
          y[size(r0 + r, h) + static_cast<size_t>(n0 + c)] = factor * sums[r * kStripRows + c];
      }
    });
    combine(y);
  }

 private:
  struct Expert {
    int64_t e, begin, count;  ///< rows
  };

  const RoutedRow& row(int64_t r) const { return rows_[static_cast<size_t>(r)]; }
  float weight_of(const RoutedRow& r) const { return in_.topk_weights[r.m * in_.topk + r.t]; }

  /// Returns activations as float32: [M, H], or [rows, H] if each row has its own weight.
  std::vector<float> prepare_hidden(bool even_first) const {
    const int64_t h = layer_.w13.shape.k, bytes = cuda::size_of(in_.type);
    const int64_t count = layer_.weight_on_input ? static_cast<int64_t>(rows_.size()) : in_.m;
    std::vector<float> to(static_cast<size_t>(count * h)), token(static_cast<size_t>(h));
    for (int64_t r = 0; r < count; ++r) {
      const int64_t m = layer_.weight_on_input ? row(r).m : r;
      const float weight = layer_.weight_on_input ? weight_of(row(r)) : 1.0f;
      widen(cuda::dtype_of(in_.type), static_cast<const uint8_t*>(in_.hidden) + m * h * bytes, token);
      for (int64_t k = 0; k < h; ++k)
        to[static_cast<size_t>(r * h + position(k, even_first))] = weight * token[static_cast<size_t>(k)];
    }
    return to;
  }

  /// Calls `f` for every strip of `n` rows of each expert, with up to kStripTokens tokens of the expert.
  template <class F>
  void for_strips(int64_t n, const F& f) const {
    const int64_t strips = (n + kStripRows - 1) / kStripRows;
    const auto all = static_cast<int64_t>(experts_.size()) * strips;
#pragma omp parallel for schedule(dynamic)
    for (int64_t s = 0; s < all; ++s) {
      const Expert& e = experts_[static_cast<size_t>(s / strips)];
      const int64_t n0 = s % strips * kStripRows;
      for (int64_t r = 0; r < e.count; r += kStripTokens) {
        f(e, n0, static_cast<int>(std::min<int64_t>(kStripRows, n - n0)), e.begin + r,
          static_cast<int>(std::min<int64_t>(kStripTokens, e.count - r)));
      }
    }
  }

  /// Computes out[m], the sum of the rows of a token in their order.
  void combine(const std::vector<float>& y) const {
    const int64_t h = layer_.w2.shape.n;
#pragma omp parallel for schedule(static)
    for (int64_t m = 0; m < in_.m; ++m) {
      for (int64_t n = 0; n < h; ++n) {
        float sum = 0;
        for (int64_t t = 0; t < in_.topk; ++t) {
          const int64_t r = at_[static_cast<size_t>(m * in_.topk + t)];
          if (r >= 0) sum += y[static_cast<size_t>(r * h + n)];
        }
        store(in_.out, in_.type, m * h + n, sum);
      }
    }
  }

  const Moe& layer_;
  const cuda::MoeTokens& in_;
  std::vector<Expert> experts_;
  std::vector<RoutedRow> rows_;
  std::vector<int64_t> at_;  ///< [M, topk] positions in rows_; -1 if not here
};

}  // namespace

void moe(const Moe& layer, const cuda::MoeTokens& in, Isa isa) {
  check(layer, in);
  const int64_t bytes = layer.w13.shape.k * cuda::size_of(in.type);
  for (int64_t m0 = 0; m0 < in.m; m0 += kMaxTokens) {
    cuda::MoeTokens some = in;
    some.m = std::min(in.m - m0, kMaxTokens);
    some.hidden = static_cast<const char*>(in.hidden) + m0 * bytes;
    some.topk_ids = in.topk_ids + m0 * in.topk;
    some.topk_weights = in.topk_weights + m0 * in.topk;
    some.out = static_cast<char*>(in.out) + m0 * bytes;
    Rows(layer, some).run(isa);
  }
}

void multiply(const Experts& w, int64_t rows, cuda::Float type, const void* x, const int32_t* ids, void* out,
              Isa isa) {
  const Multiplier by = multiplier(w, "matrix");
  const int64_t n = w.shape.n, k = w.shape.k, bytes = cuda::size_of(type);
  if (rows < 0 || k % kGroup != 0 || (rows > 0 && !(x && ids && out)))
    throw Error(fmt::format("multiply: expected rows with ids and a K of groups of {}, found {} of [{}, {}]",
                            kGroup, rows, n, k));
  const MoeStrips& ops = moe_strips(isa);
  const int64_t strips = (n + kStripRows - 1) / kStripRows;
  std::vector<float> wide(static_cast<size_t>(std::min(rows, kMaxTokens) * k)), one(static_cast<size_t>(k));
  for (int64_t r0 = 0; r0 < rows; r0 += kMaxTokens) {
    const int64_t count = std::min(rows - r0, kMaxTokens);
    for (int64_t r = 0; r < count; ++r) {
      widen(cuda::dtype_of(type), static_cast<const uint8_t*>(x) + (r0 + r) * k * bytes, one);
      for (int64_t i = 0; i < k; ++i)
        wide[static_cast<size_t>(r * k + position(i, by.even_first))] = one[static_cast<size_t>(i)];
    }
    for (const auto& [e, routed] : route_rows({ids + r0, static_cast<size_t>(count)}, 1, w.shape.e, {})) {
      const std::vector<RoutedRow>& its = routed;
      const int64_t expert = e, all = static_cast<int64_t>(its.size());
      std::vector<const float*> from;
      for (const RoutedRow& row : its) from.push_back(&wide[static_cast<size_t>(row.m * k)]);
#pragma omp parallel for schedule(dynamic)
      for (int64_t s = 0; s < strips; ++s) {
        const int64_t n0 = s * kStripRows, height = std::min<int64_t>(kStripRows, n - n0);
        float sums[kStripTokens * kStripRows];
        for (int64_t t = 0; t < all; t += kStripTokens) {
          const int64_t some = std::min<int64_t>(kStripTokens, all - t);
          by.multiply(w, ops, expert, n0, static_cast<int>(height), &from[static_cast<size_t>(t)],
                      static_cast<int>(some), sums);
          for (int64_t r = 0; r < some; ++r) {
            const int64_t to = (r0 + its[static_cast<size_t>(t + r)].m) * n + n0;
            for (int64_t c = 0; c < height; ++c)
              store(out, type, to + c, w.global_scale[expert] * sums[r * kStripRows + c]);
          }
        }
      }
    }
  }
}

}  // namespace twofour::cpu
