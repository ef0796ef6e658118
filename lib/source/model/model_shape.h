#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "formats/json.h"
#include "kernels/moe/router.h"

namespace twofour {

/// The normalization of queries and keys before they are rotated.
enum class HeadNorm {
  kNone,
  kEach,  ///< each head by itself
  kAll,   ///< all heads together
};

/// The attention of a layer. Latent attention (DeepSeek's) has kv_rank > 0. It projects keys and values
/// through a low rank. The rotated part of a key comes directly from the input, and all heads share it.
struct AttentionShape {
  int64_t heads = 0, kv_heads = 0;
  int64_t head_size = 0, value_size = 0;
  int64_t q_rank = 0, kv_rank = 0;      ///< rank of the low-rank projection; 0 if there is none
  std::vector<float> frequencies = {};  ///< angle at position 1 for each rotated pair of numbers in a head
  std::vector<float> window_frequencies = {};  ///< for layers with a window; empty: `frequencies`
  float amplitude = 1;                         ///< factor of cosine and sine
  bool interleaved = false;  ///< a pair is two neighbours if true, otherwise one number from each half
  int64_t rotated_from = 0;  ///< position in a head of the first rotated number
  double scale = 0;          ///< factor of the products q k
  HeadNorm norm = HeadNorm::kNone;
  bool has_sinks = false;
  /// True if the projection of queries has a gate after each head's query. The outputs of the head are
  /// multiplied by the gate's sigmoid.
  bool has_gate = false;
  double clip = 0;  ///< limit to which queries, keys and values are clamped; 0: none
};

/// The kind of block that mixes the tokens of a layer.
enum class Mixer {
  kAttention,
  kDelta,  ///< linear attention by the gated delta rule, as kernels/attention/delta_rule.h defines it
  /// attention to a window and to compressed entries, as kernels/attention/compressed_attention.h defines it
  kCompressed,
  kStateSpace,  ///< Mamba-2, as kernels/attention/state_space.h defines it
  kNone,        ///< no such block: the layer is an MLP or experts alone
};

/// The attention of DeepSeek-V4, beside its AttentionShape. A token has one vector, which is key and value of
/// all heads. Its last numbers, from AttentionShape::rotated_from on, are rotated.
struct CompressedShape {
  std::vector<int64_t> ratios;     ///< for each layer, the tokens of an entry; 0: the layer has no entries
  std::vector<float> frequencies;  ///< frequencies of layers with entries; other layers have AttentionShape's
  int64_t window = 0;              ///< number of tokens that a query sees, its own included
  int64_t groups = 0, rank = 0;    ///< each group of heads has its own low-rank projection of outputs
  int64_t index_heads = 0, index_size = 0, chosen = 0;  ///< the index, and the entries that it chooses
  /// Entries of this ratio overlap, and an index chooses among them. A query sees all other entries.
  static constexpr int64_t kOverlapping = 4;
  static bool overlaps(int64_t ratio) { return ratio == kOverlapping; }
};

/// Residual streams, as kernels/attention/residual_streams.h defines them.
struct StreamShape {
  int64_t count = 1;  ///< 1: a plain residual stream, to which halves of layers add
  int64_t iterations = 0;
  double epsilon = 0;
  bool are_mixed() const { return count > 1; }
};

/// The linear attention of a layer. Each key head serves value_heads / key_heads value heads.
struct DeltaShape {
  int64_t key_heads = 0, value_heads = 0;
  int64_t key_size = 0, value_size = 0;
  int64_t kernel = 0;        ///< tokens that the convolution sees, its own included
  bool by_key_head = false;  ///< true if two projections have their rows in blocks, one for each key head
  int64_t keys() const { return key_heads * key_size; }
  int64_t values() const { return value_heads * value_size; }
  /// Channels of the convolution: queries, keys and values.
  int64_t channels() const { return 2 * keys() + values(); }
  /// Numbers of the state of a sequence: the last inputs of the convolution, and a matrix for each value
  /// head.
  int64_t window() const { return (kernel - 1) * channels(); }
  int64_t recurrent() const { return value_heads * key_size * value_size; }
};

/// Mamba-2 of a layer. Heads in `groups` groups share B and C.
struct StateSpaceShape {
  int64_t heads = 0, groups = 0;
  int64_t head_size = 0, state_size = 0;
  int64_t kernel = 0;     ///< tokens that the convolution sees, its own included
  double least_step = 0;  ///< time steps are at least as large
  int64_t values() const { return heads * head_size; }
  /// Channels of the convolution: x of all heads, and B and C of all groups.
  int64_t channels() const { return values() + 2 * groups * state_size; }
  /// Numbers of the projection of a token: gates of the outputs, inputs of the convolution, and time steps.
  int64_t projected() const { return values() + channels() + heads; }
  /// Numbers of the state of a sequence: the last inputs of the convolution, and a matrix for each head.
  int64_t window() const { return (kernel - 1) * channels(); }
  int64_t recurrent() const { return heads * state_size * head_size; }
};

/// The gate function of an MLP: gate * sigmoid(slope * gate) * (up + offset). `limit` clamps gate and up
/// first.
struct GateShape {
  float slope = 1, offset = 0;
  float limit = 0;        ///< gate is at most limit, |up| is at most limit; no clamping if 0
  bool is_gelu = false;   ///< instead, gelu(gate) * up, where tanh approximates gelu
  bool is_relu2 = false;  ///< instead, max(up, 0)^2: there is no gate
};

/// A decoder as config.json describes it. It has everything that defines the arithmetic, except weights.
struct ModelShape {
  std::string family;  ///< model_type of the family
  int64_t layers = 0, hidden = 0, vocabulary = 0;
  int64_t positions = 0;          ///< number of positions that the model was trained for
  double epsilon = 0;             ///< epsilon of norms
  double embedding_scale = 1;     ///< factor of the embedding's rows
  bool has_norms_behind = false;  ///< true if a norm follows each half of a layer, too
  AttentionShape attention;
  DeltaShape delta;
  StateSpaceShape state_space;
  CompressedShape compressed;
  StreamShape streams;
  std::vector<Mixer> mixers;     ///< for each layer
  std::vector<int64_t> windows;  ///< for each layer, the number of keys that a query sees; 0: all
  std::vector<bool> sparse;      ///< for each layer, true if it has routed experts
  std::vector<bool> hashed;      ///< for each layer, true if a table of tokens chooses its experts; or empty
  int64_t width = 0;             ///< width of dense MLPs
  int64_t experts = 0, top_k = 0, expert_width = 0;
  int64_t latent =
      0;  ///< numbers of inputs and outputs of experts, between projections; 0: they have `hidden`
  int64_t shared_width = 0;  ///< width of the shared expert; 0 if there is none
  bool has_shared_gate = false;
  RouterRule router;
  GateShape gate;
  bool norms_add_one = false;  ///< true if norms multiply by 1 + w, except those of linear attention
  bool is_tied = false;        ///< true if the head is the embedding
  bool one_block = false;      ///< true if a layer is either a mixer or a feed-forward block
  /// Numbers of a token between layers.
  int64_t residual() const { return streams.count * hidden; }
  /// True if the decoder runs the model on CUDA, too.
  bool runs_on_cuda() const { return !one_block; }
  bool has_mixer(int64_t layer) const { return mixers[static_cast<size_t>(layer)] != Mixer::kNone; }
  bool has_feed_forward(int64_t layer) const { return !one_block || !has_mixer(layer); }
  int64_t expert_inputs() const { return latent > 0 ? latent : hidden; }
  bool is_hashed(int64_t layer) const { return !hashed.empty() && hashed[static_cast<size_t>(layer)]; }
};

class Settings;
/// Reads a config.json. Throws Error on a setting or a rope type that the decoder does not support, and on
/// impossible numbers.
ModelShape read_model_shape(const Settings& settings, const std::string& model_type);

}  // namespace twofour
