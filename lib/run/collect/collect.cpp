#include "lib/run/collect/collect.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lib/base/io/file.h"
#include "lib/base/threads/passive_waiting.h"
#include "lib/recipe/statistics/check_statistics.h"
#include "lib/run/collect/backward_pass.h"
#include "lib/run/collect/batches.h"
#include "lib/run/collect/input_sums.h"
#include "lib/run/collect/statistics_writer.h"

namespace twofour {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// The sums of one layer.
class LayerSums : public LayerWatcher {
 public:
  /// `device` computes the products, or the CPU if it is nullptr. Without `with_inputs` only saliency is
  /// added up.
  LayerSums(const std::vector<InputGroup>& groups, DeviceSums* device, bool with_inputs = true)
      : groups_(groups),
        device_(device),
        with_inputs_(with_inputs),
        sums_(groups.size()),
        saliency_(at(experts_of(groups))) {
    for (InputSums& s : sums_) s.device = device;
  }
  void see_input(size_t group, std::span<const float> x, std::span<const int64_t>) override {
    if (with_inputs_) sums_[group].add(x, groups_[group].k);
  }
  bool see_on_device(size_t group, const float* x, int64_t rows, int64_t k, std::span<const int64_t>,
                     const cuda::DeviceStream& stream) override {
    if (!with_inputs_) return true;
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
  bool with_inputs_;
  std::vector<InputSums> sums_;
  std::vector<double> saliency_;
};

/// The entries of a layer or of the head, and the group of each; SIZE_MAX for the downs of all experts.
struct LayerPlan {
  LayerPlan(const Decoder& model, const std::vector<InputGroup>& groups, const CollectInput& input) {
    if (input.gradients.any()) {
      entries = gradient_entries(model, groups, input.gradients, of_groups);
      return;
    }
    entries = entries_of(groups);
    for (size_t g = 0; g < entries.size(); ++g) of_groups.push_back(g < groups.size() ? g : SIZE_MAX);
  }
  std::vector<PlannedEntry> entries;
  std::vector<size_t> of_groups;
};

StatisticsWriter plan_file(const Decoder& model, const CollectInput& input) {
  StatisticsWriter writer;
  const auto plan = [&](const std::vector<InputGroup>& groups) {
    for (const PlannedEntry& e : LayerPlan(model, groups, input).entries) writer.plan(e, input.held_out > 0);
  };
  for (int64_t layer = 0; layer < model.shape().layers; ++layer) {
    const std::vector<InputGroup>& groups = model.input_groups(layer);
    plan(groups);
    const std::string block = block_of(groups);
    if (!block.empty()) writer.plan_saliency(block, experts_of(groups));
  }
  if (const auto head = model.head_group()) plan({*head});
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

/// The windows whose sums are not held out.
std::vector<std::vector<int32_t>> counted_windows(const CollectInput& input) {
  return {input.windows.begin(), input.windows.end() - input.held_out};
}

/// The memory of a backward pass, with the sums of the layer that has the largest.
uint64_t backward_memory(const Decoder& model, const CollectInput& input) {
  uint64_t sums = 0;
  for (int64_t layer = 0; layer < model.shape().layers; ++layer)
    sums = std::max(sums, GradientSums::bytes(model, model.input_groups(layer), input.gradients));
  if (const auto head = model.head_group())
    sums = std::max(sums, GradientSums::bytes(model, {*head}, input.gradients));
  return sums + BackwardPass::bytes_of_batch(model, counted_windows(input));
}

/// Runs backward from the head to the first layer, and writes the sums of each layer.
void collect_gradients(const Decoder& model, const CollectInput& input, BackwardPass& pass,
                       const StatisticsWriter& writer, DeviceSums* device, uint64_t layer_bytes,
                       Progress& progress) {
  progress.phase = "running backward";
  const auto run = [&](const std::vector<InputGroup>& groups, const auto& backward) {
    GradientSums sums(model, groups, input.gradients, device);
    backward(
        [&](const TokenBatch& b) {
          sums.begin_batch(b.rows);
          return &sums;
        },
        [&](const TokenBatch&) {
          sums.end_batch();
          progress.done += 3 * layer_bytes;
        });
    sums.write(writer);
  };
  if (const auto head = model.head_group()) {
    run({*head}, [&](const auto& watch, const auto& done) { pass.run_head(watch, done); });
  } else {
    pass.run_head([](const TokenBatch&) { return nullptr; }, [](const TokenBatch&) {});
  }
  for (int64_t layer = model.shape().layers - 1; layer >= 0; --layer)
    run(model.input_groups(layer),
        [&](const auto& watch, const auto& done) { pass.run_layer(layer, watch, done); });
}

/// Writes the sums of a layer's entries.
void write_sums(const LayerPlan& layer, LayerSums& sums, const std::string& prefix,
                StatisticsWriter& writer) {
  sums.finish();
  for (size_t i = 0; i < layer.entries.size(); ++i) {
    const size_t group = layer.of_groups[i];
    if (group == SIZE_MAX) {
      writer.write(layer.entries[i], sums.shared(), prefix);
    } else {
      writer.write(layer.entries[i], sums.sums()[group], prefix);
    }
  }
}

}  // namespace

CollectPlan plan_collection(const Decoder& model, const CollectInput& input) {
  check_windows(model, input.windows);
  const bool has_gradients = input.gradients.any();
  if (has_gradients) check_gradients(model);
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
  if (!has_gradients) return plan;
  plan.work_bytes = BackwardPass::bytes_of_file(model, plan.tokens);
  plan.peak_memory = std::max(plan.peak_memory, backward_memory(model, input));
  return plan;
}

void collect_statistics(const Decoder& model, const CollectInput& input, const std::filesystem::path& out,
                        Progress& progress) {
  const PassiveWaiting waiting;
  const CollectPlan plan = plan_collection(model, input);
  const ModelShape& m = model.shape();
  progress.phase = "collecting";
  progress.total = plan.weights_read;
  const bool has_gradients = input.gradients.any();
  const std::vector<std::vector<int32_t>> counted = counted_windows(input);
  std::optional<BackwardPass> pass;
  if (has_gradients) {
    pass.emplace(model, counted, out.parent_path() / temporary_name(out.filename().string() + ".streams"));
    progress.total += 3 * pass->batches().size() * bytes_of_weights(model);
  }
  AtomicFile file(out);
  StatisticsWriter writer = plan_file(model, input);
  file.resize(
      writer.begin({{"weights", final_norm_hash(model.checkpoint())},
                    {"tokens", fmt::format("{}", plan.tokens)},
                    {"text", input.text},
                    {"device", device_name(model.device())},
                    {"weighting", input.gradients.guided ? "guided" : "plain"}},
                   [&](uint64_t offset, std::span<const uint8_t> bytes) { file.write(offset, bytes); }));
  const auto device = model.device() == Device::cuda ? std::make_unique<DeviceSums>() : nullptr;
  const std::vector<int32_t> tokens = join_windows(input.windows);
  std::vector<float> hidden(tokens.size() * at(m.residual()));
  model.embed(tokens, hidden);
  const std::vector<TokenBatch> batches = batches_of_input(model, input);
  const auto rows_of = [&](const TokenBatch& b) {
    return std::span(hidden).subspan(b.row * at(m.residual()), b.rows * at(m.residual()));
  };
  // A backward pass writes guided sums, but not those of held-out tokens.
  const bool is_guided = input.gradients.guided;
  const auto write_all = [&](const LayerPlan& layer, LayerSums& sums, const std::string& prefix) {
    if (!is_guided || !prefix.empty()) write_sums(layer, sums, prefix, writer);
  };
  const auto keep = [&](int64_t layer, const TokenBatch& b) {
    if (has_gradients && !b.held_out) pass->keep(layer, b.row, rows_of(b));
  };
  const uint64_t layer_bytes = bytes_of_weights(model) / at(m.layers);
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::vector<InputGroup>& groups = model.input_groups(layer);
    LayerSums sums(groups, device.get(), !is_guided), held_out(groups, device.get());
    for (const TokenBatch& b : batches) {
      keep(layer, b);
      model.run_layer(layer, parts_of(b, input.windows), rows_of(b), b.held_out ? &held_out : &sums);
      progress.done += layer_bytes;
    }
    const LayerPlan planned(model, groups, input);
    write_all(planned, sums, "");
    if (input.held_out > 0) write_all(planned, held_out, kHeldOut);
    if (const std::string block = block_of(groups); !block.empty())
      writer.write_saliency(block, sums.saliency());
  }
  if (const auto head = model.head_group()) {
    const std::vector<InputGroup> groups{*head};
    const LayerPlan planned(model, groups, input);
    LayerSums sums(groups, device.get(), !is_guided), held_out(groups, device.get());
    for (const TokenBatch& b : batches) {
      (b.held_out ? held_out : sums).see_input(0, model.normalize(rows_of(b)), {});
    }
    write_all(planned, sums, "");
    if (input.held_out > 0) write_all(planned, held_out, kHeldOut);
  }
  if (has_gradients) {
    for (const TokenBatch& b : batches) keep(m.layers, b);
    hidden = {};
    collect_gradients(model, input, *pass, writer, device.get(), layer_bytes, progress);
  }
  model.checkpoint().check_same_files();
  // The header is written last, so that a file of a killed run never looks complete.
  writer.write_header();
  file.flush();
  file.commit();
}

}  // namespace twofour
