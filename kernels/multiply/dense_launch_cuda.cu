#include <algorithm>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "kernels/device/check.h"
#include "kernels/device/launch.cuh"
#include "kernels/multiply/dense_single.cuh"

namespace twofour::cuda {
namespace {

constexpr const char* kWhere = "dense_multiply";
constexpr int kPrepareThreads = 512;
/// The largest product of the number of rows of x and the number of warps that share K. Each warp has its own
/// steps of x in shared memory.
constexpr int kMostSteps = 32;
/// The number of turns that are enough work for a block, and the wanted number of blocks per multiprocessor.
constexpr int kTurnsOfBlock = 8, kBlocksWanted = 6;
/// The time that a block takes to start, in turns.
constexpr int kTurnsToStart = 3;
/// The smallest number of turns of a warp for which K is shared further. Below it, the reduction would cost
/// more than further warps save.
constexpr int kTurnsOfWarp = 4;

/// Converts a row from NVFP4 to halves, exactly, and writes it as units.
__device__ void prepare_nvfp4(const PrepareDenseArgs& a, int64_t row, uint4* to) {
  for (int u = static_cast<int>(threadIdx.x); u < a.k / 8; u += kPrepareThreads) {
    const float scale = e4m3_to_float(a.nvfp4.scales[row * (a.k / kGroup) + u / 2]);
    const uint8_t* codes = a.nvfp4.codes + row * (a.k / 2) + u * 4;
    const auto value = [&](int i) { return e2m1_to_float(codes[i / 2] >> 4 * (i % 2) & 15u) * scale; };
    uint32_t words[4];
    for (int i = 0; i < 4; ++i) words[i] = half2_of(value(i), value(i + 4));
    to[unit_place(u)] = {words[0], words[1], words[2], words[3]};
  }
  if (threadIdx.x == 0) a.to.factors[row] = *a.nvfp4.global_scale * 0x1p14f;
}

/// Block 0 sorts rows if requested. Each other block prepares one row.
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_dense_kernel(const __grid_constant__ PrepareDenseArgs a) {
  extern __shared__ int counts[];  // [E] counts, later the position of the next row of each expert
  release_successor();
  if (a.route && blockIdx.x == 0) return sort_rows<kPrepareThreads>(a.rows, *a.route, a.sorted, counts);
  const int64_t row = blockIdx.x - (a.route ? 1 : 0), first = row * a.k;
  if (a.rows_are_x && local_expert(a.rows, static_cast<int>(row)) < 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  uint4* to = a.to.units + row * dense_steps(a.k) * 32;
  if (a.nvfp4.codes) return prepare_nvfp4(a, row, to);
  if (!a.to.factors) {
    for (int u = thread; u < a.k / 8; u += kPrepareThreads) {
      to[unit_place(u)] =
          permuted_unit(reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(a.x) + first + u * 8));
    }
    return;
  }
  uint32_t largest = 0;
  for (int i = thread * 2; i < a.k; i += kPrepareThreads * 2) {
    const float2 x = load_pair(a.x, a.type, first + i);
    largest = max(largest, max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y))));
  }
  const auto [scale, factor] = half_scale(block_largest<kPrepareThreads>(largest));
  for (int u = thread; u < a.k / 8; u += kPrepareThreads) {
    float x[8];
    load_eight(a.x, a.type, first + u * 8, false, x);
    for (float& value : x) value *= scale;
    to[unit_place(u)] = {half2_of(x[0], x[4]), half2_of(x[1], x[5]), half2_of(x[2], x[6]),
                         half2_of(x[3], x[7])};
  }
  if (thread == 0) a.to.factors[row] = factor;
}

template <class Weights, DenseAccess kAccess>
auto kernel_for(const DenseArgs& a) {
  if (!a.route) return dense_single_kernel<Weights, kAccess, false>;
  if constexpr (kAccess == DenseAccess::bytes) {
    return dense_kernel<Weights, 1, kAccess>;
  } else {
    return a.tile_m <= 8    ? dense_kernel<Weights, 1, kAccess>
           : a.tile_m <= 16 ? dense_kernel<Weights, 2, kAccess>
                            : dense_kernel<Weights, 4, kAccess>;
  }
}

template <class Weights>
auto kernel_for(const DenseArgs& a) {
  return !a.aligned ? kernel_for<Weights, DenseAccess::bytes>(a)
         : a.g8     ? kernel_for<Weights, DenseAccess::g8>(a)
                    : kernel_for<Weights, DenseAccess::rows>(a);
}

/// The number of warps that share K if rows are multiplied one by one. It minimizes the turns of the
/// multiprocessor with the most blocks. More warps share K as long as some multiprocessor has no block.
int single_warps_k(int64_t tiles, int64_t steps, int64_t slots) {
  const int64_t all = multiprocessors();
  int best = 1;
  int64_t least = 0;
  for (int warps_k = 1; warps_k <= kDenseWarps && warps_k <= steps; warps_k *= 2) {
    const int64_t warps_n = kDenseWarps / warps_k, blocks = (tiles + warps_n - 1) / warps_n * slots;
    const int64_t cost = (blocks + all - 1) / all * ((steps + warps_k - 1) / warps_k + kTurnsToStart);
    if (least == 0 || cost < least) best = warps_k, least = cost;
    if (blocks < all) least = 0;
  }
  return best;
}

/// The number of warps that share K if experts have several rows. It is larger if there are few experts.
int routed_warps_k(const DenseArgs& a, int slots) {
  const int64_t wanted = int64_t{multiprocessors()} * 24;
  int warps_k = 1;
  while (warps_k < 8 && 2 * warps_k * kTurnsOfWarp <= a.steps && 2 * warps_k * a.tile_m <= kMostSteps &&
         int64_t{a.tiles} * slots * warps_k < wanted)
    warps_k *= 2;
  return warps_k;
}

