#include "lib/run/collect/collect.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/io/file.h"
#include "lib/base/threads/passive_waiting.h"
#include "lib/recipe/statistics/check_statistics.h"
#include "lib/run/collect/batches.h"
#include "lib/run/collect/input_sums.h"
#include "lib/run/collect/statistics_writer.h"

namespace twofour {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// The sums of one layer.
class LayerSums : public LayerWatcher {
 public:
  /// `device` computes the products, or the CPU if it is nullptr.
  LayerSums(const std::vector<InputGroup>& groups, DeviceSums* device)
      : groups_(groups), device_(device), sums_(groups.size()), saliency_(at(experts_of(groups))) {
    for (InputSums& s : sums_) s.device = device;
  }
  void see_input(size_t group, std::span<const float> x, std::span<const int64_t>) override {
    sums_[group].add(x, groups_[group].k);
  }
  bool see_on_device(size_t group, const float* x, int64_t rows, int64_t k, std::span<const int64_t>,
                     const cuda::DeviceStream& stream) override {
    stream.synchronize();
    sums_[group].add_on_device(x, rows, k);
    device_->wait();
    return true;
  }
  void see_expert(int64_t expert, double sum_of_norms) override { saliency_[at(expert)] += sum_of_norms; }

  void finish() {
    for (InputSums& s : sums_) s.finish();
  }
  const std::vector<InputSums>& sums() const { return sums_; }
  const std::vector<double>& saliency() const { return saliency_; }
  InputSums shared() const {
    InputSums all;
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].expert >= 0) all.add(sums_[i]);
    }
    return all;
  }

 private:
  const std::vector<InputGroup>& groups_;
  DeviceSums* device_;
  std::vector<InputSums> sums_;
  std::vector<double> saliency_;
};

StatisticsWriter plan_file(const Decoder& model, const CollectInput& input) {
  StatisticsWriter writer;
  for (int64_t layer = 0; layer < model.shape().layers; ++layer) {
    const std::vector<InputGroup>& groups = model.input_groups(layer);
    for (const PlannedEntry& e : entries_of(groups)) writer.plan(e, input.held_out > 0);
    const std::string block = block_of(groups);
    if (!block.empty()) writer.plan_saliency(block, experts_of(groups));
  }
  if (const auto head = model.head_group()) writer.plan(entries_of({*head}).front(), input.held_out > 0);
  return writer;
}

uint64_t bytes_of_weights(const Decoder& model) {
  uint64_t bytes = 0;
  for (const TensorInfo& t : model.checkpoint().tensors()) bytes += t.bytes();
  return bytes;
}

std::vector<TokenBatch> batches_of_input(const Decoder& model, const CollectInput& input) {
  return batches_of(input.windows, input.held_out, model.bytes_per_token());
}

}  // namespace

CollectPlan plan_collection(const Decoder& model, const CollectInput& input) {
  check_windows(model, input.windows);
  CollectPlan plan;
  const size_t kept = input.windows.size() - at(input.held_out);
  for (size_t i = 0; i < input.windows.size(); ++i)
    (i < kept ? plan.tokens : plan.held_out_tokens) += static_cast<int64_t>(input.windows[i].size());
  uint64_t sums = 0;
  for (int64_t layer = 0; layer < model.shape().layers; ++layer) {
    uint64_t own = 0, down = 0;
    for (const InputGroup& g : model.input_groups(layer)) {
      const uint64_t square = sizeof(float) * static_cast<uint64_t>(g.k) * static_cast<uint64_t>(g.k);
      own += square;
      if (g.expert >= 0) down = square;
    }
    sums = std::max(sums, own + down);
  }
  const auto all = static_cast<uint64_t>(plan.tokens + plan.held_out_tokens);
  const std::vector<TokenBatch> batches = batches_of_input(model, input);
  StatisticsWriter writer = plan_file(model, input);
  plan.entries = writer.entries();
  plan.file_bytes = writer.begin({}, {});
  plan.peak_memory = sums * (input.held_out > 0 ? 2 : 1) +
                     all * sizeof(float) * at(model.shape().residual()) +
                     largest_batch(batches) * model.bytes_per_token() + model.fixed_bytes();
  plan.weights_read = bytes_of_weights(model) * batches.size();
  return plan;
}

void collect_statistics(const Decoder& model, const CollectInput& input, const std::filesystem::path& out,
                        Progress& progress) {
  const PassiveWaiting waiting;
  const CollectPlan plan = plan_collection(model, input);
  const ModelShape& m = model.shape();
  progress.phase = "collecting";
  progress.total = plan.weights_read;
  AtomicFile file(out);
  StatisticsWriter writer = plan_file(model, input);
  file.resize(
      writer.begin({{"weights", final_norm_hash(model.checkpoint())},
                    {"tokens", fmt::format("{}", plan.tokens)},
                    {"text", input.text},
                    {"device", device_name(model.device())},
                    {"weighting", "plain"}},
                   [&](uint64_t offset, std::span<const uint8_t> bytes) { file.write(offset, bytes); }));
  const auto device = model.device() == Device::cuda ? std::make_unique<DeviceSums>() : nullptr;
  const std::vector<int32_t> tokens = join_windows(input.windows);
  std::vector<float> hidden(tokens.size() * at(m.residual()));
  model.embed(tokens, hidden);
  const std::vector<TokenBatch> batches = batches_of_input(model, input);
  const auto rows_of = [&](const TokenBatch& b) {
    return std::span(hidden).subspan(b.row * at(m.residual()), b.rows * at(m.residual()));
  };
  const auto write_all = [&](const std::vector<PlannedEntry>& entries, LayerSums& sums,
                             const std::string& prefix) {
    sums.finish();
    for (size_t i = 0; i < sums.sums().size(); ++i) writer.write(entries[i], sums.sums()[i], prefix);
    if (entries.size() > sums.sums().size()) writer.write(entries.back(), sums.shared(), prefix);
  };
  const uint64_t layer_bytes = bytes_of_weights(model) / at(m.layers);
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::vector<InputGroup>& groups = model.input_groups(layer);
    LayerSums sums(groups, device.get()), held_out(groups, device.get());
    for (const TokenBatch& b : batches) {
      model.run_layer(layer, parts_of(b, input.windows), rows_of(b), b.held_out ? &held_out : &sums);
      progress.done += layer_bytes;
    }
    const std::vector<PlannedEntry> entries = entries_of(groups);
    write_all(entries, sums, "");
    if (input.held_out > 0) write_all(entries, held_out, kHeldOut);
    if (const std::string block = block_of(groups); !block.empty())
      writer.write_saliency(block, sums.saliency());
  }
  if (const auto head = model.head_group()) {
    const std::vector<InputGroup> groups{*head};
    LayerSums sums(groups, device.get()), held_out(groups, device.get());
    for (const TokenBatch& b : batches) {
      (b.held_out ? held_out : sums).see_input(0, model.normalize(rows_of(b)), {});
    }
    write_all(entries_of(groups), sums, "");
    if (input.held_out > 0) write_all(entries_of(groups), held_out, kHeldOut);
  }
  model.checkpoint().check_same_files();
  // The header is written last, so that a file of a killed run never looks complete.
  writer.write_header();
  file.flush();
  file.commit();
}

}  // namespace twofour
