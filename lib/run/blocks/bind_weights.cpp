#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "formats/error.h"
#include "lib/run/blocks/layer_binder.h"

namespace twofour {
namespace {

/// Number of weights of two matrices that are compared in one go.
constexpr int64_t kCompared = 1 << 20;

/// The weights of one layer of two halves.
class TwoHalvesBinder : LayerBinder {
 public:
  TwoHalvesBinder(DecoderState& state, const FamilySizes& sizes, int64_t layer)
      : LayerBinder(state, sizes, layer, "model.layers.#.") {}

  LayerWeights bind() {
    LayerWeights w;
    w.attention.norm = norm("input_layernorm");
    if (s_.shape.has_norms_behind) w.attention.norm_behind = norm("post_attention_layernorm");
    if (s_.shape.mixers[static_cast<size_t>(layer_)] == Mixer::kDelta) {
      bind_delta(w.delta);
      group_delta(w.delta, w.groups);
    } else {
      bind_attention(w.attention);
      group_attention(w.attention, w.groups);
    }
    bind_feed_forward(w.feed_forward);
    group_feed_forward(s_, prefix_, w.feed_forward, w.groups);
    return w;
  }

 private:
  /// A norm of the family's kind.
  ModelVector norm(const std::string& name) {
    ModelVector v = vector(name);
    v.plus = s_.shape.norms_add_one ? 1.0f : 0.0f;
    return v;
  }

  void bind_delta(DeltaWeights& d) {
    if (s_.shape.delta.by_key_head) {
      d.qkvz = matrix("linear_attn.in_proj_qkvz");
      d.ba = matrix("linear_attn.in_proj_ba");
    } else {
      d.qkv = matrix("linear_attn.in_proj_qkv");
      d.z = matrix("linear_attn.in_proj_z");
      d.b = matrix("linear_attn.in_proj_b");
      d.a = matrix("linear_attn.in_proj_a");
    }
    d.convolution = convolution("linear_attn.conv1d");
    d.a_log = vector("linear_attn.A_log", "");
    d.dt_bias = vector("linear_attn.dt_bias", "");
    d.norm = vector("linear_attn.norm");
    d.out = matrix("linear_attn.out_proj");
  }

  void bind_attention(AttentionWeights& a) {
    a.o = matrix("self_attn.o_proj");
    if (s_.shape.attention.kv_rank > 0) {
      if (s_.shape.attention.q_rank > 0) {
        a.q_a = matrix("self_attn.q_a_proj");
        a.q_a_norm = norm("self_attn.q_a_layernorm");
        a.q_b = matrix("self_attn.q_b_proj");
      } else {
        a.q = matrix("self_attn.q_proj");
      }
      a.kv_a = matrix("self_attn.kv_a_proj_with_mqa");
      a.kv_a_norm = norm("self_attn.kv_a_layernorm");
      a.kv_b = matrix("self_attn.kv_b_proj");
      return;
    }
    a.q = matrix("self_attn.q_proj");
    a.k = matrix("self_attn.k_proj");
    a.v = matrix("self_attn.v_proj");
    if (s_.shape.attention.norm != HeadNorm::kNone) {
      a.q_norm = norm("self_attn.q_norm");
      a.k_norm = norm("self_attn.k_norm");
    }
    if (s_.shape.attention.has_sinks) a.sinks = vector("self_attn.sinks", "");
  }

  MlpWeights mlp(const std::string& path) {
    return {matrix(path + ".gate_proj"), matrix(path + ".up_proj"), matrix(path + ".down_proj")};
  }

