#pragma once
#include <map>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "lib/run/blocks/layer.h"
#include "lib/source/model/weights.h"

namespace twofour {

class FamilySizes;

/// Converts an index to size_t.
inline size_t at(int64_t i) { return static_cast<size_t>(i); }

/// The norms of latents have a separate epsilon in the code of the models.
inline constexpr double kLatentEpsilon = 1e-6;

struct AttentionWeights {
  ModelVector norm;         ///< before the attention of any kind
  ModelVector norm_behind;  ///< the norm of the output before it is added; empty if the model has none
  ModelMatrix q, k, v, o;   ///< latent attention has q only if it has no rank for q
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

/// The weights of Mamba-2.
struct StateSpaceWeights {
  ModelMatrix in, out;                        ///< rows of `in`: gates, inputs of the convolution, time steps
  ModelVector convolution, convolution_bias;  ///< [channels, kernel], [channels]
  ModelVector a_log, d, dt_bias, norm;
  size_t input_group = 0, output_group = 0;  ///< indices in LayerWeights::groups
};

/// Projections of a compressor, see cpu::Compressor.
struct CompressorWeights {
  ModelMatrix values, gates;
  ModelVector bias, norm;
};

/// Weights of layers with compressed entries, beside those in AttentionWeights: q_a, q_a_norm, q_b, sinks,
/// and `o`, which is the second projection of outputs.
struct CompressedWeights {
  ModelMatrix kv, o_a;  ///< o_a is [groups * rank, heads * head_size / groups]: the rows of group after group
  ModelVector kv_norm;
  CompressorWeights entries, index;  ///< only where the layer has entries, or an index
  ModelMatrix index_q, index_weights;
  size_t mixed_group = 0;  ///< index in LayerWeights::groups
};

/// Weights that mix residual streams, see cpu::StreamMixer.
struct StreamWeights {
  ModelVector weight, base, scale;
};

/// Gate, up and down of an MLP. The gate may be missing.
struct MlpWeights {
  ModelMatrix gate, up, down;
};

struct FeedForwardWeights {
  ModelVector norm, norm_behind;
  MlpWeights mlp;  ///< the dense MLP or the shared expert
  ModelMatrix router, shared_gate;
  ModelMatrix latent_in, latent_out;  ///< projections before and after the experts
  ModelVector correction;
  std::optional<size_t> table;  ///< tensor [vocabulary, top_k] with the experts of each token
  std::vector<MlpWeights> experts;
  size_t input_group = 0, expert_group = 0, down_group = 0, latent_group = 0;  ///< indices in
                                                                               ///< LayerWeights::groups
  size_t first_expert = 0;  ///< index of the group of expert 0's down; those
                            ///< of the other experts follow
};

struct LayerWeights {
  AttentionWeights attention;
  DeltaWeights delta;
  StateSpaceWeights state_space;
  CompressedWeights compressed;
  StreamWeights attention_streams, feed_forward_streams;
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
  StreamWeights head_streams;
};

/// Finds the weights of every layer by the rows of the family. Throws Error if they do not fit the model.
void bind_weights(DecoderState& state, const FamilySizes& sizes);
/// The same for a layer of DeepSeek-V4, and for what its head needs.
LayerWeights bind_compressed_layer(DecoderState& state, int64_t layer);
void bind_compressed_head(DecoderState& state);

/// The same for a layer of Nemotron-H, which is one block.
LayerWeights bind_one_block(DecoderState& state, const FamilySizes& sizes, int64_t layer);

/// Finds the experts of a layer, whose names begin with `prefix`.
void bind_experts(DecoderState& state, const std::string& prefix, bool biased, FeedForwardWeights& f);
/// Adds a group with those of the given matrices that exist. Returns its index.
size_t add_group(DecoderState& state, std::vector<InputGroup>& groups, LayerStage stage,
                 std::initializer_list<const ModelMatrix*> matrices, bool adds = false);
/// Adds the groups of the MLP and of the experts.
void group_feed_forward(DecoderState& state, const std::string& prefix, FeedForwardWeights& f,
                        std::vector<InputGroup>& groups);

/// The rows of tokens [tokens, H] that half a layer reads, and those to which it adds its output. Both may be
/// the same memory.
struct HalfRows {
  std::span<const float> in;
  std::span<float> out;
};
/// out += attention(norm(in)), and the same with linear attention, with Mamba-2, with attention to compressed
/// entries, with the MLP or with the experts instead.
void run_attention(const DecoderState& state, int64_t layer, std::span<const SequencePart> batch,
                   HalfRows rows, const HalfRun& run);
void run_delta(const DecoderState& state, int64_t layer, std::span<const SequencePart> batch, HalfRows rows,
               const HalfRun& run);
void run_state_space(const DecoderState& state, int64_t layer, std::span<const SequencePart> batch,
                     HalfRows rows, const HalfRun& run);
void run_compressed(const DecoderState& state, int64_t layer, std::span<const SequencePart> batch,
                    HalfRows rows, const HalfRun& run);
void run_feed_forward(const DecoderState& state, int64_t layer, std::span<const SequencePart> batch,
                      HalfRows rows, const HalfRun& run);
/// Computes the gated activation of `gate` and `up` into `gate`. If the shape has a limit, clamps both first.
void apply_gate(const GateShape& shape, float* gate, float* up, int64_t count);
/// One of these functions. If the model has several residual streams, the half reads a mix of them and writes
/// to all. `hidden` is [tokens, streams * H].
void run_half_on_cpu(const DecoderState& state, int64_t layer, LayerHalf half,
                     std::span<const SequencePart> batch, std::span<float> hidden, const HalfRun& run);
/// Returns the input of the last norm: `hidden` [tokens, streams * H] as one stream [tokens, H].
std::vector<float> read_head_stream(const DecoderState& state, std::span<const float> hidden);

}  // namespace twofour
