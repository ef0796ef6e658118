#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "lib/run/blocks/layer.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/model/model_shape.h"

namespace twofour {

struct DecoderState;
class DeviceRun;
class DeviceSequence;

/// A whole model. It runs layer by layer in float32 from the weights of its directory, on the CPU or a CUDA
/// device. On the CPU each matrix is decoded whenever it is used, and is not cached. The tokens of a batch
/// are contiguous, sequence after sequence. The number of threads does not change results.
/// Only weights are quantized. Activations are never rounded, even if a config asks for it.
class Decoder {
 public:
  /// Reads headers and config. An artifact in a layout runs from its layout. Throws Error if the model
  /// belongs to no family that can be run, has an unknown setting, or has weights that do not fit its config.
  static Decoder open(const std::filesystem::path& path, ZeroPoints zero_points = ZeroPoints::kAsStated);
  explicit Decoder(Checkpoint checkpoint);
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder();

  /// From now on layers and head run on the current CUDA device, from one thread at a time. Products
  /// represent inputs as sums of two BF16 numbers, with a relative error of at most 2^-17. Layers in a layout
  /// have the precision of their kernels. `memory` is the limit in bytes for weights on the device at the
  /// same time; 0 means its free memory minus a reserve. If not all layers fit, the device has two at a time,
  /// or one. Throws Error if one layer does not fit.
  void use_cuda(uint64_t memory = 0);
  Device device() const;
  /// The object that runs the model on the device, for functions of this folder. nullptr on the CPU.
  DeviceRun* device_run() const { return device_.get(); }
  /// Bytes of all weights that are placed on the device. 0 on the CPU.
  uint64_t device_weight_bytes() const;
  /// Bytes of weights on the device that are read for one token of a short text, without queries of an index.
  uint64_t device_bytes_of_token() const;

  const ModelShape& shape() const;
  const Checkpoint& checkpoint() const;
  /// The bound weights, for backward passes.
  const DecoderState& state() const { return *state_; }
  /// Bytes of memory that run_layer() needs: for each token of a batch, without the token's own row, and for
  /// each call.
  uint64_t bytes_per_token() const;
  uint64_t fixed_bytes() const;
  /// Bytes that the caches of all layers need for one token, and for a sequence of any length.
  uint64_t cache_bytes_per_token() const;
  uint64_t state_bytes() const;

  /// Reads rows of the embedding into `hidden` [tokens, R]. R is ModelShape::residual(). Throws Error on a
  /// token outside of the vocabulary.
  void embed(std::span<const int32_t> tokens, std::span<float> hidden) const;
  /// Runs a layer on `hidden` [tokens, R] in place. `watcher` may be nullptr.
  void run_layer(int64_t layer, std::span<const SequencePart> batch, std::span<float> hidden,
                 LayerWatcher* watcher = nullptr) const;
  /// Runs half a layer on `hidden` [tokens, R]. A half that the layer does not have changes nothing.
  void run_half(int64_t layer, LayerHalf half, std::span<const SequencePart> batch, std::span<float> hidden,
                const HalfRun& run) const;
  /// The same on `hidden` in device memory, for a model that runs there. Waits for the device.
  void run_half_on_device(int64_t layer, LayerHalf half, std::span<const SequencePart> batch, float* hidden,
                          const HalfRun& run) const;
  /// True if a half ends with one linear, whose inputs are those of a group: HalfRun::late.
  bool can_begin_late(int64_t layer, LayerHalf half) const;
  /// The group of that linear.
  size_t late_group(int64_t layer, LayerHalf half) const;
  /// From now on matrices of `weights` replace the model's matrices with the same names, sizes and experts.
  void replace_weights(Checkpoint weights);
  /// Undoes replace_weights().
  void restore_weights();
  /// Reads rows [n0, n1) of a linear of input_groups() or head_group() in float32. `out` is [n1 - n0, K].
  void read_linear(const std::string& name, int64_t n0, int64_t n1, std::span<float> out) const;
  /// Number of rows of a linear that read_linear() takes. For a head these are all stored rows.
  int64_t rows_of_linear(const std::string& name) const;
  /// The linears of a layer, grouped by input.
  const std::vector<InputGroup>& input_groups(int64_t layer) const;
  /// The head, if it is a separate linear and not the embedding.
  std::optional<InputGroup> head_group() const;
  /// Computes the inputs [tokens, H] of the head: the last norm of `hidden`.
  std::vector<float> normalize(std::span<const float> hidden) const;
  /// Runs the last norm and the head on `hidden`. `logits` is [tokens, vocabulary].
  void run_head(std::span<const float> hidden, std::span<float> logits) const;

 private:
  friend class DecoderSequence;
  /// Throws Error on a token outside of the vocabulary.
  void check_tokens(std::span<const int32_t> tokens) const;

  std::unique_ptr<DecoderState> state_;
  std::unique_ptr<DeviceRun> device_;
};

/// The most probable token and the logarithm of its probability, which is NaN if logits were not finite.
struct LikelyToken {
  int32_t token = 0;
  double log_probability = 0;
};

/// One sequence with the caches of all layers, to which tokens are appended.
class DecoderSequence {
 public:
  /// `decoder` must outlive this object.
  explicit DecoderSequence(const Decoder& decoder);
  DecoderSequence(DecoderSequence&&) noexcept;
  DecoderSequence& operator=(DecoderSequence&&) = delete;
  ~DecoderSequence();
  /// Appends tokens. Returns the logits after each token, [tokens, vocabulary], if `all`; otherwise only
  /// those after the last. Throws Error if the sequence would exceed the model's positions.
  std::vector<float> append(std::span<const int32_t> tokens, bool all = false);
  /// Generates `count` tokens by greedy decoding; ties go to the lowest id. Appends all of them except the
  /// last, which the next call appends. Throws Error like append().
  std::vector<LikelyToken> choose(int64_t count);
  /// Makes room for `tokens` tokens in total. This may save work later.
  void reserve(int64_t tokens);
  int64_t size() const { return size_; }

 private:
  void check_room(int64_t count) const;

  const Decoder& decoder_;
  std::vector<LayerCache> layers_;
  std::unique_ptr<DeviceSequence> device_;
  std::vector<float> last_;        ///< logits after the last token; on the CPU
  std::optional<int32_t> chosen_;  ///< the token that choose() has not appended yet
  int64_t size_ = 0;
};

}  // namespace twofour