/// The number of groups of tiles that a block computes. It is more than one if the block would end soon and
/// enough blocks remain.
int groups_of(const DenseArgs& a, int slots) {
  const int warps_n = kDenseWarps / a.warps_k;
  int groups = 1;
  while (2 * groups * a.steps <= kTurnsOfBlock * a.warps_k &&
         int64_t{a.tiles} * slots / (2 * groups * warps_n) >= int64_t{multiprocessors()} * kBlocksWanted)
    groups *= 2;
  return groups;
}

/// Starts a kernel with a chosen tiling for `slots` rows, tokens or experts. Each block has `shared` bytes of
/// shared memory.
void launch_cut(void (*kernel)(DenseArgs), const DenseArgs& a, int slots, int shared, bool overlap,
                Stream stream) {
  expect(shared <= shared_memory_limit(), kWhere, "a cut that fits shared memory",
         std::to_string(a.tile_m) + " rows of " + std::to_string(a.k) + ", " + std::to_string(a.warps_k) +
             " warps along K");
  const int tiles = kDenseWarps / a.warps_k * a.groups;
  launch(kWhere, stream,
         {dim3(static_cast<unsigned>((a.tiles + tiles - 1) / tiles), static_cast<unsigned>(slots)),
          kDenseThreads, static_cast<size_t>(shared), 1, overlap},
         kernel, a);
}

}  // namespace

void describe_dense(const DenseWeights& w, const char* where, DenseArgs& a) {
  expect(
      w.e > 0 && w.n > 0 && w.k > 0 && w.k % kGroup == 0 && w.e < 65536 && w.n < (1 << 22) && w.k < (1 << 20),
      where, "experts with K a multiple of 16", std::to_string(w.n) + " x " + std::to_string(w.k));
  expect(w.codes && w.scales && w.global_scale, where, "codes and scales", "nullptr");
  expect(w.layout == DenseLayout::rows || !w.gated || w.n % 16 == 0, where,
         "rows of gate and up in multiples of 8", std::to_string(w.n));
  a.codes = w.codes, a.scales = w.scales, a.global_scale = w.global_scale;
  a.e = static_cast<int32_t>(w.e), a.n = static_cast<int32_t>(w.n), a.k = static_cast<int32_t>(w.k);
  a.steps = static_cast<int32_t>(dense_steps(w.k));
  a.g8 = w.layout == DenseLayout::g8, a.gated = w.gated;
  a.aligned = w.k % 64 == 0 && w.n % kDenseTileRows == 0 &&
              (reinterpret_cast<uintptr_t>(w.codes) | reinterpret_cast<uintptr_t>(w.scales)) % 16 == 0;
  const auto scale_at = [&](int e, int row, int group) {
    return dense_scale_at(a, e, row, group) - dense_scale_at(a, 0, 0, 0);
  };
  a.code_expert = w.n * (w.k / 2), a.scale_expert = scale_at(1, 0, 0);
  a.scale_step = scale_at(0, 0, kDenseStepK / kGroup), a.scale_rows_128 = scale_at(0, 128, 0);
  a.tiles = dense_tiles(a.n, a.g8);
}

bool fits_dense_single(const DenseArgs& a) { return single_shared(a.steps) <= shared_memory_limit(); }

void launch_dense(DenseArgs a, int warps_k, Stream stream) {
  a.route_from_predecessor = a.route_from_predecessor && a.route;
  const int slots = a.route ? std::min(a.rows.rows, a.e) : a.rows.rows;
  // Use the mean number of rows of an expert as the number of rows at a time.
  a.tile_m = a.route ? std::min(tile_of_mean(a.rows.rows / slots), a.rows.rows) : 1;
  if (!a.aligned) a.tile_m = std::min(a.tile_m, 8);
  a.warps_k = warps_k   ? warps_k
              : a.route ? routed_warps_k(a, slots)
                        : single_warps_k(a.tiles, a.steps, slots);
  a.groups = a.route || a.warps_k == 1 ? groups_of(a, slots) : 1;
  launch_cut(a.x.factors ? kernel_for<HalfWeights>(a) : kernel_for<Bf16Weights>(a), a, slots,
             a.route ? dense_shared(a.tile_m, a.warps_k) : single_shared(a.steps), !a.raw_x, stream);
}

bool fits_dense_tokens(const DenseArgs& a, int64_t topk) {
  return a.aligned && a.g8 && !a.gated && topk <= 32 && kTokensShared <= shared_memory_limit();
}

void launch_dense_tokens(DenseArgs a, Stream stream) {
  const int tokens = a.rows.rows / a.segments;
  check(fits_dense_tokens(a, a.segments) && !a.route && !a.x.factors, "tokens of BF16 rows");
  a.warps_k = single_warps_k(a.tiles, int64_t{a.segments} * a.steps, tokens), a.groups = 1;
  launch_cut(dense_single_kernel<Bf16Weights, DenseAccess::g8, true>, a, tokens, kTokensShared, true, stream);
}

void launch_prepare_dense(const PrepareDenseArgs& a, Stream stream) {
  check(a.to.factors || (a.type == Float::bf16 && !a.nvfp4.codes), "factors for halves");
  launch("prepare rows", stream,
         {dim3(static_cast<unsigned>(a.rows_x + (a.route ? 1 : 0))), kPrepareThreads,
          a.route ? static_cast<size_t>(a.rows.e) * 4 : 0},
         prepare_dense_kernel, a);
}

}  // namespace twofour::cuda
