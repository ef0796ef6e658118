#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "formats/error.h"
#include "kernels/device/check.h"
#include "kernels/device/isa.h"
#include "kernels/floats/float_ops.h"
#include "lib/base/threads/parallel.h"
#include "lib/run/blocks/state.h"

namespace twofour {

void apply_gate(const GateShape& g, float* gate, float* up, int64_t count) {
  if (g.is_relu2) {
    for (int64_t i = 0; i < count; ++i) {
      const float x = std::max(up[i], 0.0f);
      gate[i] = x * x;
    }
    return;
  }
  if (g.limit > 0) {
    for (int64_t i = 0; i < count; ++i) {
      gate[i] = std::min(gate[i], g.limit);
      up[i] = std::clamp(up[i], -g.limit, g.limit);
    }
  }
  if (g.is_gelu) {
    constexpr float kRoot = 0.7978845608f;  // the root of 2 / pi
    for (int64_t i = 0; i < count; ++i) {
      const float x = gate[i], inner = kRoot * (x + 0.044715f * x * x * x);
      gate[i] = 0.5f * x * (1.0f + std::tanh(inner)) * up[i];
    }
    return;
  }
  float_ops(best_isa()).gate_units(gate, up, count, g.slope, g.offset);
}

namespace {

/// The output of the MLP for `x` [m, H], computed on all threads. Empty if the run ends before down.
std::vector<float> run_mlp(const DecoderState& s, const MlpWeights& w, const float* x, int64_t m,
                           size_t down_group, const HalfRun& run) {
  std::vector<float> gate(at(m * w.up.n)), up(gate.size()), out(at(m * w.down.n));
  if (w.gate) s.weights.multiply(w.gate, x, m, gate.data());
  s.weights.multiply(w.up, x, m, up.data());
  parallel_for(at(m), [&](size_t i) {
    const int64_t from = static_cast<int64_t>(i) * w.up.n;
    apply_gate(s.shape.gate, gate.data() + from, up.data() + from, w.up.n);
  });
  if (run.watcher != nullptr) run.watcher->see_input(down_group, gate, {});
  if (run.last == LayerStage::kDown) return {};
  s.weights.multiply(w.down, gate.data(), m, out.data());
  return out;
}

/// The state of a thread that runs experts.
struct ExpertWorker {
  ModelWeights::Worker weights;
  std::vector<float> x, gate, up;
  std::vector<int64_t> tokens;
};

/// A token, and the weight of one of its experts.
struct Routed {
  int64_t token;
  float weight;
};

/// The output of the MLP of one expert for its tokens, [rows, L]. Empty if the run ends before down. L is
/// ModelShape::expert_inputs().
std::vector<float> run_expert(const DecoderState& s, const MlpWeights& w, const float* x,
                              const std::vector<Routed>& rows, size_t down_group, const HalfRun& run,
                              ExpertWorker& worker) {
  const auto m = static_cast<int64_t>(rows.size());
  const int64_t h = w.up.k;
  worker.x.resize(at(m * h));
  for (size_t i = 0; i < rows.size(); ++i)
    std::copy_n(x + rows[i].token * h, h, worker.x.data() + static_cast<int64_t>(i) * h);
  worker.gate.resize(at(m * w.up.n));
  worker.up.resize(worker.gate.size());
  std::vector<float> out(at(m * h));
  if (w.gate) s.weights.multiply(worker.weights, w.gate, worker.x.data(), m, worker.gate.data());
  s.weights.multiply(worker.weights, w.up, worker.x.data(), m, worker.up.data());
  apply_gate(s.shape.gate, worker.gate.data(), worker.up.data(), m * w.up.n);
  if (run.watcher != nullptr) {
    worker.tokens.clear();
    for (const Routed& row : rows) worker.tokens.push_back(row.token);
    run.watcher->see_input(down_group, worker.gate, worker.tokens);
  }
  if (run.last == LayerStage::kDown) return {};
  s.weights.multiply(worker.weights, w.down, worker.gate.data(), m, out.data());
  return out;
}

/// The sum of the norms of an expert's contributions to its tokens. A contribution is a row of `results`
/// [rows, H] times the router's weight.
double sum_of_norms(const float* results, const std::vector<Routed>& rows, int64_t h) {
  double sum = 0;
  for (const Routed& row : rows) {
    double squares = 0;
    for (int64_t j = 0; j < h; ++j)
      squares += static_cast<double>(results[j]) * static_cast<double>(results[j]);
    sum += std::abs(static_cast<double>(row.weight)) * std::sqrt(squares);
    results += h;
  }
  return sum;
}

/// Number of experts that run at the same time. Their results are added to the tokens in the order of
/// experts.
constexpr size_t kExpertsAtOnce = 32;

/// The experts of each token by the table of a layer.
std::vector<int32_t> look_up(const DecoderState& s, const FeedForwardWeights& f,
                             std::span<const SequencePart> batch) {
  std::vector<int32_t> experts;
  for (const SequencePart& part : batch) {
    check(part.ids != nullptr, "the ids of the tokens");
    for (int64_t i = 0; i < part.count; ++i) {
      const int64_t first = part.ids[i] * s.shape.top_k;
      for (const int64_t e : s.weights.read_numbers(*f.table, first, s.shape.top_k)) {
        if (e < 0 || e >= s.shape.experts) {
          throw Error(fmt::format("{}: token {}: expected experts 0 to {}, found {}",
                                  s.checkpoint.where(*f.table), part.ids[i], s.shape.experts - 1, e));
        }
        experts.push_back(static_cast<int32_t>(e));
      }
    }
  }
  return experts;
}

/// The experts that the router of a layer chooses for each token.
ExpertChoice route(const DecoderState& s, const FeedForwardWeights& f, std::span<const SequencePart> batch,
                   const float* x, int64_t m) {
  std::vector<float> logits(at(m * s.shape.experts)), correction;
  s.weights.multiply(f.router, x, m, logits.data());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      throw Error(fmt::format("{}: token {} of the batch: expected finite logits, found {}", f.router.name,
                              static_cast<int64_t>(i) / s.shape.experts, logits[i]));
    }
  }
  if (f.table)
    return cpu::weigh_experts(s.shape.router, logits, s.shape.experts, s.shape.top_k, look_up(s, f, batch));
  if (f.correction) correction = s.weights.read(f.correction);
  return cpu::choose_experts(s.shape.router, logits, s.shape.experts, s.shape.top_k, correction);
}

