#include <algorithm>
#include <cstdint>

#include "formats/layouts/layout_ops.h"
#include "formats/layouts/layouts.h"
#include "kernels/staged_pack.h"
#include "lib/io/direct_io.h"
#include "lib/tiling.h"

namespace twofour {
namespace {

constexpr uint64_t kBaseMemory = 32u << 20;
constexpr uint64_t kMemoryPerTensor = 1024;
/// What the driver and a context take of the host.
constexpr uint64_t kCudaMemory = 160u << 20;
/// Codes of one strip: they should still be in the L2 cache when they are packed.
constexpr int64_t kStripBytes = 512 << 10;
/// Fewest rows of a strip: the packer writes runs as long as a strip has rows.
constexpr int64_t kMinStripRows = 256;
/// Steps along K fall on whole 64-group tiles of the packer.
constexpr int64_t kStepGrain = 1024;

/// A worker's buffers for one piece of an expert, without the strip that it reads.
uint64_t buffer_bytes(const Target& target, const std::string& layout, const Tiling& t, bool k_outer) {
  int64_t bytes = 0;
  with_layout(layout, [&]<class L>() {
    bytes = layout_bytes<L>({1, t.row_step, t.k_step, target.shape.gated});
  });
  // Codes and scales of all rows, as stored and turned.
  if (k_outer) bytes += 2 * t.row_step * (t.k_step / 2 + t.k_step / 16);
  return static_cast<uint64_t>(bytes);
}

/// Half of `step`, up to a multiple of `grain`.
int64_t halve(int64_t step, int64_t grain) { return (step / 2 + grain - 1) / grain * grain; }

}  // namespace

Tiling make_tiling(const Target& target, const std::string& layout, bool k_outer,
                   const MemoryLimits& limits) {
  const Shape s = target.shape;
  Tiling t{s.k, s.n, s.n, 0, 0};
  with_layout(layout, [&]<class L>() {
    constexpr bool along_k = L::outer == Axis::kK;
    int64_t& step = along_k ? t.k_step : t.row_step;
    constexpr int64_t grain = along_k ? kStepGrain : kOuterGrain;
    static_assert(grain % kOuterGrain == 0);
    while (step > grain && buffer_bytes(target, layout, t, k_outer) > limits.piece) step = halve(step, grain);
  });
  t.bytes = buffer_bytes(target, layout, t, k_outer);
  t.strip_rows = t.row_step;
  if (!k_outer) t.strip_rows = std::min(std::max(kMinStripRows, kStripBytes / (t.k_step / 2) / 64 * 64), s.n);
  t.stage = static_cast<uint64_t>(t.strip_rows * (t.k_step / 2 + t.k_step / 16));
  if (!k_outer) t.bytes += t.stage;
  return t;
}

uint64_t Plan::worker_bytes(Device device) const {
  uint64_t largest = std::max<uint64_t>(1u << 20, derive_bytes);
  for (const Tiling& t : tilings) {
    const uint64_t stages = device == Device::cuda ? (cuda::StagedPacker::kStages - 1) * t.stage : 0;
    largest = std::max(largest, t.bytes + stages);
  }
  return largest + reader_bytes + kDirectBuffer;
}

int Plan::workers(int jobs, Device device) const {
  const uint64_t all = limits.buffers - (device == Device::cuda ? std::min(limits.buffers, kCudaMemory) : 0);
  const uint64_t fit = std::max<uint64_t>(1, all / worker_bytes(device));
  return static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(std::max(jobs, 1)), fit));
}

uint64_t Plan::peak_memory(int jobs, Device device) const {
  size_t names = tensors.size();
  for (const Target& t : targets) names += 3 * t.sources.size();
  names += merged.size();
  return kBaseMemory + (device == Device::cuda ? kCudaMemory : 0) + kMemoryPerTensor * names +
         static_cast<uint64_t>(workers(jobs, device)) * (worker_bytes(device) + (2u << 20));
}

}  // namespace twofour
