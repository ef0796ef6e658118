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
#include "lib/run/decoder/float_array.h"

namespace twofour {

/// An entry in the statistics of a layer.
struct LayerEntry {
  static constexpr size_t kShared = SIZE_MAX;
  PlannedEntry planned;
  LayerStage stage;
  size_t group = kShared;  ///< index among the layer's groups; kShared for the common entry of the downs of
                           ///< all experts
  bool adds = false;       ///< see InputGroup::adds
};

/// The entries of the linears in `linears` that are in groups of a layer or of the head. Linears with the
/// same input share an entry. With `apart` each linear has its own entry, which is needed if tokens have
/// weights. With `targets` the entries include target offsets.
std::vector<LayerEntry> layer_entries(const Decoder& model, const std::vector<InputGroup>& groups,
                                      const std::set<std::string>& linears, bool apart, bool targets);

/// Memory for the rows of a batch on the device, which entries use one after another.
struct DeviceScratch {
  explicit DeviceScratch(const cuda::DeviceStream* stream)
      : x(stream), d(stream), lacking(stream), made(stream), roots(stream) {}
  FloatArray x, d, lacking, made, roots;
  cuda::DeviceMemory rows{}, tokens{};
};

/// The sums of an entry. `input` sums the inputs x, which are the compressed model's inputs if there is one.
/// The others sum differences to the outputs of the dense model, whose inputs are d.
struct EntrySums {
  InputSums input;
  std::vector<float> differences;  ///< sum of w x (d - x)', [K, K], where w is the weight of a token; W turns
                                   ///< it into the target offset
  /// Sum of w r x', [N, K]. The row r is the dense residual stream minus the compressed one. It includes W (d
  /// - x) if that is less work.
  std::vector<float> outputs;
  FloatArray weights;  ///< W [N, K], if `outputs` includes W (d - x)

  EntrySums() = default;
  /// `device` computes the sums with memory of `scratch`, or the CPU if `device` is null.
  EntrySums(DeviceSums* device, DeviceScratch* scratch_)
      : weights(device != nullptr ? &device->stream() : nullptr), scratch(scratch_) {
    input.device = device;
  }
  /// Copies the sums from the device. Call this after the last batch.
  void finish();
  DeviceScratch* scratch = nullptr;
  cuda::DeviceMemory device_differences{}, device_outputs{};  ///< on the device until finish()
};

/// The inputs of the groups of a layer in a batch, as a run of the model showed them. It reuses its memory
/// from one batch to the next.
class SeenInputs : public LayerWatcher {
 public:
  /// With a stream, the inputs are in device memory.
  SeenInputs(size_t groups, const cuda::DeviceStream* stream);
  /// Begins a batch. Stores the inputs of those groups that `wanted` marks.
  void begin(std::vector<bool> wanted);
  bool wants(size_t group) const override { return wanted_[group]; }
  void see_input(size_t group, std::span<const float> x, std::span<const int64_t> tokens) override;
  bool see_on_device(size_t group, const float* x, int64_t rows, int64_t k, std::span<const int64_t> tokens,
                     const cuda::DeviceStream& stream) override;
  void see_expert(int64_t, double) override {}
  const FloatArray& input(size_t group) const { return inputs_[group]; }
  const std::vector<int64_t>& tokens(size_t group) const { return tokens_[group]; }

 private:
  std::vector<bool> wanted_;
  std::vector<FloatArray> inputs_;
  std::vector<std::vector<int64_t>> tokens_;
};

/// The inputs of a batch in both models. If there is only one model, `dense` is null and `residual` is null.
struct SeenBatch {
  const SeenInputs* compressed;
  const SeenInputs* dense;
  const FloatArray* residual;      ///< [rows, N]: the dense residual stream minus the compressed one
  std::span<const float> weights;  ///< weights of all tokens of the batch for this entry; if empty, every
                                   ///< weight is 1
};
/// Adds a batch to the sums of an entry. `dense` provides the weights W of the linears.
void add_batch(const LayerEntry& entry, const SeenBatch& batch, const Decoder& dense, EntrySums& sums);

/// Writes the entry and the target offsets of its linears. `dense` provides the weights W. Throws Error if
/// sums are not finite.
void write_entry(const StatisticsWriter& writer, const Decoder& dense, const LayerEntry& entry,
                 const EntrySums& sums);

/// Size in bytes of the sums of an entry.
uint64_t bytes_of_sums(const LayerEntry& entry);

}  // namespace twofour
