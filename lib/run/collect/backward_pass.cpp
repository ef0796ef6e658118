#include "lib/run/collect/backward_pass.h"

#include <algorithm>
#include <system_error>

#include "lib/base/threads/interrupt.h"

namespace twofour {
namespace {

size_t width_of(const Decoder& model) { return static_cast<size_t>(model.shape().residual()); }

uint64_t backward_bytes_per_token(const Decoder& model) {
  return std::max(gradient_bytes_per_token(model), model.bytes_per_token()) +
         2 * sizeof(float) * width_of(model);
}

std::vector<TokenBatch> backward_batches(const Decoder& model,
                                         const std::vector<std::vector<int32_t>>& windows) {
  return batches_of(windows, 0, backward_bytes_per_token(model));
}

std::span<const uint8_t> bytes_of_rows(std::span<const float> rows) {
  return {reinterpret_cast<const uint8_t*>(rows.data()), rows.size_bytes()};
}

}  // namespace

BackwardPass::BackwardPass(const Decoder& model, const std::vector<std::vector<int32_t>>& windows,
                           const std::filesystem::path& file)
    : model_(model), windows_(windows), batches_(backward_batches(model, windows)) {
  for (const auto& w : windows) tokens_ += w.size();
  file_ = std::make_unique<WorkFile>(file, bytes_of_file(model, static_cast<int64_t>(tokens_)));
  std::error_code error;
  std::filesystem::remove(file, error);  // the open file stays until it is closed
}

uint64_t BackwardPass::bytes_of_file(const Decoder& model, int64_t tokens) {
  return static_cast<uint64_t>(model.shape().layers + 1) * static_cast<uint64_t>(tokens) * width_of(model) *
         sizeof(float);
}

uint64_t BackwardPass::bytes_of_batch(const Decoder& model,
                                      const std::vector<std::vector<int32_t>>& windows) {
  size_t longest = 0;
  for (const auto& w : windows) longest = std::max(longest, w.size());
  return largest_batch(backward_batches(model, windows)) * backward_bytes_per_token(model) +
         gradient_fixed_bytes(model, static_cast<int64_t>(longest)) + model.fixed_bytes();
}

size_t BackwardPass::offset(int64_t layer, size_t row) const {
  return (static_cast<size_t>(layer) * tokens_ + row) * width_of(model_) * sizeof(float);
}

void BackwardPass::keep(int64_t layer, size_t row, std::span<const float> rows) const {
  file_->write(offset(layer, row), bytes_of_rows(rows));
}

std::vector<float> BackwardPass::read(int64_t layer, const TokenBatch& batch) const {
  std::vector<float> rows(batch.rows * width_of(model_));
  file_->read(offset(layer, batch.row),
              {reinterpret_cast<uint8_t*>(rows.data()), rows.size() * sizeof(float)});
  return rows;
}

void BackwardPass::run_forward(const std::function<void(size_t)>& done) const {
  const std::vector<int32_t> ids = join_windows(windows_);
  for (int64_t layer = -1; layer < model_.shape().layers; ++layer) {
    for (const TokenBatch& b : batches_) {
      check_interrupt();
      std::vector<float> rows(b.rows * width_of(model_));
      if (layer < 0) {
        model_.embed(std::span(ids).subspan(b.row, b.rows), rows);
      } else {
        rows = read(layer, b);
        model_.run_layer(layer, parts_of(b, windows_), rows);
        done(b.rows);
      }
      keep(layer + 1, b.row, rows);
    }
  }
}

double BackwardPass::run_head(const Watch& watch, const std::function<void(const TokenBatch&)>& done) {
  const int64_t behind = model_.shape().layers;
  double loss = 0;
  for (const TokenBatch& b : batches_) {
    const std::vector<float> hidden = read(behind, b);
    std::vector<float> gradient(hidden.size());
    loss += backward_head(model_, parts_of(b, windows_), hidden, gradient, watch(b));
    keep(behind, b.row, gradient);
    done(b);
  }
  return loss;
}

double BackwardPass::run_head(const Decoder& reference,
                              const std::function<std::vector<float>(const TokenBatch&)>& rows_of,
                              const Watch& watch, const std::function<void(const TokenBatch&)>& done) {
  const int64_t behind = model_.shape().layers;
  double loss = 0;
  for (const TokenBatch& b : batches_) {
    const std::vector<float> hidden = read(behind, b), expected = rows_of(b);
    std::vector<float> gradient(hidden.size());
    loss += backward_head(model_, ReferenceRows{reference, expected}, hidden, gradient, watch(b));
    keep(behind, b.row, gradient);
    done(b);
  }
  return loss;
}

void BackwardPass::run_layer(int64_t layer, const Watch& watch,
                             const std::function<void(const TokenBatch&)>& done) {
  for (const TokenBatch& b : batches_) {
    const std::vector<float> hidden = read(layer, b);
    std::vector<float> gradient = read(layer + 1, b);
    backward_layer(model_, layer, parts_of(b, windows_), hidden, gradient, watch(b));
    keep(layer, b.row, gradient);
    done(b);
  }
}

}  // namespace twofour