  void bind_feed_forward(FeedForwardWeights& f) {
    const bool behind = s_.shape.has_norms_behind;
    f.norm = norm(behind ? "pre_feedforward_layernorm" : "post_attention_layernorm");
    if (behind) f.norm_behind = norm("post_feedforward_layernorm");
    if (!s_.shape.sparse[static_cast<size_t>(layer_)]) {
      f.mlp = mlp("mlp");
      return;
    }
    bind_router(f);
    bind_experts(s_, prefix_, has_row("mlp.experts.down_proj_bias"), f);
    if (s_.shape.shared_width > 0) {
      f.mlp = mlp(has_row("mlp.shared_expert.gate_proj") ? "mlp.shared_expert" : "mlp.shared_experts");
    }
    if (s_.shape.has_shared_gate) f.shared_gate = matrix("mlp.shared_expert_gate");
  }
  void bind_router(FeedForwardWeights& f) {
    std::string first;
    for (const std::string& name : router_names(sizes_, layer_)) {
      const std::string below = name.substr(rows_.size());
      if (first.empty() || s_.weights.has(prefix_ + below)) first = below;
      if (s_.weights.has(prefix_ + below)) break;
    }
    const Parameter p = expected(first);
    f.router = s_.weights.matrix(prefix_ + first, s_.shape.experts, s_.shape.hidden, p.has_bias);
    if (const char* correction = find_family_router(s_.shape.family)->correction; correction != nullptr) {
      const std::string of_block = fmt::format("{}block_sparse_moe.{}", prefix_, correction);
      f.correction = s_.weights.vector(
          s_.weights.has_tensor(of_block) ? of_block : fmt::format("{}mlp.{}", prefix_, correction),
          s_.shape.experts);
    }
  }
  void group_delta(DeltaWeights& d, std::vector<InputGroup>& groups) const {
    d.input_group =
        add_group(s_, groups, LayerStage::kAttentionInput, {&d.qkvz, &d.ba, &d.qkv, &d.z, &d.b, &d.a});
    d.output_group = add_group(s_, groups, LayerStage::kAttentionOutput, {&d.out}, true);
  }
  void group_attention(AttentionWeights& a, std::vector<InputGroup>& groups) const {
    a.input_group = add_group(s_, groups, LayerStage::kAttentionInput, {&a.q, &a.q_a, &a.k, &a.v, &a.kv_a});
    if (a.q_b) a.q_group = add_group(s_, groups, LayerStage::kLatent, {&a.q_b});
    if (a.kv_b) a.latent_group = add_group(s_, groups, LayerStage::kLatent, {&a.kv_b});
    a.output_group = add_group(s_, groups, LayerStage::kAttentionOutput, {&a.o}, true);
  }
};

/// Throws Error if a stored head differs from the embedding to which it is tied. Some loaders use the head,
/// others the embedding.
void check_tied_head(DecoderState& s) {
  const ModelWeights& w = s.weights;
  const std::string& name = w.head_name();
  if (!w.has(name) && !s.checkpoint.find(name + ".weight")) return;
  const ModelMatrix head = s.weights.table(name, s.shape.vocabulary, s.shape.hidden);
  const int64_t step = std::max<int64_t>(1, kCompared / s.shape.hidden);
  std::vector<float> own, embedded;
  for (int64_t row = 0; row < s.shape.vocabulary; row += step) {
    const int64_t end = std::min(s.shape.vocabulary, row + step);
    own.resize(static_cast<size_t>((end - row) * s.shape.hidden));
    embedded.resize(own.size());
    w.read_rows(head, row, end, own);
    w.read_rows(s.embedding, row, end, embedded);
    if (std::memcmp(own.data(), embedded.data(), own.size() * sizeof(float)) == 0) continue;
    throw Error(fmt::format(
        "{}: tie_word_embeddings: expected false, because {} and the embedding differ, found true",
        (s.checkpoint.path() / "config.json").string(), name.substr(name.rfind('.') + 1)));
  }
}

}  // namespace

void bind_weights(DecoderState& s, const FamilySizes& sizes) {
  const std::string& prefix = s.weights.prefix();
  s.embedding = s.weights.table(s.weights.embedding_name(), s.shape.vocabulary, s.shape.hidden);
  s.norm = s.weights.vector(prefix + (s.shape.one_block ? "norm_f.weight" : "norm.weight"), s.shape.hidden);
  s.norm.plus = s.shape.norms_add_one ? 1.0f : 0.0f;
  s.head = s.embedding;
  if (s.shape.is_tied) check_tied_head(s);
  if (!s.shape.is_tied) {
    s.head = s.weights.table(s.weights.head_name(), s.shape.vocabulary, s.shape.hidden);
    ModelMatrix stored = s.head;  // includes rows beyond the vocabulary
    stored.n = stored.module->n;
    s.linears.emplace(stored.name, stored);
  }
  for (int64_t layer = 0; layer < s.shape.layers; ++layer) {
    const bool is_compressed = s.shape.mixers[at(layer)] == Mixer::kCompressed;
    s.layers.push_back(is_compressed       ? bind_compressed_layer(s, layer)
                       : s.shape.one_block ? bind_one_block(s, sizes, layer)
                                           : TwoHalvesBinder(s, sizes, layer).bind());
  }
  if (s.shape.streams.are_mixed()) bind_compressed_head(s);
  s.weights.refuse_unused(s.shape.layers);
}

}  // namespace twofour
