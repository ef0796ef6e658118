#include "lib/run/device_blocks/device_run.h"

namespace twofour {

cuda::DeltaTokens DeviceRun::delta_tokens(const DeviceLayer& w) const {
  const DeltaShape& d = state_.shape.delta;
  const auto size = [](int64_t n) { return static_cast<int>(n); };
  cuda::DeltaTokens t;
  t.columns = {size(d.key_heads), size(d.value_heads), size(d.key_size), size(d.value_size), d.by_key_head};
  t.kernel = size(d.kernel);
  t.convolution = w.delta.convolution;
  t.a_log = w.delta.a_log, t.dt_bias = w.delta.dt_bias;
  t.norm = w.delta.norm;
  t.epsilon = static_cast<float>(state_.shape.epsilon);
  return t;
}

void DeviceRun::run_delta(int64_t layer, std::span<const DevicePart> parts, const Rows& rows,
                          const HalfRun& run) {
  const DeviceLayer& w = weights_.layer(layer);
  const DeltaWeights& groups = state_.layers[at(layer)].delta;
  const DeltaShape& d = state_.shape.delta;
  const int64_t h = state_.shape.hidden, m = rows.m;
  float* x = normed_.of<float>(m * h);
  cuda::rms_norm({rows.in, h, w.attention_norm, m, h, state_.shape.epsilon, x, h}, stream_.get());
  see(run, groups.input_group, x, m, h);
  if (run.last == LayerStage::kAttentionInput || run.last == LayerStage::kLatent) return;
  cuda::DeltaTokens tokens = delta_tokens(w);
  const int64_t width = tokens.columns.count();
  float* projected = heads_.of<float>(m * width);
  // The norm of a head magnifies rounding where its state is nearly empty.
  products_.set_rows(x, m, h, stream_.get(), 3);
  products_.multiply(w.delta.in, projected, width, stream_.get());

  float *mixed = both_.of<float>(m * d.channels()), *gates = gates_.of<float>(m * 2 * d.value_heads);
  float* out = mixed_.of<float>(m * d.values());
  // The states of sequences without a cache, one after the other
  float *window = keys_.of<float>(d.kernel * d.channels()), *recurrent = values_.of<float>(d.recurrent());
  int64_t row = 0;
  for (const DevicePart& part : parts) {
    const bool cached = part.recurrent != nullptr;
    tokens.m = part.count, tokens.begin = part.begin;
    tokens.x = projected + row * width;
    tokens.window = cached ? part.window : window;
    tokens.state = cached ? part.recurrent : recurrent;
    tokens.mixed = mixed + row * d.channels();
    tokens.gates = gates + row * 2 * d.value_heads;
    tokens.out = out + row * d.values();
    cuda::run_delta(tokens, stream_.get());
    row += part.count;
  }
  see(run, groups.output_group, out, m, d.values());
  if (run.last == LayerStage::kAttentionOutput) return;
  products_.set_rows(out, m, d.values(), stream_.get());
  products_.multiply(w.delta.out, rows.out, h, true, stream_.get());
}

}  // namespace twofour
