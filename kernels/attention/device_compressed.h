#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/stream.h"

/// Attention over the last tokens and over compressed entries (DeepSeek-V4), on the device in float32.
/// compressed_attention.h defines it. For the tokens of a sequence a layer
/// 1. prepares queries and the vectors of tokens, turn_rows();
/// 2. makes the entries that the tokens complete, make_entries();
/// 3. chooses the entries that each token sees, choose_entries();
/// 4. attends to windows and to these entries, attend_chosen(); and
/// 5. keeps what later tokens need, keep_rows().
/// A call has consecutive tokens of one sequence. Functions only put work on the caller's stream, and do not
/// wait. They throw Error with CUDA's message.

namespace twofour::cuda {

/// The largest size of a head, of an entry and of a key of the index.
inline constexpr int kMostRowSize = 512;

/// Consecutive tokens.
struct TokenSpan {
  int64_t m = 0, begin = 0;           ///< number of tokens, and the position of the first
  const int32_t* position = nullptr;  ///< position of a single token in device memory, in place of `begin`
};

/// Steps that change a row of numbers, in this order. A step that is not set is left out.
struct RowTurn {
  bool is_normed = false;       ///< x / sqrt(mean of x^2 + epsilon)
  const float* norm = nullptr;  ///< [size], factors after it; may be null
  double epsilon = 0;
  /// The last 2 * pairs numbers are rotated by the row's position. Neighbours are a pair.
  const float* frequencies = nullptr;  ///< [pairs]
  int64_t pairs = 0;
  bool is_spread = false;  ///< multiplied by the Hadamard matrix in Sylvester's order, times size^-1/2
};

/// Turns heads in place: x [m, heads, size], whose rows are `stride` floats apart. The only row of a single
/// token is kept at once in kept [kept_count, size], at its position modulo kept_count; `kept` may be null.
struct TurnedRows {
  TokenSpan tokens;
  RowTurn turn;
  int64_t heads = 0, size = 0;
  float* x = nullptr;
  int64_t stride = 0;
  float* kept = nullptr;
  int64_t kept_count = 0;
};
void turn_rows(const TurnedRows& rows, Stream stream);

/// Rows of tokens. A layer keeps the last of them. The row of a token of this call is at rows + i * stride.
/// The row of the token at position p before them is at kept + p % count * size.
struct KeptRows {
  const float* rows = nullptr;
  int64_t stride = 0;
  float* kept = nullptr;  ///< [count, size]; null if all tokens are in the call, and nothing is kept
  int64_t count = 0, size = 0;
};
/// Keeps the rows of the last tokens. turn_rows() and make_entries() do this themselves for a single token.
void keep_rows(const TokenSpan& tokens, const KeptRows& rows, Stream stream);

/// Makes the entries that tokens complete, like cpu::compress(), and turns each by the position of its first
/// token. Numbers from `first` on of the tokens' rows are values [columns], then gates [columns].
struct EntryMaker {
  int64_t width = 0;
  int64_t first = 0;
  const float* bias = nullptr;  ///< [ratio, columns]
  RowTurn turn;
  float* entries = nullptr;  ///< entry i is at entries + i * width

  /// With overlap, a token has two values and gates for each number of an entry.
  static constexpr int64_t columns(int64_t width, bool overlaps) { return overlaps ? 2 * width : width; }
};
/// The entries of a layer, and the keys of its index. All are made of the same rows.
struct EntryMakers {
  TokenSpan tokens;
  int64_t ratio = 0;
  bool overlaps = false;
  KeptRows rows;  ///< count is ratio, or 2 * ratio with overlap; the row of a single token is kept at once
  EntryMaker makers[2];
  int count = 0;
};
void make_entries(const EntryMakers& makers, Stream stream);

/// Chooses the entries that tokens see, like cpu::choose_entries(). A token that may see `most` entries or
/// fewer sees all of them, and its row of `chosen` is not written.
struct DeviceEntryScores {
  TokenSpan tokens;
  int64_t heads = 0, size = 0;
  int64_t ratio = 0, most = 0;
  int64_t entries = 0;             ///< number of entries that any of the tokens may see at most
  const float* q = nullptr;        ///< [m, heads, size]
  const float* keys = nullptr;     ///< [entries, size]
  const float* weights = nullptr;  ///< [heads], rows are `weight_stride` floats apart
  int64_t weight_stride = 0;
  float* scores = nullptr;    ///< [m, entries], memory for scores
  int32_t* chosen = nullptr;  ///< [m, most], ascending
};
void choose_entries(const DeviceEntryScores& in, Stream stream);

/// Attention to a window of tokens and to entries, like cpu::attend_chosen(). Outputs are turned back by the
/// positions of the queries.
struct DeviceChosenAttention {
  TokenSpan tokens;
  int64_t heads = 0, size = 0;
  const float* q = nullptr;  ///< [m, heads, size]
  int64_t window = 0;
  KeptRows rows;      ///< rows of the tokens; count is the window
  int64_t first = 0;  ///< number of tokens of the call before the first query
  const float* entries = nullptr;
  int64_t ratio = 0;                   ///< a token at p may see (p + 1) / ratio entries; 0: no entries
  int64_t most = 0;                    ///< number of entries that a token sees at most
  const int32_t* chosen = nullptr;     ///< [m, most] the entries of tokens that may see more; null: none may
  const float* sinks = nullptr;        ///< [heads]
  float scale = 1;                     ///< factor of the products of queries and keys
  const float* frequencies = nullptr;  ///< [pairs]
  int64_t pairs = 0;
  int64_t groups = 1;    ///< groups of heads
  float* out = nullptr;  ///< [groups, m, heads / groups, size]
};
void attend_chosen(const DeviceChosenAttention& in, Stream stream);

}  // namespace twofour::cuda
