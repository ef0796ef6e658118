#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention/compressed_attention.h"
#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/model/model_shape.h"

namespace twofour {

/// The state of one layer after the tokens of a sequence so far.
struct LayerCache {
  std::vector<float> keys, values;       ///< of a layer with attention
  std::vector<float> window, recurrent;  ///< the states of linear attention or Mamba-2, see DeltaShape
  /// The state of a layer with compressed entries, whose window is in `keys`: the entries, keys of the index,
  /// and the tokens that have no entry yet.
  std::vector<float> entries, index_keys;
  cpu::CompressorState compressor, index_compressor;
};

/// Consecutive tokens of one sequence in a batch.
struct SequencePart {
  int64_t count = 0;  ///< number of tokens
  int64_t begin = 0;  ///< position of the first token
  /// The cache of the layer that runs. It has the tokens before `begin`, and the layer adds these tokens to
  /// it. nullptr: no cache.
  LayerCache* cache = nullptr;
  /// The tokens' ids, for layers that choose experts by a table of tokens. nullptr: the model has none.
  const int32_t* ids = nullptr;
};

/// Stages of a layer. The inputs of the linears of a stage depend only on linears of earlier stages.
enum class LayerStage {
  kAttentionInput,
  kLatent,
  kMixedHeads,
  kAttentionOutput,
  kFeedForwardInput,
  kExpertInput,  ///< of experts whose inputs are projected
  kDown,
  kExpertOutput  ///< of experts whose outputs are projected
};
enum class LayerHalf { kAttention, kFeedForward };
LayerHalf half_of(LayerStage stage);

/// Linears of a layer that have the same input.
struct InputGroup {
  std::vector<std::string> linears;  ///< names in the files; experts of stacks have one name each
  int64_t k = 0;
  LayerStage stage = LayerStage::kAttentionInput;
  bool adds = false;       ///< the group has one linear, whose output is added to the residual stream
                           ///< unchanged
  int64_t times = 1;       ///< number of experts whose linears see each token
  int64_t expert = -1;     ///< the expert that all of these linears belong to; -1: no expert or all experts
  int64_t inputs = 1;      ///< inputs of each token, one for each block of rows of the linears
  std::string block = {};  ///< for experts: name of their block, as "model.layers.0.mlp.experts"
};

/// Observes values of a layer while it runs.
class LayerWatcher {
 public:
  virtual ~LayerWatcher() = default;
  /// Receives the inputs of a group. `group` is its index in Decoder::input_groups(). `x` [rows, k] has the
  /// inputs of `tokens`, which are indices in the batch. If `tokens` is empty, they are the inputs of all
  /// tokens in order. Groups of experts may come from several threads at the same time, but each group comes
  /// from only one.
  virtual void see_input(size_t group, std::span<const float> x, std::span<const int64_t> tokens) = 0;
  /// True if see_input() has a use for the inputs of a group. The others may be left out.
  virtual bool wants(size_t) const { return true; }
  /// Takes the inputs of a group on the device instead of see_input(). `x` [rows, k] is complete after the
  /// work on `stream`, and may change after the next work on it. Returns false if it does not take them.
  virtual bool see_on_device(size_t, const float*, int64_t, int64_t, std::span<const int64_t>,
                             const cuda::DeviceStream&) {
    return false;
  }
  /// Receives the sum over tokens of the norms of an expert's contributions to its layer.
  virtual void see_expert(int64_t expert, double sum_of_norms) = 0;
};

struct DecoderState;
class DeviceRun;
class DeviceSequence;

/// Options for running half a layer.
struct HalfRun {
  LayerWatcher* watcher = nullptr;
  /// The last stage whose inputs are computed; `hidden` then does not change. If nothing is set, all stages
  /// run and `hidden` becomes the output of the half.
  std::optional<LayerStage> last{};
  ExpertChoice* chosen = nullptr;       ///< receives the experts that the router chooses
  const ExpertChoice* given = nullptr;  ///< experts to use instead of those that the router would choose
  /// The inputs of the half's last linear for all tokens, as a watcher saw them, on the side of `hidden`. The
  /// run begins with that linear. nullptr: it begins with the norm. See Decoder::can_begin_late().
  const float* late = nullptr;
};

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