/// Adds the contributions of the chosen experts for their inputs `x` [m, L] to `out` [m, L].
void run_experts(const DecoderState& s, const FeedForwardWeights& f, const ExpertChoice& chosen,
                 const float* x, const HalfRun& run, std::vector<float>& out) {
  const int64_t width = s.shape.expert_inputs();
  std::vector<std::vector<Routed>> rows(f.experts.size());
  for (size_t i = 0; i < chosen.ids.size(); ++i) {
    rows[static_cast<size_t>(chosen.ids[i])].push_back(
        {static_cast<int64_t>(i) / s.shape.top_k, chosen.weights[i]});
  }
  std::vector<size_t> used;
  for (size_t e = 0; e < rows.size(); ++e) {
    if (!rows[e].empty()) used.push_back(e);
  }
  for (size_t first = 0; first < used.size(); first += kExpertsAtOnce) {
    const size_t count = std::min(kExpertsAtOnce, used.size() - first);
    std::vector<std::vector<float>> results(count);
    parallel_workers(count, [&] {
      return [&, worker = std::make_shared<ExpertWorker>(
                     ExpertWorker{s.weights.make_worker(), {}, {}, {}, {}})](size_t i) {
        const size_t e = used[first + i];
        results[i] = run_expert(s, f.experts[e], x, rows[e], f.first_expert + e, run, *worker);
      };
    });
    if (run.last == LayerStage::kDown) continue;
    for (size_t i = 0; i < count; ++i) {
      const float* from = results[i].data();
      if (run.watcher != nullptr)
        run.watcher->see_expert(static_cast<int64_t>(used[first + i]),
                                sum_of_norms(from, rows[used[first + i]], width));
      // The weight comes after down, as in transformers. DeepSeek multiplies down's input by it, which is
      // the same but for rounding, and would give down inputs that depend on the router.
      for (const Routed& row : rows[used[first + i]]) {
        float* to = out.data() + row.token * width;
        for (int64_t j = 0; j < width; ++j) to[j] += row.weight * from[j];
        from += width;
      }
    }
  }
}

