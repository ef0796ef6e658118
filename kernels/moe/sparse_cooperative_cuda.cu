#include <algorithm>
#include <bit>
#include <map>
#include <mutex>

#include "formats/atom.h"
#include "kernels/device/launch.cuh"
#include "kernels/moe/sparse_cooperative.cuh"
#include "kernels/multiply/device_layouts.h"

namespace twofour::cuda {
namespace {

constexpr const char* kWhere = "sparse_moe, one launch";
/// The shared memory of a block on the device that has the most.
constexpr int kMostShared = 227 << 10;

struct Cut {
  int warps, parts, clusters, units, job_steps, stages, bytes;
  uint16_t first_unit[kMostClusters + 1];
};

/// Gives every cluster the same number of steps. Clusters with one more tile have fewer units. A block has
/// sixteen warps. Up to four share the K of a unit, as long as each has a step.
Cut cut(int64_t h, int64_t i, int64_t topk, int clusters, const SparsePlan& plan) {
  Cut c{};
  const int tiles = static_cast<int>(h / kWarpColumns), k_steps = static_cast<int>(h / kStepK);
  const auto steps_a_block = static_cast<unsigned>(std::max(k_steps / kClusterBlocks, 1));
  c.parts = plan.warps_k ? plan.warps_k : static_cast<int>(std::min(std::bit_floor(steps_a_block), 4u));
  c.warps = c.parts * (plan.warps_n ? plan.warps_n : 16 / c.parts);
  c.clusters = std::min(clusters, tiles);
  c.units = static_cast<int>(topk * (i / kStepK));
  c.job_steps = ceil_div(k_steps, kClusterBlocks * c.parts);
  const int unit_steps = c.parts * c.job_steps, tile_steps = ceil_div(c.units, kClusterBlocks);
  int most = 0, most_units = 0;
  for (int cluster = 0, before = 0; cluster < c.clusters; ++cluster) {
    const int own_tiles = (tiles - cluster - 1) / c.clusters + 1;
    before += own_tiles;
    const int steps = (c.units * unit_steps + tiles * tile_steps) * (cluster + 1) / c.clusters;
    const int first = c.first_unit[cluster];
    const int last = cluster + 1 == c.clusters
                         ? c.units
                         : std::clamp((steps - before * tile_steps) / unit_steps, first, c.units);
    c.first_unit[cluster + 1] = static_cast<uint16_t>(last);
    most = std::max(most, (last - first) * unit_steps + own_tiles * tile_steps);
    most_units = std::max(most_units, last - first);
  }
  // The head comes first, then the sums of the first product, then the sums of the second.
  c.stages = kCooperativeHead +
             (ceil_div(most_units, kClusterBlocks) * kClusterBlocks + ceil_div(tiles, c.clusters)) * kItem;
  c.bytes = c.stages + most * kStageBytes;
  return c;
}

int64_t mailbox_bytes(int64_t h, int64_t i, int64_t topk) {
  const bool fits = h % kWarpColumns == 0 && h <= 4096 && i % kStepK == 0 && i <= 4096 && topk <= 32 &&
                    cut(h, i, topk, kMostClusters, {}).bytes <= kMostShared;
  return fits ? h / kWarpColumns * topk * (i / kStepK) * kMailboxWords * 16 : 0;
}

/// The number of clusters that the device runs at once, with one block per multiprocessor. The driver is
/// asked only once.
int clusters_at_once() {
  static std::mutex mutex;
  static std::map<int, int> known;
  int device = 0;
  check_cuda(cudaGetDevice(&device), kWhere);
  const std::lock_guard lock(mutex);
  if (const auto at = known.find(device); at != known.end()) return at->second;
  int count = 0;
  if (device_attribute(cudaDevAttrCooperativeLaunch) != 0) {
    const int bytes = shared_memory_limit();
    check_cuda(cudaFuncSetAttribute(cooperative_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               kWhere);
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {kClusterBlocks, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = {kClusterBlocks, 1, 1};
    config.blockDim = {kCooperativeThreads, 1, 1};
    config.dynamicSmemBytes = static_cast<size_t>(bytes);
    config.attrs = &cluster, config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&count, cooperative_kernel, &config) != cudaSuccess) {
      count = 0;  // this device supports no such cluster
      (void)cudaGetLastError();
    }
  }
  known.emplace(device, count);
  return count;
}

void describe(const SparseArgs& from, CooperativeWeights& to) {
  const auto narrow = [](int64_t bytes) { return static_cast<uint32_t>(bytes); };
  to.comp = from.comp, to.meta = from.meta, to.scale = from.scale;
  to.comp_expert = narrow(from.comp_expert), to.meta_expert = narrow(from.meta_expert);
  to.scale_expert = narrow(from.scale_expert);
  to.comp_group = narrow(from.comp_group), to.meta_group = narrow(from.meta_group);
  to.scale_group = narrow(from.scale_group), to.meta_odd = narrow(from.meta_odd);
  for (int quad = 0; quad < 4; ++quad) to.comp_quad[quad] = narrow(from.comp_quad[quad]);
  to.global_scale = from.global_scale, to.row_weight = from.row_weight;
}

}  // namespace

int64_t cooperative_mailbox_bytes(const SparseExperts& w13, const SparseExperts& w2, int64_t topk) {
  return w13.n == 2 * w2.k ? mailbox_bytes(w2.n, w2.k, topk) : 0;
}

bool fits_cooperative(const SparseArgs& up, const SparseArgs& down, const SparsePlan& plan) {
  if (!up.gated || !up.aligned || !down.aligned || mailbox_bytes(down.n, down.k, down.segments) == 0)
    return false;
  const int clusters = std::min(clusters_at_once(), kMostClusters);
  if (clusters == 0) return false;
  const Cut c = cut(down.n, down.k, down.segments, clusters, plan);
  return std::has_single_bit(static_cast<unsigned>(c.parts)) && c.warps * 32 <= kCooperativeThreads &&
         c.bytes <= shared_memory_limit();
}

bool launch_cooperative(const SparseArgs& up, const SparseArgs& down, SparseLayout layout, void* mailbox,
                        const SparsePlan& plan, Stream stream) {
  // CUDA refuses a launch with too few multiprocessors. It does not refuse a captured launch, whose clusters
  // would wait for each other forever.
  if (multiprocessors(stream) < multiprocessors()) return false;
  const int clusters = std::min(clusters_at_once(), kMostClusters);
  const Cut c = cut(down.n, down.k, down.segments, clusters, plan);
  CooperativeArgs a{};
  a.rows = down.rows;
  a.x = up.raw, a.type = up.raw_type, a.limit = up.limit;
  for (SparseArgs product : {up, down}) {
    product.cluster = product.warps_k = 1;
    with_sparse_layout(layout, [&]<class L>() { measure_strides<L>(product); });
    describe(product, product.gated ? a.up : a.down);
  }
  a.mailbox = static_cast<uint4*>(mailbox), a.out = down.out;
  a.strips = down.k / kStepK, a.up_steps = up.k / kStepK;
  a.strip_multiplier =
      ((uint64_t{1} << 36) + static_cast<uint64_t>(a.strips) - 1) / static_cast<uint64_t>(a.strips);
  a.intermediate = down.k, a.tiles = down.n / kWarpColumns;
  a.parts_log2 = std::countr_zero(static_cast<unsigned>(c.parts)), a.job_steps = c.job_steps;
  a.stages = c.stages;
  std::copy_n(c.first_unit, kMostClusters + 1, a.first_unit);
  const dim3 grid(kClusterBlocks, static_cast<unsigned>(c.clusters));
  const Launch how{grid, 32 * c.warps, static_cast<size_t>(c.bytes), kClusterBlocks, true, true};
  if (start(stream, how, cooperative_kernel, a) == cudaSuccess) return true;
  (void)cudaGetLastError();
  return false;
}

}  // namespace twofour::cuda
