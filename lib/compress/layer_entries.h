#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lib/collect/input_sums.h"
#include "lib/collect/statistics_writer.h"
#include "lib/compress/token_weights.h"
#include "lib/decoder/decoder.h"

namespace twofour {

/// An entry of the statistics of a layer.
struct LayerEntry {
  static constexpr size_t kShared = SIZE_MAX;
  PlannedEntry planned;
  LayerStage stage;
  size_t group = kShared;  ///< among those of the layer; kShared: of the downs of all experts together
  bool adds = false;       ///< see InputGroup
};

/// The entries of those linears of a layer's groups, or the head's, that `linears` names: of linears with one
/// input one, or with `apart`, as where tokens have weights, one of each. With `targets` they have target
/// offsets, too.
std::vector<LayerEntry> layer_entries(const Decoder& model, const std::vector<InputGroup>& groups,
                                      const std::set<std::string>& linears, bool apart, bool targets);

/// The sums of an entry: of inputs x, those of the compressed model where there is one, and of what its
/// outputs lack beside the dense model's, whose inputs are d.
struct EntrySums {
  InputSums input;
  std::vector<float> differences;  ///< sum of w x (d - x)' [K, K], of which W makes the target offset
  /// Sum of w r x' [N, K], r what the residual stream lacks; with W (d - x) in r where that is less work.
  std::vector<float> outputs;

  EntrySums() = default;
  /// `device` adds up; nullptr: the CPU does.
  explicit EntrySums(DeviceSums* device) { input.device = device; }
  /// Brings sums from the device, behind the last batch.
  void finish();
  cuda::DeviceMemory device_differences{}, device_outputs{};  ///< those until finish()
};

/// The inputs of a batch as a run showed them, by group.
class SeenInputs : public LayerWatcher {
 public:
  /// Keeps those of the groups that `wanted` marks.
  explicit SeenInputs(std::vector<bool> wanted)
      : wanted_(std::move(wanted)), inputs_(wanted_.size()), tokens_(wanted_.size()) {}
  void see_input(size_t group, std::span<const float> x, std::span<const int64_t> tokens) override {
    if (!wanted_[group]) return;
    inputs_[group].assign(x.begin(), x.end());
    tokens_[group].assign(tokens.begin(), tokens.end());
  }
  void see_expert(int64_t, double) override {}
  const std::vector<float>& input(size_t group) const { return inputs_[group]; }
  const std::vector<int64_t>& tokens(size_t group) const { return tokens_[group]; }

 private:
  std::vector<bool> wanted_;
  std::vector<std::vector<float>> inputs_;
  std::vector<std::vector<int64_t>> tokens_;
};

/// What both models show of a batch; `dense` is nullptr and `residual` empty where there is one model.
struct SeenBatch {
  const SeenInputs* compressed;
  const SeenInputs* dense;
  std::span<const float> residual;  ///< [rows, N], the dense stream minus the compressed one
  std::span<const float> weights;   ///< of all tokens of the batch, for this entry; empty: 1
};
/// Adds a batch to the sums of an entry; `dense` has the weights.
void add_batch(const LayerEntry& entry, const SeenBatch& batch, const Decoder& dense, EntrySums& sums);

/// Writes the entry and the target offsets of its linears, W of `dense`. Throws Error on sums that are not
/// finite.
void write_entry(const StatisticsWriter& writer, const Decoder& dense, const LayerEntry& entry,
                 const EntrySums& sums);

/// Bytes that the sums of an entry take.
uint64_t bytes_of_sums(const LayerEntry& entry);

}  // namespace twofour
