#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/floats/device_matrix.h"

/// Work on rows of float32 in device memory. Functions work on the caller's stream, wait for nothing, and
/// throw Error with CUDA's message.

namespace twofour::cuda {

/// out [m, n] = gate times up by `units`, for `m` rows of `n` numbers, `stride` floats apart.
void gate_rows(const float* gate, const float* up, int64_t m, int64_t n, int64_t stride,
               const GateUnits& units, float* out, Stream stream);

/// x += y.
void add_floats(float* x, const float* y, int64_t count, Stream stream);

/// Rows of x [m, n] times sigmoid(gates[m]), in place.
void scale_by_gates(float* x, const float* gates, int64_t m, int64_t n, Stream stream);

/// Rows `rows` [m] of x [.., n], one after another.
void gather_rows(const float* x, const int32_t* rows, int64_t m, int64_t n, float* out, Stream stream);

/// out[rows[i]] += weights[i] * x[i]; rows are distinct.
void scatter_rows(const float* x, const int32_t* rows, const float* weights, int64_t m, int64_t n, float* out,
                  Stream stream);

/// out[i] += sum over t of weights[i, t] * x[i, t], x [m, count, n].
void add_weighted_rows(const float* x, const float* weights, int64_t m, int64_t count, int64_t n, float* out,
                       Stream stream);

/// sum[0] = the sum over `m` rows x [m, n] of |weight| times norm, in double.
void sum_of_norms(const float* x, const float* weights, int64_t m, int64_t n, double* sum, Stream stream);

/// Figures of a row of logits.
struct LogitFigures {
  double log_sum;     ///< log of the sum of exp
  double divergence;  ///< KL(other || row); 0 without another
  float own, most;    ///< the logit of the row's token, and the largest logit
  int32_t top;        ///< the first token with the largest logit
  int32_t unused;
};
/// The figures of `m` rows of logits [m, n]; `tokens` [m], or nullptr; `other` [m, n], or nullptr, with its
/// figures.
void logit_figures(const float* logits, int64_t m, int64_t n, const int32_t* tokens, const float* other,
                   const LogitFigures* other_figures, LogitFigures* out, Stream stream);

/// The state of a token by token run in device memory.
struct TokenState {
  int32_t token;     ///< the next token to append
  int32_t position;  ///< its position
};
/// Stores the figures of one row of logits [n] at history[position], and makes its most probable token the
/// next. `workspace` must be zeroed before its first use; calls can use it one after the other.
size_t choose_token_workspace();
void choose_token(const float* logits, int64_t n, void* workspace, TokenState* state, LogitFigures* history,
                  Stream stream);

}  // namespace twofour::cuda
