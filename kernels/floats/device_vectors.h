#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/floats/device_matrix.h"

/// Operations on rows of float32 in device memory. Functions only put work on the caller's stream, and do not
/// wait. They throw Error with CUDA's message.

namespace twofour::cuda {

/// Computes out [m, n], gate times up by the rule in `units`, for `m` rows of `n` numbers. Rows are `stride`
/// floats apart.
void gate_rows(const float* gate, const float* up, int64_t m, int64_t n, int64_t stride,
               const GateUnits& units, float* out, Stream stream);

/// Computes x += y.
void add_floats(float* x, const float* y, int64_t count, Stream stream);

/// Computes out = x - y.
void subtract_floats(const float* x, const float* y, int64_t count, float* out, Stream stream);

/// Multiplies row m of x [m, n] by factors[m] in place.
void scale_rows(float* x, const float* factors, int64_t m, int64_t n, Stream stream);

/// Computes most[0] = max(most[0], largest |x|). most[0] is not negative. NaN counts as no number.
void find_largest(const float* x, int64_t count, float* most, Stream stream);

/// Multiplies row m of x [m, n] by sigmoid(gates[m]) in place.
void scale_by_gates(float* x, const float* gates, int64_t m, int64_t n, Stream stream);

/// Copies the rows of x [.., n] whose numbers are in `rows` [m], one after another, to out.
void gather_rows(const float* x, const int32_t* rows, int64_t m, int64_t n, float* out, Stream stream);

/// Computes out[rows[i]] += weights[i] * x[i]. The row numbers must be distinct.
void scatter_rows(const float* x, const int32_t* rows, const float* weights, int64_t m, int64_t n, float* out,
                  Stream stream);

/// Computes out[i] += sum over t of weights[i, t] * x[i, t]. x is [m, count, n].
void add_weighted_rows(const float* x, const float* weights, int64_t m, int64_t count, int64_t n, float* out,
                       Stream stream);

/// Computes sum[0], the sum over `m` rows of x [m, n] of |weight| times the norm of the row, in double.
void sum_of_norms(const float* x, const float* weights, int64_t m, int64_t n, double* sum, Stream stream);

/// Statistics of a row of logits.
struct LogitFigures {
  double log_sum;     ///< log of the sum of exp
  double divergence;  ///< KL(other || row); 0 if no other row is given
  float own, most;    ///< logit of the given token, and the largest logit
  int32_t top;        ///< the lowest token with the largest logit
  int32_t unused;
};
/// Computes the statistics of `m` rows of logits [m, n]. `tokens` is [m] or null. `other` is [m, n] with its
/// statistics, or null.
void logit_figures(const float* logits, int64_t m, int64_t n, const int32_t* tokens, const float* other,
                   const LogitFigures* other_figures, LogitFigures* out, Stream stream);

/// The state of a run that proceeds token by token in device memory.
struct TokenState {
  int32_t token;     ///< the next token to append
  int32_t position;  ///< position of the token
};
/// Stores the statistics of one row of logits [n] at history[position], and makes the most probable token the
/// next token. `workspace` must be zeroed before its first use; later calls can reuse it one after the other.
size_t choose_token_workspace();
void choose_token(const float* logits, int64_t n, void* workspace, TokenState* state, LogitFigures* history,
                  Stream stream);

}  // namespace twofour::cuda
