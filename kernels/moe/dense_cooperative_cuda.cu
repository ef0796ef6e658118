#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/moe/dense_cooperative.cuh"

namespace twofour::cuda {
namespace {

CooperativeDenseWeights describe(const DenseArgs& a) {
  return {a.codes,        a.scales,     a.global_scale,   a.row_weight, a.code_expert,
          a.scale_expert, a.scale_step, a.scale_rows_128, a.n,          a.k,
          a.steps,        a.tiles};
}

/// The number of blocks, at most one per multiprocessor. There are fewer if a block's second product would
/// exceed an even share of both products.
int blocks_of(const DenseArgs& up, const DenseArgs& down) {
  const int most = up.tiles * up.steps / down.steps + 1;
  return std::min(multiprocessors(), most);
}

/// The largest number of tiles of a block in each product.
struct MostTiles {
  int64_t up, down;
  MostTiles(const DenseArgs& a, const DenseArgs& b, int blocks) {
    const int64_t topk = a.rows.rows, all = topk * (int64_t{a.tiles} * a.steps + int64_t{b.tiles} * b.steps);
    down = (b.tiles + blocks - 1) / blocks;
    up = all / (int64_t{a.steps} * blocks) + 2;
  }
};

CooperativeDensePlan plan_shared(const DenseArgs& up, const DenseArgs& down, int blocks) {
  const int topk = up.rows.rows;
  const MostTiles tiles(up, down, blocks);
  CooperativeDensePlan plan{};
  plan.x = kTokenWarps * kTokenStages * kDenseStageBytes;
  plan.sums = plan.x + std::max(up.steps, down.steps * topk) * kDenseRowBytes;
  plan.bytes =
      plan.sums + static_cast<int32_t>((std::max(tiles.up, tiles.down) + kTokenWarps) * kDenseTileRows * 4);
  return plan;
}

/// True if each warp has a stage for each of its steps. This also holds if fewer experts are on this device.
bool fits_stages(const DenseArgs& up, const DenseArgs& down, int blocks) {
  const int64_t topk = up.rows.rows, down_tiles = down.tiles, down_steps = down.steps * topk;
  const int64_t all = topk * up.tiles * up.steps + down_tiles * down_steps;
  const auto steps_of_warp = [](int64_t steps) { return (steps + kTokenWarps - 1) / kTokenWarps; };
  const auto fits = [&](int64_t of_down) {  // tiles of a block
    const int64_t rest = all - of_down * down_steps * blocks, each = int64_t{up.steps} * blocks;
    const int64_t of_up = (rest + each - 1) / each;
    return steps_of_warp(of_up * up.steps) + steps_of_warp(of_down * down_steps) <= kTokenStages;
  };
  return all * blocks < (int64_t{1} << 31) && fits(down_tiles / blocks) &&
         (down_tiles % blocks == 0 || fits(down_tiles / blocks + 1));
}

}  // namespace

bool fits_cooperative(const DenseArgs& up, const DenseArgs& down) {
  if (!up.g8 || !down.g8 || !up.gated || !up.aligned || !down.aligned || up.rows.rows > 32 ||
      device_attribute(cudaDevAttrCooperativeLaunch) == 0)
    return false;
  const int blocks = blocks_of(up, down);
  return fits_stages(up, down, blocks) && plan_shared(up, down, blocks).bytes <= shared_memory_limit();
}

bool launch_cooperative(const DenseArgs& up, const DenseArgs& down, const void* hidden, Float type,
                        Stream stream) {
  // CUDA refuses a launch with too few multiprocessors. It does not refuse a captured launch, whose blocks
  // would wait for each other forever.
  if (multiprocessors(stream) < multiprocessors()) return false;
  const int blocks = blocks_of(up, down);
  CooperativeDenseArgs a{};
  a.rows = up.rows;
  a.x = hidden, a.type = type, a.limit = up.limit;
  a.up = describe(up), a.down = describe(down);
  a.active = reinterpret_cast<uint4*>(up.active);
  a.out = down.out;
  a.shared = plan_shared(up, down, blocks);
  const Launch how{dim3(static_cast<unsigned>(blocks)),
                   kTokenThreads,
                   static_cast<size_t>(a.shared.bytes),
                   1,
                   false,
                   true};
  const auto kernel =
      type == Float::bf16 ? cooperative_dense_kernel<Bf16Weights> : cooperative_dense_kernel<HalfWeights>;
  if (start(stream, how, kernel, a) == cudaSuccess) return true;
  (void)cudaGetLastError();
  return false;
}

}  // namespace twofour::cuda
