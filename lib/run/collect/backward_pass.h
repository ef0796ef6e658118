#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lib/base/io/work_file.h"
#include "lib/run/collect/batches.h"
#include "lib/run/gradients/gradients.h"

namespace twofour {

/// A backward pass over windows of tokens, layer by layer from the last one. The residual streams before each
/// layer are in a file, where the gradients replace them. The system removes the file when the object or the
/// process ends.
class BackwardPass {
 public:
  /// Creates the file, which must not exist. `model` and `windows` must outlive this object.
  BackwardPass(const Decoder& model, const std::vector<std::vector<int32_t>>& windows,
               const std::filesystem::path& file);
  /// Bytes of the file for `tokens` tokens.
  static uint64_t bytes_of_file(const Decoder& model, int64_t tokens);
  /// Bytes of memory for a batch, beside what the watcher has.
  static uint64_t bytes_of_batch(const Decoder& model, const std::vector<std::vector<int32_t>>& windows);

  /// Keeps rows, from `row` on, of the stream before a layer, or after the last one.
  void keep(int64_t layer, size_t row, std::span<const float> rows) const;
  /// Runs the whole model forward, and keeps its streams. Calls `done` for each batch of a layer.
  void run_forward(const std::function<void(size_t tokens)>& done) const;

  /// The watcher of a batch. It is called once for each batch before it runs.
  using Watch = std::function<GradientWatcher*(const TokenBatch&)>;
  /// Runs the head, then layers from the last one to the first. All batches run a layer before the next.
  /// Calls `done` for each batch. run_head() returns the sum of losses.
  double run_head(const Watch& watch, const std::function<void(const TokenBatch&)>& done);
  /// The same by the loss against another model, whose rows after the last layer rows_of(batch) returns.
  double run_head(const Decoder& reference,
                  const std::function<std::vector<float>(const TokenBatch&)>& rows_of, const Watch& watch,
                  const std::function<void(const TokenBatch&)>& done);
  void run_layer(int64_t layer, const Watch& watch, const std::function<void(const TokenBatch&)>& done);
  const std::vector<TokenBatch>& batches() const { return batches_; }

 private:
  std::vector<float> read(int64_t layer, const TokenBatch& batch) const;
  size_t offset(int64_t layer, size_t row) const;

  const Decoder& model_;
  const std::vector<std::vector<int32_t>>& windows_;
  std::vector<TokenBatch> batches_;
  size_t tokens_ = 0;
  std::unique_ptr<WorkFile> file_;
};

}  // namespace twofour
