#include <algorithm>

#include "lib/base/threads/parallel.h"
#include "lib/run/gradients/layer_blocks.h"

namespace twofour {
namespace {

/// Number of experts whose activations are in memory at the same time.
constexpr size_t kExpertGradients = 32;

/// The rows of one expert, with their activations and gradients.
struct ExpertRows {
  std::vector<int64_t> tokens, places;  ///< a place is the index of the token's weight among all weights
  std::vector<float> weights;
  std::vector<float> x, dx;  ///< [rows, H]
  MlpGradient mlp;
};

std::vector<ExpertRows> rows_by_expert(const ExpertChoice& chosen, size_t experts, int64_t top_k) {
  std::vector<ExpertRows> all(experts);
  for (size_t i = 0; i < chosen.ids.size(); ++i) {
    ExpertRows& rows = all[static_cast<size_t>(chosen.ids[i])];
    rows.tokens.push_back(static_cast<int64_t>(i) / top_k);
    rows.places.push_back(static_cast<int64_t>(i));
    rows.weights.push_back(chosen.weights[i]);
  }
  return all;
}

std::vector<float> gather(const std::vector<float>& rows, std::span<const int64_t> tokens, int64_t width) {
  std::vector<float> out(tokens.size() * at(width));
  for (size_t i = 0; i < tokens.size(); ++i)
    std::copy_n(rows.data() + tokens[i] * width, width, out.data() + i * at(width));
  return out;
}

void run_backward(const DecoderState& s, const MlpWeights& w, const std::vector<float>& x,
                  const std::vector<float>& dy, ExpertRows& rows) {
  const int64_t h = s.shape.hidden, m = static_cast<int64_t>(rows.tokens.size());
  rows.x = gather(x, rows.tokens, h);
  rows.mlp.forward(s, w, rows.x.data(), m);
  rows.mlp.backward(s, w, gather(dy, rows.tokens, h).data(), m, rows.weights);
  rows.dx.resize(rows.x.size());
  add_input_gradient(s.weights, w.gate, rows.mlp.gate.data(), m, rows.dx.data());
  add_input_gradient(s.weights, w.up, rows.mlp.up.data(), m, rows.dx.data());
}

}  // namespace

void backward_experts(const DecoderState& s, const FeedForwardWeights& f, const std::vector<float>& x,
                      const std::vector<float>& dy, std::vector<float>& dx, GradientSight sight) {
  const int64_t h = s.shape.hidden;
  const std::vector<float> logits = multiply_rows_of(s, f.router, x);
  const std::vector<float> correction = f.correction ? s.weights.read(f.correction) : std::vector<float>{};
  const ExpertChoice chosen =
      cpu::choose_experts(s.shape.router, logits, s.shape.experts, s.shape.top_k, correction);
  std::vector<float> dweights(chosen.weights.size());
  std::vector<ExpertRows> rows = rows_by_expert(chosen, f.experts.size(), s.shape.top_k);
  std::vector<size_t> used;
  for (size_t e = 0; e < rows.size(); ++e) {
    if (!rows[e].tokens.empty()) used.push_back(e);
  }
  for (size_t first = 0; first < used.size(); first += kExpertGradients) {
    const size_t count = std::min(kExpertGradients, used.size() - first);
    parallel_for(count, [&](size_t i) {
      const size_t e = used[first + i];
      run_backward(s, f.experts[e], x, dy, rows[e]);
    });
    for (size_t i = 0; i < count; ++i) {  // in the order of experts, for any number of threads
      const size_t e = used[first + i];
      ExpertRows& own = rows[e];
      const MlpWeights& w = f.experts[e];
      sight.show(f.first_expert + e, own.mlp.units, own.tokens, {{w.down.name, own.mlp.ddown}});
      sight.show(f.expert_group, own.x, own.tokens, {{w.gate.name, own.mlp.gate}, {w.up.name, own.mlp.up}});
      for (size_t r = 0; r < own.tokens.size(); ++r) {
        dweights[at(own.places[r])] = own.mlp.contributed[r];
        float* to = dx.data() + own.tokens[r] * h;
        for (int64_t j = 0; j < h; ++j) to[j] += own.dx[r * at(h) + at(j)];
      }
      own = {};
    }
  }
  const std::vector<float> dlogits =
      router_gradient(s.shape.router, logits, s.shape.experts, chosen, dweights);
  sight.show(f.input_group, f.router, x, dlogits);
  add_input_gradient(s.weights, f.router, dlogits.data(), static_cast<int64_t>(x.size()) / h, dx.data());
}

}  // namespace twofour
