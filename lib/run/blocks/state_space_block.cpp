#include <algorithm>
#include <vector>

#include "kernels/attention/delta_rule.h"
#include "kernels/attention/state_space.h"
#include "lib/run/blocks/recurrent.h"

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
  StateSpaceBlock(const DecoderState& state, const StateSpaceShape& shape, const StateSpaceWeights& weights,
                  int64_t tokens)
      : s_(state),
        d_(shape),
        w_(weights),
        m_(tokens),
        convolution_(state.weights.read(weights.convolution)),
        convolution_bias_(weights.convolution_bias ? state.weights.read(weights.convolution_bias)
                                                   : std::vector<float>()),
        a_log_(state.weights.read(weights.a_log)),
        skip_(state.weights.read(weights.d)) {}

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

  /// Computes what the tokens of one sequence read from its state, [count, values]. `cache` has the state
  /// before them, and receives the state after them.
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

  std::vector<float> gate(const std::vector<float>& read, const StateSpaceInputs& in) const {
    std::vector<float> out(read.size());
    cpu::gate_and_norm(read.data(), in.gates.data(), m_, d_.groups, s_.weights.read(w_.norm),
                       s_.shape.epsilon, out.data());
    return out;
  }

 private:
  const DecoderState& s_;
  const StateSpaceShape& d_;
  const StateSpaceWeights& w_;
  int64_t m_;
  const std::vector<float> convolution_, convolution_bias_, a_log_, skip_;  ///< read once for all sequences
};

}  // namespace

// Transformers clamps time steps from below in prompts but not in single tokens. Here all are clamped, so
// that a text gives the same numbers in any pieces.
void run_state_space(const DecoderState& s, int64_t layer, std::span<const SequencePart> batch, HalfRows rows,
                     const HalfRun& run) {
  run_recurrent<StateSpaceBlock>(s, layer, s.shape.state_space, s.layers[at(layer)].state_space, batch, rows,
                                 run);
}

}  // namespace twofour
