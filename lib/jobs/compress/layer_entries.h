#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lib/jobs/compress/token_weights.h"
#include "lib/run/collect/input_sums.h"
#include "lib/run/collect/statistics_writer.h"
#include "lib/run/decoder/decoder.h"

namespace twofour {

/// An entry of the statistics of a layer.
struct LayerEntry {
  static constexpr size_t kShared = SIZE_MAX;
  PlannedEntry planned;
  LayerStage stage;
  size_t group = kShared;  ///< among the layer's groups; kShared: of the downs of all experts together
  bool adds = false;       ///< see InputGroup
};

/// The entries of the linears in `linears` that are in a layer's groups, or the head's. Linears with the same
/// input share an entry; with `apart` (needed if tokens have weights) each linear has its own. With `targets`
/// they have target offsets, too.
std::vector<LayerEntry> layer_entries(const Decoder& model, const std::vector<InputGroup>& groups,
                                      const std::set<std::string>& linears, bool apart, bool targets);

/// The sums of an entry: of inputs x (of the compressed model if there is one), and of differences to the
/// outputs of the dense model, whose inputs are d.
struct EntrySums {
  InputSums input;
  std::vector<float> differences;  ///< sum of w x (d - x)' [K, K]; W turns it into the target offset
  /// Sum of w r x' [N, K] with r, the dense residual stream minus the compressed one; r includes W (d - x) if
  /// that is less work.
  std::vector<float> outputs;

  EntrySums() = default;
  /// `device` adds up; nullptr: the CPU adds up.
  explicit EntrySums(DeviceSums* device) { input.device = device; }
  /// Copies sums from the device, after the last batch.
  void finish();
  cuda::DeviceMemory device_differences{}, device_outputs{};  ///< on the device until finish()
};

/// The inputs of a batch that a run showed, by group.
class SeenInputs : public LayerWatcher {
 public:
  /// Stores the inputs of the groups that `wanted` marks.
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

/// The inputs of a batch in both models; `dense` is nullptr and `residual` empty if there is one model.
struct SeenBatch {
  const SeenInputs* compressed;
  const SeenInputs* dense;
  std::span<const float> residual;  ///< [rows, N], the dense stream minus the compressed one
  std::span<const float> weights;   ///< of all tokens of the batch, for this entry; empty: 1
};
/// Adds a batch to the sums of an entry, with the weights of `dense`.
void add_batch(const LayerEntry& entry, const SeenBatch& batch, const Decoder& dense, EntrySums& sums);

/// Writes the entry and the target offsets of its linears, with W of `dense`. Throws Error on sums that are
/// not finite.
void write_entry(const StatisticsWriter& writer, const Decoder& dense, const LayerEntry& entry,
                 const EntrySums& sums);

/// Bytes that the sums of an entry take.
uint64_t bytes_of_sums(const LayerEntry& entry);

}  // namespace twofour
