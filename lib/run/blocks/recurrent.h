#pragma once
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/device/check.h"
#include "lib/run/blocks/state.h"

namespace twofour {

/// Half a layer that reads a recurrent state of each sequence: linear attention or Mamba-2. `Block` projects
/// the normed rows, reads the state token after token, and gates what it read.
template <class Block, class Shape, class Weights>
void run_recurrent(const DecoderState& s, int64_t layer, const Shape& shape, const Weights& w,
                   std::span<const SequencePart> batch, HalfRows rows, const HalfRun& run) {
  const auto m = static_cast<int64_t>(rows.in.size()) / s.shape.hidden;
  std::vector<float> x(rows.in.size());
  cpu::rms_norm(rows.in.data(), m, s.weights.read(s.layers[at(layer)].attention.norm), s.shape.epsilon,
                x.data());
  if (run.watcher != nullptr) run.watcher->see_input(w.input_group, x, {});
  if (run.last && *run.last < LayerStage::kAttentionOutput) return;

  const Block block(s, shape, w, m);
  const auto inputs = block.project(x);
  std::vector<float> read(at(m * shape.values()));
  int64_t row = 0;
  for (const SequencePart& part : batch) {
    LayerCache own;
    LayerCache& cache = part.cache != nullptr ? *part.cache : own;
    check(part.begin == 0 || at(shape.recurrent()) == cache.recurrent.size(),
          "the state of the tokens before");
    if (part.begin == 0) {
      cache.window.assign(at(shape.window()), 0.0f);
      cache.recurrent.assign(at(shape.recurrent()), 0.0f);
    }
    block.run(inputs, row, part.count, cache, read.data() + row * shape.values());
    row += part.count;
  }
  const std::vector<float> gated = block.gate(read, inputs);
  if (run.watcher != nullptr) run.watcher->see_input(w.output_group, gated, {});
  if (run.last == LayerStage::kAttentionOutput) return;
  s.weights.multiply(w.out, gated.data(), m, x.data());
  for (size_t i = 0; i < x.size(); ++i) rows.out[i] += x[i];
}

}  // namespace twofour
