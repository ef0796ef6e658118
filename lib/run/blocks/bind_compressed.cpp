#include <fmt/format.h>

#include "lib/run/blocks/state.h"

namespace twofour {
namespace {

/// The weights of one layer of DeepSeek-V4, under the names of the released files or under those of
/// transformers' modules. transformers writes the released names, but calls attn.kv_norm attn.norm.
class CompressedBinder {
 public:
  CompressedBinder(DecoderState& state, int64_t layer)
      : s_(state),
        a_(state.shape.attention),
        c_(state.shape.compressed),
        layer_(layer),
        ratio_(c_.ratios[at(layer)]),
        prefix_(fmt::format("{}layers.{}.", state.weights.prefix(), layer)) {}

  LayerWeights bind() {
    LayerWeights w;
    w.attention_streams = streams("attn");
    w.feed_forward_streams = streams("ffn");
    bind_attention(w.attention, w.compressed);
    if (ratio_ > 0) {
      w.compressed.entries =
          compressor({"attn.compressor", "self_attn.compressor"}, {"norm", "kv_norm"}, a_.head_size);
    }
    if (CompressedShape::overlaps(ratio_)) bind_index(w.compressed);
    group_attention(w.attention, w.compressed, w.groups);
    bind_feed_forward(w.feed_forward);
    group_feed_forward(s_, prefix_, w.feed_forward, w.groups);
    return w;
  }

 private:
  /// A weight's name in the released files, and its name in transformers.
  struct Names {
    std::string released, other;
  };
  ModelMatrix matrix(const Names& names, int64_t n, int64_t k) {
    const bool is_other = s_.weights.has(prefix_ + names.other);
    return s_.weights.matrix(prefix_ + (is_other ? names.other : names.released), n, k, false);
  }
  ModelVector tensor(const Names& names, const std::vector<int64_t>& shape) {
    const bool is_other = s_.weights.has_tensor(prefix_ + names.other);
    return s_.weights.tensor(prefix_ + (is_other ? names.other : names.released), shape);
  }
  ModelVector norm(const std::string& released, const std::string& other, int64_t n) {
    return tensor({released + ".weight", other + ".weight"}, {n});
  }

  StreamWeights streams(const std::string& half) {
    const int64_t n = s_.shape.streams.count, rows = 2 * n + n * n;
    const auto of = [&](const char* name, const std::vector<int64_t>& shape) {
      return tensor({fmt::format("hc_{}_{}", half, name), fmt::format("{}_hc.{}", half, name)}, shape);
    };
    return {of("fn", {rows, s_.shape.residual()}), of("base", {rows}), of("scale", {3})};
  }

  void bind_attention(AttentionWeights& a, CompressedWeights& c) {
    const int64_t h = s_.shape.hidden, heads = a_.heads * a_.head_size;
    a.norm = norm("attn_norm", "input_layernorm", h);
    a.q_a = matrix({"attn.wq_a", "self_attn.q_a_proj"}, a_.q_rank, h);
    a.q_a_norm = norm("attn.q_norm", "self_attn.q_a_norm", a_.q_rank);
    a.q_b = matrix({"attn.wq_b", "self_attn.q_b_proj"}, heads, a_.q_rank);
    c.kv = matrix({"attn.wkv", "self_attn.kv_proj"}, a_.head_size, h);
    const bool is_written = s_.weights.has_tensor(prefix_ + "attn.norm.weight");
    c.kv_norm = norm(is_written ? "attn.norm" : "attn.kv_norm", "self_attn.kv_norm", a_.head_size);
    c.o_a = matrix({"attn.wo_a", "self_attn.o_a_proj"}, c_.groups * c_.rank, heads / c_.groups);
    a.o = matrix({"attn.wo_b", "self_attn.o_b_proj"}, h, c_.groups * c_.rank);
    a.sinks = tensor({"attn.attn_sink", "self_attn.sinks"}, {a_.heads});
  }

