#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/floats/device_matrix.h"

/// Work on rows of float32 in device memory. Functions work on the caller's stream, wait for nothing, and
/// throw Error with CUDA's words.

namespace twofour::cuda {

/// gate = what it does to its up, of `m` rows of `n` numbers, each `stride` floats apart, to rows of `out`
/// [m, n].
void gate_rows(const float* gate, const float* up, int64_t m, int64_t n, int64_t stride,
               const GateUnits& units, float* out, Stream stream);

/// x += y.
void add_floats(float* x, const float* y, int64_t count, Stream stream);

/// Rows of x [m, n] times sigmoid(gates[m]), in place.
void scale_by_gates(float* x, const float* gates, int64_t m, int64_t n, Stream stream);

/// Rows `rows` [m] of x [.., n], one after another.
void gather_rows(const float* x, const int32_t* rows, int64_t m, int64_t n, float* out, Stream stream);

/// out[rows[i]] += weights[i] * x[i], of distinct rows.
void scatter_rows(const float* x, const int32_t* rows, const float* weights, int64_t m, int64_t n, float* out,
                  Stream stream);

/// out[i] += sum over t of weights[i, t] * x[i, t], x [m, count, n].
void add_weighted_rows(const float* x, const float* weights, int64_t m, int64_t count, int64_t n, float* out,
                       Stream stream);

/// The sum over `m` rows x [m, n] of |weights| times their norms, into sum[0], in double.
void sum_of_norms(const float* x, const float* weights, int64_t m, int64_t n, double* sum, Stream stream);

/// What a row of logits says.
struct LogitFigures {
  double log_sum;     ///< log of the sum of exp
  double divergence;  ///< KL(other || row); 0 without another
  float own, most;    ///< the logit of the row's token, and the largest
  int32_t top;        ///< the first of the largest
  int32_t unused;
};
/// Of `m` rows of logits [m, n]; `tokens` [m], or nullptr; `other` [m, n], or nullptr, with its figures.
void logit_figures(const float* logits, int64_t m, int64_t n, const int32_t* tokens, const float* other,
                   const LogitFigures* other_figures, LogitFigures* out, Stream stream);

/// What a token by token run keeps in device memory.
struct TokenState {
  int32_t token;     ///< to append next
  int32_t position;  ///< that it gets
};
/// Notes the figures of one row of logits [n] at history[position], and goes on to its most probable token.
/// `workspace` is zeroed before it is first used, and serves one call after the other.
size_t choose_token_workspace();
void choose_token(const float* logits, int64_t n, void* workspace, TokenState* state, LogitFigures* history,
                  Stream stream);

}  // namespace twofour::cuda
