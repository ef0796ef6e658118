#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lib/run/decoder/decoder.h"

namespace twofour {

/// The windows [first, first + count), and the range of their rows. Rows count over all windows.
struct TokenBatch {
  size_t first, count;
  size_t row, rows;
  bool held_out;
};

/// Divides the windows, in order, into batches. A batch has as many windows as `bytes_per_token` allows. The
/// last `held_out` windows are in separate batches.
std::vector<TokenBatch> batches_of(const std::vector<std::vector<int32_t>>& windows, int64_t held_out,
                                   uint64_t bytes_per_token);
/// The windows of a batch as sequences for a model. They refer to `windows`.
std::vector<SequencePart> parts_of(const TokenBatch& batch, const std::vector<std::vector<int32_t>>& windows);
/// The number of rows of the largest batch.
size_t largest_batch(const std::vector<TokenBatch>& batches);
/// The tokens of all windows, one window after the other.
std::vector<int32_t> join_windows(const std::vector<std::vector<int32_t>>& windows);

/// Throws Error if a window has more tokens than the model has positions.
void check_windows(const Decoder& model, const std::vector<std::vector<int32_t>>& windows);

}  // namespace twofour
