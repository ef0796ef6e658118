#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "lib/checkpoint/checkpoint.h"
#include "lib/decoder/model_shape.h"

namespace twofour {

/// Keys and values of one layer, of the tokens of a sequence so far.
struct LayerCache {
  std::vector<float> keys, values;
};

/// Tokens of one sequence in a batch.
struct SequencePart {
  int64_t count = 0;  ///< tokens
  int64_t begin = 0;  ///< the position of the first
  /// Of this layer: holds those before `begin`, gets these. nullptr: there are none before, and none is kept.
  LayerCache* cache = nullptr;
};

struct DecoderState;

/// A whole model, run layer by layer in float32 on the CPU from what its directory stores: each matrix is
/// decoded when it is used, and none is kept. A batch's tokens lie one after another, sequence after
/// sequence. Results do not depend on the number of threads.
///
/// Weights alone are quantized: activations are not rounded, whatever a config says of them.
class Decoder {
 public:
  /// Reads headers and config. An artifact in a layout is run from its layout. Throws Error where the model
  /// is not of a family that can be run, has a setting that is not known, or weights that do not fit its
  /// config.
  static Decoder open(const std::filesystem::path& path);
  explicit Decoder(Checkpoint checkpoint);
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder();

  const ModelShape& shape() const;
  const Checkpoint& checkpoint() const;
  /// Bytes that run_layer() takes for each token of a batch beside the tokens themselves, and in all beside
  /// that.
  uint64_t bytes_per_token() const;
  uint64_t fixed_bytes() const;
  /// Bytes that all layers' caches take for a token.
  uint64_t cache_bytes_per_token() const;

  /// Rows of the embedding: `hidden` [tokens, H]. Throws Error on a token outside of the vocabulary.
  void embed(std::span<const int32_t> tokens, std::span<float> hidden) const;
  /// Runs a layer on `hidden` [tokens, H] in place.
  void run_layer(int64_t layer, std::span<const SequencePart> batch, std::span<float> hidden) const;
  /// The head, behind the last norm: `logits` [tokens, vocabulary].
  void run_head(std::span<const float> hidden, std::span<float> logits) const;

 private:
  std::unique_ptr<DecoderState> state_;
};

/// One sequence, token by token, with all its keys and values.
class DecoderSequence {
 public:
  /// `decoder` outlives this.
  explicit DecoderSequence(const Decoder& decoder);
  /// Appends tokens; the logits of each, [tokens, vocabulary], or of the last alone. Throws Error beyond the
  /// positions that the model was made for.
  std::vector<float> append(std::span<const int32_t> tokens, bool all = false);
  int64_t size() const { return size_; }

 private:
  const Decoder& decoder_;
  std::vector<LayerCache> layers_;
  int64_t size_ = 0;
};

}  // namespace twofour
