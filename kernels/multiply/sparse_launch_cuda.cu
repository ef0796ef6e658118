#include <algorithm>
#include <bit>

#include "kernels/device/check.h"
#include "kernels/device/launch.cuh"
#include "kernels/multiply/device_layouts.h"
#include "kernels/multiply/sparse_kernel.cuh"

namespace twofour::cuda {
namespace {

constexpr const char* kWhere = "sparse_multiply";

int power_of_two_up_to(int x) {
  int p = 1;
  while (2 * p <= x) p *= 2;
  return p;
}

/// The number of blocks along z.
int slots_of(const SparseArgs& a) {
  return a.epilogue == Epilogue::tokens ? a.rows.rows / a.segments
         : a.route                      ? std::min(a.rows.rows, a.e)
                                        : a.rows.rows;
}

/// Splits K until a warp has few steps, which balances blocks. The remaining warps of a block get further
/// columns.
SparsePlan choose(const SparseArgs& a, int tiles, SparsePlan plan) {
  const int k_steps = (a.k + kStepK - 1) / kStepK * a.segments;
  const int slots = slots_of(a);
  const int64_t warps_wanted = int64_t{multiprocessors()} * 16;
  if (plan.tile_m == 0) {
    const int rows_a_slot = a.rows.rows / slots;
    // Use four rows if rows hardly share experts. Four blocks of four warps then fit a multiprocessor with
    // room to spare.
    plan.tile_m = a.rows.rows <= a.e ? 4 : tile_of_mean(rows_a_slot);
  }
  const int halves = a.gated ? 2 : 1;
  // If rows are distinct, adjacent warps share a converted row. K is split over a cluster until a
  // multiprocessor has eleven warps (fifteen if K is short and warps end soon). All these warps run at once.
  const bool is_short = k_steps <= 32;
  const int64_t warps_at_once = int64_t{multiprocessors()} * (is_short ? 15 : 11);
  const auto split =
      static_cast<int>(std::max<int64_t>(warps_at_once / (int64_t{tiles} * halves * slots), 1));
  if (a.distinct && a.epilogue != Epilogue::tokens && k_steps <= 32 * split) {
    const bool few = split > 8;
    if (plan.warps_k == 0) plan.warps_k = few ? std::min(a.gated ? 2 : 8, power_of_two_up_to(k_steps)) : 1;
    if (plan.cluster == 0) {
      plan.cluster = few ? (a.gated ? 4 : 1) : split;
      plan.cluster = std::clamp(plan.cluster, 1, std::max(1, k_steps / plan.warps_k / 2));
    }
    if (plan.warps_n == 0)
      plan.warps_n = std::min((few ? 1 : is_short ? 4 / halves : 2 / halves), tiles) * halves;
    return plan;
  }
  // Use eight steps per warp, fewer if there is too little work, and more if there is plenty. Blocks of gate
  // and up then need no cluster.
  const int64_t most = int64_t{tiles} * halves * slots * k_steps / warps_wanted;
  const bool little = most < 8, plenty = a.gated && most >= 16;
  const int steps = little ? std::max(static_cast<int>(most), 2) : plenty ? 16 : 8;
  const int warps = std::max(1, k_steps / steps);
  if (plan.warps_k == 0) {
    const int at_most = a.epilogue == Epilogue::tokens ? 8 : little ? 4 : 4 / halves;
    plan.warps_k = std::min(at_most, power_of_two_up_to(warps));
  }
  if (plan.cluster == 0) {
    plan.cluster = std::clamp(power_of_two_up_to(warps / plan.warps_k), 1, 4);
    // Let all blocks run at once, with two blocks of eight warps per multiprocessor.
    if (a.epilogue == Epilogue::tokens) {
      const int64_t at_once = multiprocessors() * 16 / (int64_t{plan.warps_k} * tiles * slots);
      plan.cluster = std::clamp(static_cast<int>(std::min<int64_t>(warps / plan.warps_k, at_once)), 1, 8);
    }
  }
  if (plan.warps_n == 0) plan.warps_n = std::min(std::max(1, 4 / plan.warps_k / halves), tiles) * halves;
  return plan;
}

/// Sets the fields that depend on the number of warps of a block that share K.
void cut(SparseArgs& a, int warps_k) {
  a.warps_k = warps_k;
  a.warps_k_log2 = std::countr_zero(static_cast<unsigned>(warps_k));
  a.least_steps = a.k_steps / (a.cluster * warps_k), a.one_more = a.k_steps % (a.cluster * warps_k);
  a.shared = plan_shared(a);
}

template <class Layout>
auto kernel_for(const SparseArgs& a) {
  if (a.epilogue == Epilogue::tokens) {
    return a.aligned ? sparse_kernel<Layout, 1, true, RowSource::tokens>
                     : sparse_kernel<Layout, 1, false, RowSource::tokens>;
  }
  if (a.raw) return sparse_kernel<Layout, 1, true, RowSource::raw>;
  return !a.aligned                 ? sparse_kernel<Layout, 1, false, RowSource::prepared>
         : row_tiles(a.tile_m) == 1 ? sparse_kernel<Layout, 1, true, RowSource::prepared>
         : row_tiles(a.tile_m) == 2 ? sparse_kernel<Layout, 2, true, RowSource::prepared>
                                    : sparse_kernel<Layout, 4, true, RowSource::prepared>;
}

}  // namespace

void describe_weights(const SparseExperts& w, bool gated, const char* where, SparseArgs& a) {
  std::string shape = std::to_string(w.e);
  shape.append(" experts of ").append(std::to_string(w.n)).append(" x ").append(std::to_string(w.k));
  expect(w.e > 0 && w.n > 0 && w.k > 0 && w.k % kGroup == 0 && (!gated || w.n % 2 == 0), where,
         "experts with K a multiple of 16", shape);
  expect(w.e < (1 << 20) && w.n < (1 << 24) && w.k < (1 << 24), where, "at most 2^24 rows and columns",
         shape);
  const int parts = with_sparse_layout(w.layout, [&]<class L>() { return L::part_count; });
  uintptr_t low_bits = 0;
  for (int p = 0; p < parts; ++p) {
    expect(w.parts[p] != nullptr, where, "a pointer to every part", "nullptr");
    low_bits |= reinterpret_cast<uintptr_t>(w.parts[p]);
  }
  expect(w.global_scale != nullptr, where, "global scales", "nullptr");
  std::copy_n(w.parts, 3, a.parts);
  a.global_scale = w.global_scale;
  a.e = static_cast<int32_t>(w.e), a.n = static_cast<int32_t>(w.n), a.k = static_cast<int32_t>(w.k);
  a.gated = gated;
  a.aligned = low_bits % 16 == 0 && w.k % kStepK == 0 && (gated ? w.n / 2 : w.n) % 16 == 0;
}

bool takes_raw(const SparseArgs& a, const void* x, Float type) {
  return a.aligned && a.k <= kMaxRawK && type != Float::f32 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
}

void launch_sparse(SparseArgs a, SparseLayout layout, SparsePlan plan, bool overlap, Stream stream) {
  if (a.rows.rows == 0) return;
  const int tiles = ((a.gated ? a.n / 2 : a.n) + kWarpColumns - 1) / kWarpColumns;
  if (a.epilogue != Epilogue::tokens) a.segments = 1;
  a.route_from_predecessor = a.route_from_predecessor && a.route;
  plan = choose(a, tiles, plan);
  // Multiply at most as many rows of x at a time as an expert can have.
  a.tile_m = std::min({a.route ? a.rows.rows : 1, a.aligned ? plan.tile_m : 8, 32});
  expect(a.tile_m > 0, kWhere, "1 to 32 rows at a time", std::to_string(plan.tile_m));
  expect(plan.warps_k >= 1 && std::has_single_bit(static_cast<unsigned>(plan.warps_k)) && plan.warps_n >= 1 &&
             plan.warps_k * plan.warps_n <= kMaxThreads / 32,
         kWhere, "1 to 8 warps a block, a power of two along K",
         std::to_string(plan.warps_k) + " x " + std::to_string(plan.warps_n));
  expect(!a.gated || plan.warps_n % 2 == 0, kWhere, "gate and up in a block", std::to_string(plan.warps_n));
  expect(plan.cluster >= 1 && plan.cluster <= 8, kWhere, "clusters of 1 to 8", std::to_string(plan.cluster));
  a.warps_n = plan.warps_n, a.cluster = plan.cluster;
  a.k_steps = (a.k + kStepK - 1) / kStepK;
  cut(a, plan.warps_k);
  // Rows and warps take space in shared memory.
  const int room = shared_memory_limit();
  while (a.shared.bytes > room && (a.tile_m > 4 || a.warps_k > 1)) {
    const bool rows_first = a.tile_m > 4;
    if (rows_first) a.tile_m /= 2;
    cut(a, rows_first ? a.warps_k : a.warps_k / 2);
  }
  const auto per_x = static_cast<uint64_t>(a.rows_per_x);
  a.x_multiplier = ((uint64_t{1} << 36) + per_x - 1) / per_x;
  a.wide_out = reinterpret_cast<uintptr_t>(a.out) % 16 == 0;
  check(a.distinct || a.route || a.epilogue == Epilogue::tokens, "rows sorted by expert");
  with_sparse_layout(layout, [&]<class L>() { measure_strides<L>(a); });
  const int parts = parts_of(a);
  const Launch how{
      dim3(static_cast<unsigned>(plan.cluster), static_cast<unsigned>((tiles + parts - 1) / parts),
           static_cast<unsigned>(slots_of(a))),
      32 * a.warps_k * a.warps_n, static_cast<size_t>(a.shared.bytes), plan.cluster, overlap};
  launch(kWhere, stream, how, with_sparse_layout(layout, [&]<class L>() { return kernel_for<L>(a); }), a);
}

}  // namespace twofour::cuda
