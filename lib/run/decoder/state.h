#pragma once
#include <map>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "lib/run/decoder/decoder.h"
#include "lib/source/model/weights.h"

namespace twofour {

class FamilySizes;

/// Converts an index to size_t.
inline size_t at(int64_t i) { return static_cast<size_t>(i); }

/// The norms of latents have a separate epsilon in the code of the models.
inline constexpr double kLatentEpsilon = 1e-6;

struct AttentionWeights {
  ModelVector norm;                  ///< before the attention of any kind
  ModelMatrix q, k, v, o;            ///< latent attention has q only if it has no rank for q
  ModelMatrix q_a, q_b, kv_a, kv_b;  ///< only for latent attention
  ModelVector q_norm, k_norm, q_a_norm, kv_a_norm, sinks;
  size_t input_group = 0, q_group = 0, latent_group = 0, output_group = 0;  ///< indices in
                                                                            ///< LayerWeights::groups
};

/// The weights of linear attention. Queries, keys, values and z come from one matrix or from two.
struct DeltaWeights {
  ModelMatrix qkvz, ba;      ///< if DeltaShape::by_key_head
  ModelMatrix qkv, z, b, a;  ///< otherwise
  ModelMatrix out;
  ModelVector convolution;  ///< [channels, kernel]
  ModelVector a_log, dt_bias, norm;
  size_t input_group = 0, output_group = 0;  ///< indices in LayerWeights::groups
};

/// Gate, up and down of an MLP.
struct MlpWeights {
  ModelMatrix gate, up, down;
};

struct FeedForwardWeights {
  ModelVector norm;
  MlpWeights mlp;  ///< the dense MLP or the shared expert
  ModelMatrix router, shared_gate;
  ModelVector correction;
  std::vector<MlpWeights> experts;
  size_t input_group = 0, expert_group = 0, down_group = 0;  ///< indices in LayerWeights::groups
  size_t first_expert = 0;                                   ///< index of the group of expert 0's down; those
                                                             ///< of the other experts follow
};

struct LayerWeights {
  AttentionWeights attention;
  DeltaWeights delta;
  FeedForwardWeights feed_forward;
  std::vector<InputGroup> groups;
};

/// The state of a Decoder.
struct DecoderState {
  DecoderState(Checkpoint c) : checkpoint(std::move(c)), weights(checkpoint) {}
  Checkpoint checkpoint;
  ModelWeights weights;
  ModelShape shape;
  std::vector<LayerWeights> layers;
  std::map<std::string, ModelMatrix> linears;  ///< by name: the linears of the layers' groups and of the head
  ModelMatrix embedding, head;
  ModelVector norm;
};

/// Finds the weights of every layer by the rows of the family. Throws Error if they do not fit the model.
void bind_weights(DecoderState& state, const FamilySizes& sizes);

/// hidden += attention(norm(hidden)), and the same with linear attention, with the MLP or with the experts
/// instead.
void run_attention(const DecoderState& state, int64_t layer, std::span<const SequencePart> batch,
                   std::span<float> hidden, const HalfRun& run);
void run_delta(const DecoderState& state, int64_t layer, std::span<const SequencePart> batch,
               std::span<float> hidden, const HalfRun& run);
void run_feed_forward(const DecoderState& state, int64_t layer, std::span<float> hidden, const HalfRun& run);

}  // namespace twofour