/// Adds the output `out` [m, H] of the half to the residual stream.
void add_to_stream(const DecoderState& s, const FeedForwardWeights& f, std::vector<float>& out,
                   std::span<float> stream) {
  const auto m = static_cast<int64_t>(out.size()) / s.shape.hidden;
  if (f.norm_behind) cpu::rms_norm(out.data(), m, s.weights.read(f.norm_behind), s.shape.epsilon, out.data());
  for (size_t i = 0; i < out.size(); ++i) stream[i] += out[i];
}

/// Adds what the experts contribute to `out` [m, H] for the layer's normalized input `x` [m, H]. Experts may
/// have narrower inputs and outputs, with projections before and after them.
void add_experts(const DecoderState& s, const FeedForwardWeights& f, std::span<const SequencePart> batch,
                 const float* x, int64_t m, const HalfRun& run, std::vector<float>& out) {
  std::vector<float> in, added;
  if (f.latent_in) {
    in.resize(at(m * s.shape.latent));
    s.weights.multiply(f.latent_in, x, m, in.data());
    if (run.watcher != nullptr) run.watcher->see_input(f.expert_group, in, {});
    if (run.last == LayerStage::kExpertInput) return;
    added.assign(in.size(), 0.0f);
  }
  const ExpertChoice chosen = run.given != nullptr ? *run.given : route(s, f, batch, x, m);
  if (run.chosen != nullptr) *run.chosen = chosen;
  if (!f.latent_in) return run_experts(s, f, chosen, x, run, out);
  run_experts(s, f, chosen, in.data(), run, added);
  if (run.last == LayerStage::kDown) return;
  if (run.watcher != nullptr) run.watcher->see_input(f.latent_group, added, {});
  if (run.last) return;
  std::vector<float> wide(out.size());
  s.weights.multiply(f.latent_out, added.data(), m, wide.data());
  for (size_t i = 0; i < out.size(); ++i) out[i] += wide[i];
}

}  // namespace

void run_feed_forward(const DecoderState& s, int64_t layer, std::span<const SequencePart> batch,
                      HalfRows rows, const HalfRun& run) {
  const FeedForwardWeights& f = s.layers[at(layer)].feed_forward;
  const int64_t h = s.shape.hidden, m = static_cast<int64_t>(rows.in.size()) / h;
  if (run.late != nullptr) {
    std::vector<float> made(rows.in.size());
    s.weights.multiply(f.mlp.down, run.late, m, made.data());
    return add_to_stream(s, f, made, rows.out);
  }
  std::vector<float> x(rows.in.size());
  cpu::rms_norm(rows.in.data(), m, s.weights.read(f.norm), s.shape.epsilon, x.data());
  if (run.watcher != nullptr) {
    run.watcher->see_input(f.input_group, x, {});
    if (!f.experts.empty() && !f.latent_in) run.watcher->see_input(f.expert_group, x, {});
  }
  if (run.last == LayerStage::kFeedForwardInput) return;
  std::vector<float> out;
  if (f.mlp.down && run.last != LayerStage::kExpertInput) {
    out = run_mlp(s, f.mlp, x.data(), m, f.down_group, run);
  } else {
    out.assign(rows.in.size(), 0.0f);
  }
  if (f.shared_gate && !run.last) {
    std::vector<float> gates(at(m));
    s.weights.multiply(f.shared_gate, x.data(), m, gates.data());
    for (int64_t i = 0; i < m; ++i) {
      const float gate = 1.0f / (1.0f + std::exp(-gates[at(i)]));
      for (int64_t j = 0; j < h; ++j) out[at(i * h + j)] *= gate;
    }
  }
  if (!f.experts.empty()) add_experts(s, f, batch, x.data(), m, run, out);
  if (!run.last) add_to_stream(s, f, out, rows.out);
}

}  // namespace twofour
