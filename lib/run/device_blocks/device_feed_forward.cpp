#include <algorithm>

#include "lib/run/device_blocks/device_run.h"

namespace twofour {

void DeviceRun::run_block(const RuntimeLayer& block, const float* x, int64_t m, int64_t top_k,
                          const int32_t* ids, const float* weights, float* out) {
  cuda::MoeTokens tokens;
  tokens.m = m, tokens.topk = top_k, tokens.type = cuda::Float::f32;
  tokens.hidden = x, tokens.topk_ids = ids, tokens.topk_weights = weights, tokens.out = out;
  const size_t bytes = block.workspace_bytes(m, top_k);
  block.forward(tokens, workspace_.of<uint8_t>(static_cast<int64_t>(bytes)), bytes, stream_.get());
}

void DeviceRun::run_mlp(const DeviceLayer& w, const FeedForwardWeights& f, float* x, float* hidden, int64_t m,
                        const HalfRun& run) {
  const int64_t h = state_.shape.hidden;
  float* out = hidden;
  if (w.shared_gate.n > 0 || w.mlp.block) out = added_.of<float>(m * h);
  if (w.mlp.block) {
    const std::vector<int32_t> zeros(at(m));
    const std::vector<float> ones(at(m), 1.0f);
    int32_t* ids = ids_.of<int32_t>(m);
    float* weights = routed_.of<float>(m);
    cuda::copy_to_device(zeros.data(), ids, zeros.size() * sizeof(int32_t), stream_);
    cuda::copy_to_device(ones.data(), weights, ones.size() * sizeof(float), stream_);
    run_block(*w.mlp.block, x, m, 1, ids, weights, out);
  } else {
    const int64_t i = w.mlp.gate.n;
    products_.set_rows(x, m, h, stream_.get());
    float *gates = gates_.of<float>(2 * m * i), *active = active_.of<float>(m * i);
    products_.multiply(std::array{w.mlp.gate, w.mlp.up}, gates, 2 * i, stream_.get());
    cuda::gate_rows(gates, gates + i, m, i, 2 * i, gate_units(), active, stream_.get());
    see(run, f.down_group, active, m, i);
    if (run.last) return;
    products_.set_rows(active, m, i, stream_.get());
    products_.multiply(w.mlp.down, out, h, out == hidden, stream_.get());
  }
  if (w.shared_gate.n > 0) {
    float* gates = gates_.of<float>(m);
    products_.set_rows(x, m, h, stream_.get());
    products_.multiply(w.shared_gate, gates, 1, false, stream_.get());
    cuda::scale_by_gates(out, gates, m, h, stream_.get());
  }
  if (out != hidden) cuda::add_floats(hidden, out, m * h, stream_.get());
}

void DeviceRun::run_each_expert(const DeviceLayer& w, const FeedForwardWeights& f, const ExpertChoice& chosen,
                                float* x, float* hidden, int64_t m, const HalfRun& run) {
  const int64_t h = state_.shape.hidden, i = state_.shape.expert_width, top_k = state_.shape.top_k;
  // For each expert, its rows.
  std::vector<std::vector<std::pair<int32_t, float>>> rows(f.experts.size());
  for (size_t r = 0; r < chosen.ids.size(); ++r)
    rows[static_cast<size_t>(chosen.ids[r])].emplace_back(static_cast<int64_t>(r) / top_k, chosen.weights[r]);
  std::vector<int32_t> tokens;
  std::vector<float> weights;
  for (const auto& own : rows) {
    for (const auto& [token, weight] : own) {
      tokens.push_back(token);
      weights.push_back(weight);
    }
  }
  int32_t* device_tokens = rows_.of<int32_t>(m * top_k);
  float* device_weights = row_weights_.of<float>(m * top_k);
  cuda::copy_to_device(tokens.data(), device_tokens, tokens.size() * sizeof(int32_t), stream_);
  cuda::copy_to_device(weights.data(), device_weights, weights.size() * sizeof(float), stream_);
  int64_t first = 0;
  for (size_t e = 0; e < rows.size(); ++e) {
    const auto count = static_cast<int64_t>(rows[e].size());
    if (count == 0) continue;
    const DeviceMlp& mlp = w.experts.each[e];
    float* own = expert_x_.of<float>(count * h);
    cuda::gather_rows(x, device_tokens + first, count, h, own, stream_.get());
    products_.set_rows(own, count, h, stream_.get());
    float *gates = gates_.of<float>(2 * count * i), *active = active_.of<float>(count * i);
    products_.multiply(std::array{mlp.gate, mlp.up}, gates, 2 * i, stream_.get());
    cuda::gate_rows(gates, gates + i, count, i, 2 * i, gate_units(), active, stream_.get());
    if (run.watcher != nullptr) {
      std::vector<int64_t> own_tokens;
      for (const auto& [token, weight] : rows[e]) own_tokens.push_back(token);
      see(run, f.first_expert + e, active, count, i, own_tokens);
    }
    if (!run.last) {
      products_.set_rows(active, count, i, stream_.get());
      float* out = expert_out_.of<float>(count * h);
      products_.multiply(mlp.down, out, h, false, stream_.get());
      if (run.watcher != nullptr) {
        double* sum = norms_.of<double>(1);
        cuda::clear_device_bytes(sum, sizeof(double), stream_.get());
        cuda::sum_of_norms(out, device_weights + first, count, h, sum, stream_.get());
        run.watcher->see_expert(static_cast<int64_t>(e), download(sum, 1).front());
      }
      cuda::scatter_rows(out, device_tokens + first, device_weights + first, count, h, hidden, stream_.get());
    }
    first += count;
  }
}

void DeviceRun::run_experts(const DeviceLayer& w, const FeedForwardWeights& f, const int32_t* tokens,
                            float* x, float* hidden, int64_t m, const HalfRun& run) {
  const int64_t h = state_.shape.hidden, rows = m * state_.shape.top_k;
  int32_t* ids = ids_.of<int32_t>(rows);
  float* weights = routed_.of<float>(rows);
  if (run.given != nullptr) {
    cuda::copy_to_device(run.given->ids.data(), ids, at(rows) * sizeof(int32_t), stream_);
    cuda::copy_to_device(run.given->weights.data(), weights, at(rows) * sizeof(float), stream_);
  } else {
    float* logits = logits_.of<float>(m * state_.shape.experts);
    products_.set_rows(x, m, h, stream_.get());
    products_.multiply(w.router, logits, state_.shape.experts, false, stream_.get());
    cuda::choose_experts(router_rule(w, tokens), logits, m, ids, weights, router_error(), stream_.get());
  }
  if (w.experts.block) {
    float* out = added_.of<float>(m * h);
    run_block(*w.experts.block, x, m, state_.shape.top_k, ids, weights, out);
    cuda::add_floats(hidden, out, m * h, stream_.get());
    return;
  }
  const ExpertChoice chosen{download(ids, rows), download(weights, rows)};
  check_routers();
  if (run.chosen != nullptr) *run.chosen = chosen;
  run_each_expert(w, f, chosen, x, hidden, m, run);
}

void DeviceRun::run_feed_forward(int64_t layer, const int32_t* tokens, const Rows& rows, const HalfRun& run) {
  const DeviceLayer& w = weights_.layer(layer);
  const FeedForwardWeights& f = state_.layers[at(layer)].feed_forward;
  const int64_t h = state_.shape.hidden, m = rows.m;
  if (run.late != nullptr) {
    products_.set_rows(run.late, m, w.mlp.down.k, stream_.get());
    return products_.multiply(w.mlp.down, rows.out, h, true, stream_.get());
  }
  float* x = normed_.of<float>(m * h);
  cuda::rms_norm({rows.in, h, w.feed_forward_norm, m, h, state_.shape.epsilon, x, h}, stream_.get());
  see(run, f.input_group, x, m, h);
  if (w.experts) see(run, f.expert_group, x, m, h);
  if (run.last == LayerStage::kFeedForwardInput) return;
  if (w.mlp) run_mlp(w, f, x, rows.out, m, run);
  if (w.experts) run_experts(w, f, tokens, x, rows.out, m, run);
}

}  // namespace twofour
