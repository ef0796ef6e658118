#pragma once
#include <cstdint>

#include "kernels/solve/solve_ops.h"

// One file for each instruction set includes this file. Nothing here may emit a function that another file
// could share, so everything has the parameter W.

namespace twofour {
namespace {

/// A vector with one number for each of W rows.
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
  static I bits(F x) { return reinterpret_cast<I>(x); }
  static F floats(I x) { return reinterpret_cast<F>(x); }
  static F magnitude(F x) { return floats(bits(x) & 0x7FFFFFFF); }
  static F larger(F a, F b) { return a < b ? b : a; }

  static F look_up(const float* table, I at) {
    int32_t places[W];
    float out[W];
    store(places, at);
    for (int lane = 0; lane < W; ++lane) out[lane] = table[places[lane]];
    return load(out);
  }
  /// The block scale that is nearest to each number in `want`.
  static I nearest_scales(const SolvePlan& plan, F want) {
    float wants[W];
    int32_t out[W];
    store(wants, want);
    for (int lane = 0; lane < W; ++lane) out[lane] = plan.nearest(wants[lane]);
    return load(out);
  }
};

/// Does the work of subtract_block for `kColumns` columns.
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
  constexpr int kColumns = W / 4;  // the number of sums that fit in registers
  matrix += first * k;
  int64_t t = from;
  for (; t + kColumns <= k; t += kColumns)
    subtract_columns<W, kColumns>(matrix + t, k, errors, to + t * kSolveRows);
  for (; t < k; ++t) subtract_columns<W, 1>(matrix + t, k, errors, to + t * kSolveRows);
}

template <int W>
void subtract_products(const DoubleProducts& p) {
  using L = Lanes<W>;
  using D = typename L::D;
  using LooseD = typename L::LooseD;
  constexpr int kWide = W / 2, kRows = 4, kVectors = 2;
  const double* a = p.a;
  double* c = p.c;
  int64_t rows = p.rows;
  for (; rows >= kRows; rows -= kRows, a += kRows * p.a_row, c += kRows * p.c_row) {
    int64_t x = 0;
    for (; x + kVectors * kWide <= p.columns; x += kVectors * kWide) {
      D sums[kRows][kVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v)
          sums[r][v] = *reinterpret_cast<const LooseD*>(c + r * p.c_row + x + v * kWide);
      }
      for (int64_t t = 0; t < p.count; ++t) {
        for (int v = 0; v < kVectors; ++v) {
          const D other = *reinterpret_cast<const LooseD*>(p.b + t * p.b_next + x + v * kWide);
          for (int r = 0; r < kRows; ++r) sums[r][v] = sums[r][v] - other * a[t * p.a_next + r * p.a_row];
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v)
          *reinterpret_cast<LooseD*>(c + r * p.c_row + x + v * kWide) = sums[r][v];
      }
    }
    for (; x < p.columns; ++x) {
      for (int r = 0; r < kRows; ++r) {
        double sum = c[r * p.c_row + x];
        for (int64_t t = 0; t < p.count; ++t)
          sum = sum - p.b[t * p.b_next + x] * a[t * p.a_next + r * p.a_row];
        c[r * p.c_row + x] = sum;
      }
    }
  }
  for (; rows > 0; --rows, a += p.a_row, c += p.c_row) {
    int64_t x = 0;
    for (; x + kWide <= p.columns; x += kWide) {
      D sum = *reinterpret_cast<const LooseD*>(c + x);
      for (int64_t t = 0; t < p.count; ++t)
        sum = sum - *reinterpret_cast<const LooseD*>(p.b + t * p.b_next + x) * a[t * p.a_next];
      *reinterpret_cast<LooseD*>(c + x) = sum;
    }
    for (; x < p.columns; ++x) {
      double sum = c[x];
      for (int64_t t = 0; t < p.count; ++t) sum = sum - p.b[t * p.b_next + x] * a[t * p.a_next];
      c[x] = sum;
    }
  }
}

}  // namespace
}  // namespace twofour