  CompressorWeights compressor(const Names& block, const Names& norms, int64_t width) {
    const int64_t columns = (CompressedShape::overlaps(ratio_) ? 2 : 1) * width, h = s_.shape.hidden;
    return {matrix({block.released + ".wkv", block.other + ".kv_proj"}, columns, h),
            matrix({block.released + ".wgate", block.other + ".gate_proj"}, columns, h),
            tensor({block.released + ".ape", block.other + ".position_bias"}, {ratio_, columns}),
            norm(fmt::format("{}.{}", block.released, norms.released),
                 fmt::format("{}.{}", block.other, norms.other), width)};
  }

  void bind_index(CompressedWeights& c) {
    const std::string other = "self_attn.compressor.indexer";
    c.index = compressor({"attn.indexer.compressor", other}, {"norm", "kv_norm"}, c_.index_size);
    c.index_q = matrix({"attn.indexer.wq_b", other + ".q_b_proj"}, c_.index_heads * c_.index_size, a_.q_rank);
    c.index_weights = matrix({"attn.indexer.weights_proj", other + ".scorer.weights_proj"}, c_.index_heads,
                             s_.shape.hidden);
  }

  void bind_feed_forward(FeedForwardWeights& f) {
    const int64_t h = s_.shape.hidden, experts = s_.shape.experts, shared = s_.shape.shared_width;
    f.norm = norm("ffn_norm", "post_attention_layernorm", h);
    const bool is_module = s_.weights.has(prefix_ + "mlp.gate");
    f.router = s_.weights.matrix_without_bias(prefix_ + (is_module ? "mlp.gate" : "ffn.gate"), experts, h);
    if (s_.shape.is_hashed(layer_)) {
      const bool is_other = s_.weights.has_tensor(prefix_ + "mlp.gate.tid2eid");
      f.table = s_.weights.numbers(prefix_ + (is_other ? "mlp.gate.tid2eid" : "ffn.gate.tid2eid"),
                                   {s_.shape.vocabulary, s_.shape.top_k});
    } else {
      f.correction = tensor({"ffn.gate.bias", "mlp.gate.e_score_correction_bias"}, {experts});
    }
    bind_experts(s_, prefix_, false, f);
    const auto of_shared = [&](const char* name, int64_t n, int64_t k) {
      return matrix({fmt::format("ffn.shared_experts.{}", name), fmt::format("mlp.shared_experts.{}", name)},
                    n, k);
    };
    f.mlp = {of_shared("gate_proj", shared, h), of_shared("up_proj", shared, h),
             of_shared("down_proj", h, shared)};
  }

  void group_attention(AttentionWeights& a, CompressedWeights& c, std::vector<InputGroup>& groups) {
    a.input_group = add_group(s_, groups, LayerStage::kAttentionInput,
                              {&a.q_a, &c.kv, &c.entries.values, &c.entries.gates, &c.index.values,
                               &c.index.gates, &c.index_weights});
    a.q_group = add_group(s_, groups, LayerStage::kLatent, {&a.q_b, &c.index_q});
    // Its rows have the inputs of their own groups of heads. The sums are of all groups.
    c.mixed_group = add_group(s_, groups, LayerStage::kMixedHeads, {&c.o_a});
    groups[c.mixed_group].inputs = c_.groups;
    a.output_group = add_group(s_, groups, LayerStage::kAttentionOutput, {&a.o}, true);
  }

  DecoderState& s_;
  const AttentionShape& a_;
  const CompressedShape& c_;
  int64_t layer_, ratio_;
  std::string prefix_;
};

}  // namespace

LayerWeights bind_compressed_layer(DecoderState& s, int64_t layer) {
  return CompressedBinder(s, layer).bind();
}

void bind_compressed_head(DecoderState& s) {
  const int64_t n = s.shape.streams.count;
  const std::string& prefix = s.weights.prefix();
  const auto of = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const std::string other = prefix + "hc_head.hc_" + name;
    return s.weights.tensor(s.weights.has_tensor(other) ? other : prefix + "hc_head_" + name, shape);
  };
  s.head_streams = {of("fn", {n, s.shape.residual()}), of("base", {n}), of("scale", {1})};
}

}  // namespace twofour
