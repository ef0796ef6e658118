#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lib/run/decoder/decoder.h"

namespace twofour {

/// Windows [first, first + count) and their rows among the rows of all windows.
struct TokenBatch {
  size_t first, count;
  size_t row, rows;
  bool held_out;
};

/// The windows in order, as many at a time as `bytes_per_token` allows; the last `held_out` windows are in
/// separate batches.
std::vector<TokenBatch> batches_of(const std::vector<std::vector<int32_t>>& windows, int64_t held_out,
                                   uint64_t bytes_per_token);
/// The windows of a batch as parts for a model.
std::vector<SequencePart> parts_of(const TokenBatch& batch, const std::vector<std::vector<int32_t>>& windows);
/// The rows of the largest batch.
size_t largest_batch(const std::vector<TokenBatch>& batches);
/// All windows, one after another.
std::vector<int32_t> join_windows(const std::vector<std::vector<int32_t>>& windows);

/// Throws Error on a window that is longer than the model's positions.
void check_windows(const Decoder& model, const std::vector<std::vector<int32_t>>& windows);

}  // namespace twofour
