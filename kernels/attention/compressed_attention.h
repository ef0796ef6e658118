#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device/isa.h"

/// Attention over the last tokens and over compressed entries, each of which stands for several tokens
/// (DeepSeek-V4), in float32 on the CPU. A layer has one vector for each token, which is key and value of all
/// heads. For each token a layer
/// 1. adds the token to the compressor, and makes the entries that it completes, compress();
/// 2. chooses the entries that the token sees, choose_entries(); and
/// 3. attends to its window and to these entries, attend_chosen().
/// The compressor comes first, so a token sees the entry that it completes. Results do not depend on the
/// number of threads. Source: DeepSeek's inference/model.py; transformers 5.17, modeling_deepseek_v4.py.

namespace twofour::cpu {

/// The rows of those tokens that a later entry needs: tokens without an entry and, with overlap, the
/// `ratio` tokens before them.
struct CompressorState {
  std::vector<float> values, gates;  ///< rows of Compressor::columns() floats
};

/// Makes one entry of `ratio` tokens. For each channel by itself, an entry is the mean of the tokens' values,
/// weighted by the softmax of their gates. With overlap a token has two rows of values and gates: its first
/// row counts in the next entry, its second row in its own.
struct Compressor {
  int64_t ratio = 0, width = 0;
  bool overlaps = false;
  std::span<const float> bias;  ///< [ratio, columns()] is added to the gates of token p from row p mod ratio
  int64_t columns() const { return overlaps ? 2 * width : width; }
  /// The first token that an entry after `tokens` tokens needs.
  int64_t first_needed(int64_t tokens) const;
};
/// Adds `m` tokens from position `begin` on, with `values` and `gates` [m, columns()]. Returns the entries
/// [entries, width] that they complete, before norm and rotation. The first of them is entry begin / ratio.
std::vector<float> compress(const Compressor& compressor, const float* values, const float* gates, int64_t m,
                            int64_t begin, CompressorState& state);

/// Multiplies each of `rows` rows of `x` [rows, size] by the Hadamard matrix in Sylvester's order, times
/// size^-1/2, in place. `size` is a power of two.
void hadamard(float* x, int64_t rows, int64_t size);

/// Scores of the entries that tokens may see.
struct EntryScores {
  int64_t m = 0, begin = 0;        ///< tokens, and the position of the first
  int64_t heads = 0, size = 0;     ///< shape of the index
  int64_t ratio = 0;               ///< a token at p may see (p + 1) / ratio entries
  int64_t most = 0;                ///< number of entries that a token sees at most
  const float* q = nullptr;        ///< [m, heads, size]
  const float* keys = nullptr;     ///< [entries, size]
  const float* weights = nullptr;  ///< [m, heads]; score = sum over heads of weight * max(0, q k)
};
/// Returns the entries that each token sees, in ascending order: those with the largest scores, and
/// among equal scores the lowest entries.
std::vector<std::vector<int32_t>> choose_entries(const EntryScores& in, Isa isa = best_isa());

/// Attention of one sequence to a window of tokens and to entries.
struct ChosenAttention {
  int64_t m = 0, begin = 0;  ///< queries, and the position of the first
  int64_t heads = 0, size = 0;
  const float* q = nullptr;        ///< [m, heads, size]
  int64_t window = 0;              ///< number of tokens that a query sees, its own included
  int64_t first = 0;               ///< position of the first row of `tokens`
  const float* tokens = nullptr;   ///< [begin + m - first, size]
  const float* entries = nullptr;  ///< [entries, size]
  const std::vector<std::vector<int32_t>>* chosen =
      nullptr;                   ///< the entries that each query sees; nullptr: none
  std::span<const float> sinks;  ///< [heads] logits that take a share of the weights
  float scale = 0;               ///< factor of the products of queries and keys
};
/// Writes `out` [m, heads, size].
void attend_chosen(const ChosenAttention& in, float* out, Isa isa = best_isa());

}  // namespace twofour::cpu
