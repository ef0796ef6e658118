#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/model/model_shape.h"

namespace twofour {

/// Keys and values of one layer, of the tokens of a sequence so far.
struct LayerCache {
  std::vector<float> keys, values;
};

/// Tokens of one sequence in a batch.
struct SequencePart {
  int64_t count = 0;  ///< tokens
  int64_t begin = 0;  ///< the position of the first
  /// The cache of this layer: it holds the tokens before `begin` and takes these. nullptr: no cache.
  LayerCache* cache = nullptr;
};

/// Stages of a layer. The inputs of a stage's linears depend on linears of earlier stages alone.
enum class LayerStage { kAttentionInput, kLatent, kAttentionOutput, kFeedForwardInput, kDown };
enum class LayerHalf { kAttention, kFeedForward };
LayerHalf half_of(LayerStage stage);

/// Linears of a layer with one input.
struct InputGroup {
  std::vector<std::string> linears;  ///< by the files' names; experts of stacks have one name each
  int64_t k = 0;
  LayerStage stage = LayerStage::kAttentionInput;
  bool adds = false;       ///< the output of its one linear is added to the residual stream unchanged
  int64_t times = 1;       ///< number of experts whose linears see each token
  int64_t expert = -1;     ///< the one expert of these linears; -1: none, or all
  std::string block = {};  ///< for experts: "model.layers.0.mlp.experts"
};

/// Observes the values of a layer while it runs.
class LayerWatcher {
 public:
  virtual ~LayerWatcher() = default;
  /// The inputs of a group, by its place in Decoder::input_groups(): `x` [rows, k], of the batch's `tokens`;
  /// empty: of all, in order. Groups of experts come from several threads at a time, but each group from one.
  virtual void see_input(size_t group, std::span<const float> x, std::span<const int64_t> tokens) = 0;
  /// The sum over tokens of the norms of an expert's contributions to its layer.
  virtual void see_expert(int64_t expert, double sum_of_norms) = 0;
};

struct DecoderState;
class DeviceRun;
class DeviceSequence;

/// Options for running half a layer.
struct HalfRun {
  LayerWatcher* watcher = nullptr;
  /// The last stage whose inputs are computed; `hidden` does not change. Nothing: all stages run, and
  /// `hidden` becomes the half's output.
  std::optional<LayerStage> last{};
  ExpertChoice* chosen = nullptr;       ///< takes the experts that the router chooses
  const ExpertChoice* given = nullptr;  ///< experts to use instead of the router's choice
};

/// A whole model, run layer by layer in float32 from the weights of its directory, on the CPU or a CUDA
/// device. On the CPU each matrix is decoded when it is used, and not cached. A batch's tokens are
/// consecutive, sequence after sequence. Results do not depend on the number of threads.
///
/// Weights alone are quantized: activations are never rounded, even if a config asks for it.
class Decoder {
 public:
  /// Reads headers and config. An artifact in a layout is run from its layout. Throws Error if the model is
  /// not of a family that can be run, has an unknown setting, or weights that do not fit its config.
  static Decoder open(const std::filesystem::path& path, ZeroPoints zero_points = ZeroPoints::kAsStated);
  explicit Decoder(Checkpoint checkpoint);
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder();

  /// From now on layers and head run on the current CUDA device, from one thread at a time. Products take
  /// inputs as sums of two BF16 numbers (an error of at most 2^-17 of each); layers in a layout use their
  /// kernels' precision. `memory`: the most bytes of weights on the device at a time; 0: its free memory
  /// minus some room. If not all layers fit, the device holds two at a time, or one. Throws Error if one does
  /// not fit.
  void use_cuda(uint64_t memory = 0);
  Device device() const;
  /// The runner on the device, for functions of this folder; nullptr on the CPU.
  DeviceRun* device_run() const { return device_.get(); }
  /// Bytes of all weights on the device; 0 on the CPU.
  uint64_t device_weight_bytes() const;
  /// Bytes of weights on the device that one token reads.
  uint64_t device_bytes_of_token() const;

