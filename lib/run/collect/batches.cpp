#include "lib/run/collect/batches.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"

namespace twofour {
namespace {

constexpr uint64_t kBatchBytes = 512 << 20;

size_t longest(const std::vector<std::vector<int32_t>>& windows) {
  size_t most = 0;
  for (const auto& w : windows) most = std::max(most, w.size());
  return most;
}

}  // namespace

std::vector<TokenBatch> batches_of(const std::vector<std::vector<int32_t>>& windows, int64_t held_out,
                                   uint64_t bytes_per_token) {
  const uint64_t window = bytes_per_token * std::max<size_t>(1, longest(windows));
  const size_t at_once = std::max<uint64_t>(1, kBatchBytes / window);
  std::vector<TokenBatch> batches;
  const size_t kept = windows.size() - static_cast<size_t>(held_out);
  size_t row = 0;
  for (size_t i = 0; i < windows.size(); ++i) {
    const bool is_held_out = i >= kept;
    if (batches.empty() || batches.back().count == at_once || batches.back().held_out != is_held_out)
      batches.push_back({i, 0, row, 0, is_held_out});
    ++batches.back().count;
    batches.back().rows += windows[i].size();
    row += windows[i].size();
  }
  return batches;
}

std::vector<SequencePart> parts_of(const TokenBatch& batch,
                                   const std::vector<std::vector<int32_t>>& windows) {
  std::vector<SequencePart> parts;
  for (size_t i = 0; i < batch.count; ++i)
    parts.push_back(
        {static_cast<int64_t>(windows[batch.first + i].size()), 0, nullptr, windows[batch.first + i].data()});
  return parts;
}

size_t largest_batch(const std::vector<TokenBatch>& batches) {
  size_t most = 0;
  for (const TokenBatch& b : batches) most = std::max(most, b.rows);
  return most;
}

std::vector<int32_t> join_windows(const std::vector<std::vector<int32_t>>& windows) {
  std::vector<int32_t> tokens;
  for (const auto& w : windows) tokens.insert(tokens.end(), w.begin(), w.end());
  return tokens;
}

void check_windows(const Decoder& model, const std::vector<std::vector<int32_t>>& windows) {
  if (static_cast<int64_t>(longest(windows)) <= model.shape().positions) return;
  throw Error(
      fmt::format("{}: expected windows of at most the {} tokens of max_position_embeddings, found {}",
                  model.checkpoint().path().string(), model.shape().positions, longest(windows)));
}

}  // namespace twofour
