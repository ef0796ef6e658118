#include <algorithm>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/delta_rule.h"
#include "kernels/attention/state_space.h"
#include "kernels/device/check.h"
#include "lib/run/blocks/state.h"

namespace twofour {
namespace {

/// The projection of the tokens of a batch, by its parts.
struct StateSpaceInputs {
  std::vector<float> gates;  ///< [tokens, values] gates of the outputs
  std::vector<float> mixed;  ///< [tokens, channels] x of all heads, and B and C of all groups
  std::vector<float> steps;  ///< [tokens, heads] time steps
};

class StateSpaceBlock {
 public:
  StateSpaceBlock(const DecoderState& state, int64_t layer, int64_t tokens)
      : s_(state), d_(state.shape.state_space), w_(state.layers[at(layer)].state_space), m_(tokens) {}

  StateSpaceInputs project(const std::vector<float>& x) const {
    std::vector<float> all(at(m_ * d_.projected()));
    s_.weights.multiply(w_.in, x.data(), m_, all.data());
    StateSpaceInputs in;
    in.gates.resize(at(m_ * d_.values())), in.mixed.resize(at(m_ * d_.channels()));
    in.steps.resize(at(m_ * d_.heads));
    for (int64_t i = 0; i < m_; ++i) {
      const float *gates = all.data() + i * d_.projected(), *mixed = gates + d_.values(),
                  *steps = mixed + d_.channels();
      std::copy(gates, mixed, in.gates.data() + i * d_.values());
      std::copy(mixed, steps, in.mixed.data() + i * d_.channels());
      std::copy_n(steps, d_.heads, in.steps.data() + i * d_.heads);
    }
    cpu::time_steps(in.steps.data(), m_, s_.weights.read(w_.dt_bias), static_cast<float>(d_.least_step));
    return in;
  }

  /// Reads the vectors of the layer, once for all sequences.
  void read_vectors() {
    convolution_ = s_.weights.read(w_.convolution);
    if (w_.convolution_bias) convolution_bias_ = s_.weights.read(w_.convolution_bias);
    a_log_ = s_.weights.read(w_.a_log), skip_ = s_.weights.read(w_.d);
  }

  /// Computes what the tokens of one sequence read from its state, [count, values]. `cache` has the state
  /// before them, and receives the state behind them.
  void run(const StateSpaceInputs& in, int64_t row, int64_t count, LayerCache& cache, float* out) const {
    const int64_t channels = d_.channels();
    std::vector<float> mixed(at(count * channels));
    cpu::convolve({.m = count,
                   .channels = channels,
                   .kernel = d_.kernel,
                   .x = in.mixed.data() + row * channels,
                   .weight = convolution_.data(),
                   .window = cache.window.data(),
                   .bias = convolution_bias_.empty() ? nullptr : convolution_bias_.data()},
                  mixed.data());
    const float *b = mixed.data() + d_.values(), *c = b + d_.groups * d_.state_size;
    cpu::scan_states({.m = count,
                      .heads = d_.heads,
                      .groups = d_.groups,
                      .head_size = d_.head_size,
                      .state_size = d_.state_size,
                      .x = mixed.data(),
                      .b = b,
                      .c = c,
                      .stride = channels,
                      .steps = in.steps.data() + row * d_.heads,
                      .a_log = a_log_,
                      .d = skip_,
                      .state = cache.recurrent.data()},
                     out);
  }

  std::vector<float> gate_and_norm(const std::vector<float>& read, const std::vector<float>& gates) const {
    std::vector<float> out(read.size());
    cpu::gate_and_norm(read.data(), gates.data(), m_, d_.groups, s_.weights.read(w_.norm), s_.shape.epsilon,
                       out.data());
    return out;
  }

 private:
  const DecoderState& s_;
  const StateSpaceShape& d_;
  const StateSpaceWeights& w_;
  int64_t m_;
  std::vector<float> convolution_, convolution_bias_, a_log_, skip_;
};

}  // namespace

// Transformers clamps time steps from below in prompts but not in single tokens. Here all are clamped, so
// that a text says the same in any pieces.
void run_state_space(const DecoderState& s, int64_t layer, std::span<const SequencePart> batch, HalfRows rows,
                     const HalfRun& run) {
  const StateSpaceShape& d = s.shape.state_space;
  const LayerWeights& w = s.layers[at(layer)];
  const auto m = static_cast<int64_t>(rows.in.size()) / s.shape.hidden;
  std::vector<float> x(rows.in.size());
  cpu::rms_norm(rows.in.data(), m, s.weights.read(w.attention.norm), s.shape.epsilon, x.data());
  if (run.watcher != nullptr) run.watcher->see_input(w.state_space.input_group, x, {});
  if (run.last && *run.last < LayerStage::kAttentionOutput) return;

  StateSpaceBlock block(s, layer, m);
  const StateSpaceInputs in = block.project(x);
  block.read_vectors();
  std::vector<float> read(at(m * d.values()));
  int64_t row = 0;
  for (const SequencePart& part : batch) {
    LayerCache own;
    LayerCache& cache = part.cache != nullptr ? *part.cache : own;
    check(part.begin == 0 || at(d.recurrent()) == cache.recurrent.size(), "the state of the tokens before");
    if (part.begin == 0) {
      cache.window.assign(at(d.window()), 0.0f);
      cache.recurrent.assign(at(d.recurrent()), 0.0f);
    }
    block.run(in, row, part.count, cache, read.data() + row * d.values());
    row += part.count;
  }
  const std::vector<float> gated = block.gate_and_norm(read, in.gates);
  if (run.watcher != nullptr) run.watcher->see_input(w.state_space.output_group, gated, {});
  if (run.last == LayerStage::kAttentionOutput) return;
  s.weights.multiply(w.state_space.out, gated.data(), m, x.data());
  for (size_t i = 0; i < x.size(); ++i) rows.out[i] += x[i];
}

}  // namespace twofour
