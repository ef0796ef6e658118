#include <string>

#include "lib/run/blocks/layer_binder.h"

namespace twofour {
namespace {

/// The weights of one layer of Nemotron-H, whose block is "mixer" whatever its kind.
class OneBlockBinder : LayerBinder {
 public:
  OneBlockBinder(DecoderState& state, const FamilySizes& sizes, int64_t layer)
      : LayerBinder(state, sizes, layer, "backbone.layers.#.") {}

  LayerWeights bind() {
    LayerWeights w;
    const ModelVector norm = vector("norm");
    const Mixer mixer = s_.shape.mixers[at(layer_)];
    if (mixer == Mixer::kStateSpace) {
      w.attention.norm = norm;
      bind_state_space(w.state_space, w.groups);
    } else if (mixer == Mixer::kAttention) {
      w.attention.norm = norm;
      bind_attention(w.attention, w.groups);
    } else {
      w.feed_forward.norm = norm;
      bind_feed_forward(w.feed_forward);
      group_feed_forward(s_, prefix_, w.feed_forward, w.groups);
    }
    return w;
  }

 private:
  void bind_state_space(StateSpaceWeights& w, std::vector<InputGroup>& groups) {
    w.in = matrix("mixer.in_proj");
    w.out = matrix("mixer.out_proj");
    w.convolution = convolution("mixer.conv1d");
    if (expected("mixer.conv1d").has_bias) w.convolution_bias = vector("mixer.conv1d", ".bias");
    w.a_log = vector("mixer.A_log", "");
    w.d = vector("mixer.D", "");
    w.dt_bias = vector("mixer.dt_bias", "");
    w.norm = vector("mixer.norm");
    w.input_group = add_group(s_, groups, LayerStage::kAttentionInput, {&w.in});
    w.output_group = add_group(s_, groups, LayerStage::kAttentionOutput, {&w.out}, true);
  }

  void bind_attention(AttentionWeights& a, std::vector<InputGroup>& groups) {
    a.q = matrix("mixer.q_proj");
    a.k = matrix("mixer.k_proj");
    a.v = matrix("mixer.v_proj");
    a.o = matrix("mixer.o_proj");
    a.input_group = add_group(s_, groups, LayerStage::kAttentionInput, {&a.q, &a.k, &a.v});
    a.output_group = add_group(s_, groups, LayerStage::kAttentionOutput, {&a.o}, true);
  }

  MlpWeights mlp(const std::string& path) {
    return {{}, matrix(path + ".up_proj"), matrix(path + ".down_proj")};
  }

  void bind_feed_forward(FeedForwardWeights& f) {
    if (!s_.shape.sparse[at(layer_)]) {
      f.mlp = mlp("mixer");
      return;
    }
    f.router = matrix("mixer.gate");
    f.correction = vector("mixer.gate.e_score_correction_bias", "");
    bind_experts(s_, prefix_, false, f);
    f.mlp = mlp("mixer.shared_experts");
    if (s_.shape.latent == 0) return;
    f.latent_in = matrix("mixer.fc1_latent_proj");
    f.latent_out = matrix("mixer.fc2_latent_proj");
  }
};

}  // namespace

LayerWeights bind_one_block(DecoderState& s, const FamilySizes& sizes, int64_t layer) {
  return OneBlockBinder(s, sizes, layer).bind();
}

}  // namespace twofour
