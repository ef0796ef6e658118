#include <fmt/format.h>

#include "formats/error.h"
#include "lib/run/blocks/state.h"

namespace twofour {

LayerHalf half_of(LayerStage stage) {
  return stage < LayerStage::kFeedForwardInput ? LayerHalf::kAttention : LayerHalf::kFeedForward;
}

void bind_experts(DecoderState& s, const std::string& prefix, bool biased, FeedForwardWeights& f) {
  const std::string block = s.weights.expert_block(prefix);
  if (block.empty())
    throw Error(fmt::format("{}: expected experts in {}, found none", s.checkpoint.path().string(), prefix));
  const int64_t h = s.shape.expert_inputs(), i = s.shape.expert_width;
  for (int64_t e = 0; e < s.shape.experts; ++e) {
    const auto of = [&](const char* name, int64_t n, int64_t k) {
      return s.weights.matrix(fmt::format("{}.{}.{}", block, e, name), n, k, biased);
    };
    const ModelMatrix gate = s.shape.gate.is_relu2 ? ModelMatrix() : of("gate_proj", i, h);
    f.experts.push_back({gate, of("up_proj", i, h), of("down_proj", h, i)});
  }
  if (s.weights.has(fmt::format("{}.{}.down_proj", block, s.shape.experts)))
    throw Error(fmt::format("{}: expected {} experts (config.json), found more", block, s.shape.experts));
}

size_t add_group(DecoderState& s, std::vector<InputGroup>& groups, LayerStage stage,
                 std::initializer_list<const ModelMatrix*> matrices, bool adds) {
  InputGroup group;
  group.stage = stage;
  // Mixed streams get an output times weights of the token, and a norm changes it before it is added.
  group.adds = adds && !s.shape.streams.are_mixed() && !s.shape.has_norms_behind;
  for (const ModelMatrix* m : matrices) {
    if (!*m) continue;
    group.linears.push_back(m->name);
    group.k = m->k;
    s.linears.emplace(m->name, *m);
  }
  groups.push_back(std::move(group));
  return groups.size() - 1;
}

void group_feed_forward(DecoderState& s, const std::string& prefix, FeedForwardWeights& f,
                        std::vector<InputGroup>& groups) {
  f.input_group = add_group(s, groups, LayerStage::kFeedForwardInput,
                            {&f.router, &f.mlp.gate, &f.mlp.up, &f.shared_gate, &f.latent_in});
  if (f.mlp.down) f.down_group = add_group(s, groups, LayerStage::kDown, {&f.mlp.down}, !f.shared_gate);
  if (f.experts.empty()) return;
  InputGroup all;
  all.k = s.shape.expert_inputs();
  all.stage = f.latent_in ? LayerStage::kExpertInput : LayerStage::kFeedForwardInput;
  all.times = s.shape.top_k;
  all.block = s.weights.expert_block(prefix);
  for (const MlpWeights& e : f.experts) {
    for (const ModelMatrix* m : {&e.gate, &e.up}) {
      if (!*m) continue;
      all.linears.push_back(m->name);
      s.linears.emplace(m->name, *m);
    }
  }
  f.expert_group = groups.size();
  f.first_expert = groups.size() + 1;
  const std::string block = all.block;
  groups.push_back(std::move(all));
  for (size_t e = 0; e < f.experts.size(); ++e) {
    const size_t group = add_group(s, groups, LayerStage::kDown, {&f.experts[e].down});
    groups[group].expert = static_cast<int64_t>(e);
    groups[group].block = block;
  }
  if (f.latent_out) f.latent_group = add_group(s, groups, LayerStage::kExpertOutput, {&f.latent_out}, true);
}

}  // namespace twofour