  const ModelShape& shape() const;
  const Checkpoint& checkpoint() const;
  /// Bytes that run_layer() takes: for each token of a batch, beside the token itself, and in addition for a
  /// call.
  uint64_t bytes_per_token() const;
  uint64_t fixed_bytes() const;
  /// Bytes of all layers' caches for a token.
  uint64_t cache_bytes_per_token() const;

  /// Reads rows of the embedding: `hidden` [tokens, H]. Throws Error on a token outside of the vocabulary.
  void embed(std::span<const int32_t> tokens, std::span<float> hidden) const;
  /// Runs a layer on `hidden` [tokens, H] in place. `watcher` may be nullptr.
  void run_layer(int64_t layer, std::span<const SequencePart> batch, std::span<float> hidden,
                 LayerWatcher* watcher = nullptr) const;
  /// Runs half a layer on `hidden` [tokens, H].
  void run_half(int64_t layer, LayerHalf half, std::span<const SequencePart> batch, std::span<float> hidden,
                const HalfRun& run) const;
  /// From now on matrices of `weights` replace those with the same names, sizes and experts.
  void replace_weights(Checkpoint weights);
  /// Undoes replace_weights().
  void restore_weights();
  /// Reads rows [n0, n1) of a linear of input_groups() or head_group(), in float32: `out` [n1 - n0, K].
  void read_linear(const std::string& name, int64_t n0, int64_t n1, std::span<float> out) const;
  /// Number of rows of such a linear; for a head, all stored rows.
  int64_t rows_of_linear(const std::string& name) const;
  /// The linears of a layer by their inputs.
  const std::vector<InputGroup>& input_groups(int64_t layer) const;
  /// The head, if it is a separate linear and no embedding.
  std::optional<InputGroup> head_group() const;
  /// Computes the head's input: the last norm of `hidden` [tokens, H], in place.
  void normalize(std::span<float> hidden) const;
  /// Runs the head after the last norm: `logits` [tokens, vocabulary].
  void run_head(std::span<const float> hidden, std::span<float> logits) const;

 private:
  friend class DecoderSequence;
  /// Throws Error on a token outside of the vocabulary.
  void check_tokens(std::span<const int32_t> tokens) const;

  std::unique_ptr<DecoderState> state_;
  std::unique_ptr<DeviceRun> device_;
};

/// The token that a model found most probable, and the logarithm of its probability; NaN if logits were not
/// finite.
struct LikelyToken {
  int32_t token = 0;
  double log_probability = 0;
};

/// One sequence, token by token, with all its keys and values.
class DecoderSequence {
 public:
  /// `decoder` outlives this.
  explicit DecoderSequence(const Decoder& decoder);
  DecoderSequence(DecoderSequence&&) noexcept;
  DecoderSequence& operator=(DecoderSequence&&) = delete;
  ~DecoderSequence();
  /// Appends tokens. Returns the logits of each, [tokens, vocabulary], or of the last alone. Throws Error
  /// beyond the model's positions.
  std::vector<float> append(std::span<const int32_t> tokens, bool all = false);
  /// Chooses `count` tokens, each the most probable next one, the lowest of equal ones. Appends all but the
  /// last, which the next call appends. Throws Error like append().
  std::vector<LikelyToken> choose(int64_t count);
  /// Makes room for `tokens` tokens in total, if that saves work later.
  void reserve(int64_t tokens);
  int64_t size() const { return size_; }

 private:
  void check_room(int64_t count) const;

  const Decoder& decoder_;
  std::vector<LayerCache> layers_;
  std::unique_ptr<DeviceSequence> device_;
  std::vector<float> last_;        ///< logits after the last token, on the CPU
  std::optional<int32_t> chosen_;  ///< to be appended
  int64_t size_ = 0;
};

}  // namespace twofour
