#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/moe/many_rows_moe.h"
#include "kernels/moe/sparse_cooperative.h"
#include "kernels/moe/sparse_moe.h"
#include "kernels/multiply/expert_rows.cuh"

namespace twofour::cuda {
namespace {

constexpr const char* kWhere = "sparse_moe";
/// The number of tokens that are computed at a time. It bounds the workspace.
constexpr int64_t kMaxTokens = 1024;
/// The number of experts per row from which rows are not sorted. Few experts are then shared. Reading these
/// again, mostly from the L2 cache, costs less than sorting.
constexpr int64_t kExpertsPerRow = 4;

/// The number of rows per expert from which the kernel for many rows is faster.
constexpr int64_t kManyRowsFrom = 5;

/// Computes out[m], the sum of the rows of a token in their order.
__global__ void __launch_bounds__(256) combine_kernel(const __grid_constant__ CombineArgs a) {
  __shared__ bool here[kMaxSegments];
  const int64_t m = blockIdx.y;
  for (int t = static_cast<int>(threadIdx.x); t < a.topk; t += static_cast<int>(blockDim.x))
    here[t] = local_expert(a.rows, static_cast<int>(m) * a.topk + t) >= 0;
  wait_for_predecessor();
  __syncthreads();
  const int h = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (h >= a.h) return;
  float sum = 0;
#pragma unroll 8
  for (int t = 0; t < a.topk; ++t)
    if (here[t]) sum += a.y[(m * a.topk + t) * a.h + h];
  store_float(a.out, a.type, m * a.h + h, sum);
}

/// Both products for tokens m0 to m0 + m - 1, before their launches are chosen.
struct Products {
  SparseArgs up{}, down{};
  Products(const SparseMoe& moe, const MoeTokens& in, int64_t m0, int64_t m) {
    const int64_t bytes = size_of(in.type);
    const auto e = static_cast<int32_t>(moe.w13.e), topk = static_cast<int32_t>(in.topk);
    const float* weights = in.topk_weights + m0 * topk;
    describe_weights(moe.w13, moe.w13.n == 2 * moe.w2.k, kWhere, up);
    describe_weights(moe.w2, false, kWhere, down);
    for (SparseArgs* product : {&up, &down}) {
      product->rows = {in.topk_ids + m0 * topk,
                       moe.expert_map,
                       static_cast<int32_t>(m) * topk,
                       moe.expert_map ? static_cast<int32_t>(moe.map_size) : e,
                       e,
                       in.error};
      product->limit = moe.limit;
      product->segments = topk;
    }
    up.rows_per_x = topk, down.rows_per_x = 1;
    (moe.weight_on_input ? up : down).row_weight = weights;
    up.raw = static_cast<const char*>(in.hidden) + m0 * moe.w2.n * bytes, up.raw_type = in.type;
    up.epilogue = Epilogue::activation;
    down.epilogue = Epilogue::tokens;
    down.out = static_cast<char*>(in.out) + m0 * moe.w2.n * bytes, down.out_type = in.type;
  }
};

LayerSizes sizes_of(const SparseMoe& moe, int64_t topk) {
  return {moe.w13.e, moe.w2.n, moe.w2.k, topk, moe.w13.n == 2 * moe.w2.k};
}

struct Workspace {
  int64_t route, sorted, x, x_factors, active, active_factors, y, bytes;
  Workspace(const SparseMoe& moe, int64_t m, int64_t topk) {
    const int64_t tokens = std::min(m, kMaxTokens), rows = tokens * topk;
    const int64_t x_steps = tokens * prepared_steps(moe.w13.k),
                  active_steps = rows * prepared_steps(moe.w2.k);
    route = 0;
    sorted = route + align_up(16 + std::min(rows, moe.w13.e) * 16);
    x = sorted + align_up(rows * 4);
    x_factors = x + align_up(x_steps * 128);
    active = x_factors + align_up(x_steps * 4);
    active_factors = active + align_up(active_steps * 128);
    y = active_factors + align_up(active_steps * 4);
    bytes = y + (m > 1 ? align_up(rows * moe.w2.n * 4) : 0);
    // A single launch needs only the mailbox, which several launches do not need.
    bytes = std::max(bytes, cooperative_mailbox_bytes(moe.w13, moe.w2, topk));
    const LayerSizes sizes = sizes_of(moe, topk);
    if (m > 1 && knows_many_rows(sizes)) bytes = std::max(bytes, many_rows_moe_bytes(sizes, m, Float::f32));
  }
};

void check(const SparseMoe& moe, const MoeTokens& in, void* workspace, size_t bytes) {
  const bool gated = moe.w13.n == 2 * moe.w2.k;
  expect(moe.w13.e == moe.w2.e && moe.w2.n == moe.w13.k && (gated || moe.w13.n == moe.w2.k), kWhere,
         "w13 [E, I or 2I, H] and w2 [E, H, I]",
         std::to_string(moe.w13.n) + " x " + std::to_string(moe.w13.k) + " and " + std::to_string(moe.w2.n) +
             " x " + std::to_string(moe.w2.k));
  expect(in.m >= 0 && in.topk > 0 && in.topk < kMaxSegments, kWhere, "1 to 511 experts a token",
         std::to_string(in.topk));
  expect(moe.w13.e <= 8192, kWhere, "at most 8192 experts", std::to_string(moe.w13.e));
  expect(in.m == 0 || (in.hidden && in.topk_ids && in.topk_weights && in.out), kWhere,
         "hidden, topk_ids, topk_weights and out", "nullptr");
  expect_aligned(kWhere, "hidden", in.hidden, 2 * size_of(in.type));
  if (in.m > 0) expect_workspace(kWhere, workspace, bytes, Workspace(moe, in.m, in.topk).bytes);
}

/// True if the kernel for many rows can read the weights.
bool fits_many_rows(const SparseMoe& moe) {
  SparseArgs up{}, down{};
  describe_weights(moe.w13, moe.w13.n == 2 * moe.w2.k, kWhere, up);
  describe_weights(moe.w2, false, kWhere, down);
  return cuda::fits_many_rows(up) && cuda::fits_many_rows(down);
}

/// Computes tokens m0 to m0 + m - 1 with the kernel for many rows. Returns false if another kernel is faster
/// or the weights do not fit.
bool run_many(const SparseMoe& moe, const MoeTokens& tokens, int64_t m0, int64_t m, void* workspace,
              Stream stream, const SparseMoePlan& plan) {
  const LayerSizes sizes = sizes_of(moe, tokens.topk);
  const bool wanted = plan.many_rows == ManyRowsUse::chosen ? many_rows_pay(sizes, m, kManyRowsFrom)
                                                            : plan.many_rows == ManyRowsUse::always;
  if (!wanted) return false;
  expect(m > 1, kWhere, "several tokens for the many-row kernel", "one");
  const bool fits = fits_many_rows(moe);
  expect(fits || plan.many_rows == ManyRowsUse::chosen, kWhere, "weights that the many-row kernel reads",
         "others");
  if (!fits) return false;
  const Products products(moe, tokens, m0, m);
  MoeTokens some = tokens;
  some.m = m;
  some.hidden = products.up.raw, some.out = products.down.out;
  some.topk_ids = products.up.rows.ids, some.topk_weights = tokens.topk_weights + m0 * tokens.topk;
  ManyRowsLaunches launches;
  launches.up = [&](ManyRows rows) {
    rows.global_scale = moe.w13.global_scale;
    launch_many_rows(products.up, moe.w13.layout, rows, stream);
  };
  launches.down = [&](ManyRows rows) {
    rows.global_scale = moe.w2.global_scale;
    launch_many_rows(products.down, moe.w2.layout, rows, stream);
  };
  many_rows_moe(sizes, moe, some, products.up.rows, launches, workspace, stream);
  return true;
}

}  // namespace

void launch_combine(const CombineArgs& a, Stream stream) {
  const dim3 grid(static_cast<unsigned>((a.h + 255) / 256), static_cast<unsigned>(a.m));
  launch("combine", stream, {grid, 256, 0, 1, true}, combine_kernel, a);
}

size_t sparse_moe_workspace(const SparseMoe& moe, int64_t m, int64_t topk) {
  return static_cast<size_t>(Workspace(moe, m, topk).bytes);
}

bool sparse_moe_in_bf16(const SparseMoe& moe, int64_t m, int64_t topk) {
  return m > 0 && many_rows_pay(sizes_of(moe, topk), std::min(m, kManyTokens), kManyRowsFrom) &&
         fits_many_rows(moe);
}

bool sparse_moe_in_one(const SparseMoe& moe, const MoeTokens& tokens, const SparsePlan& plan) {
  const Products products(moe, tokens, 0, tokens.m);
  return tokens.m == 1 && fits_cooperative(products.up, products.down, plan);
}

void sparse_moe(const SparseMoe& moe, const MoeTokens& tokens, void* workspace, size_t workspace_bytes,
                Stream stream, const SparseMoePlan& plan) {
  check(moe, tokens, workspace, workspace_bytes);
  const int64_t h = moe.w2.n, topk = tokens.topk;
  const Workspace at(moe, tokens.m, topk);
  auto* base = static_cast<char*>(workspace);
  int64_t m = 0;
  for (int64_t m0 = 0; m0 < tokens.m; m0 += m) {
    m = std::min(tokens.m - m0, kManyTokens);
    if (run_many(moe, tokens, m0, m, workspace, stream, plan)) continue;
    m = std::min(m, kMaxTokens);
    const int64_t rows = m * topk;
    Products products(moe, tokens, m0, m);
    SparseArgs &up = products.up, &down = products.down;
    if (plan.launches != SparseMoeLaunches::several) {
      const bool fits = m == 1 && fits_cooperative(up, down, plan.one);
      expect(fits || plan.launches == SparseMoeLaunches::chosen, kWhere, "a layer that one launch can do",
             std::to_string(m) + " tokens of " + std::to_string(h));
      if (fits && launch_cooperative(up, down, moe.w13.layout, workspace, plan.one, stream)) continue;
      expect(plan.launches == SparseMoeLaunches::chosen, kWhere, "one launch that the stream takes",
             "one that it does not");
    }

    // Few rows hardly share experts. They are not sorted, and the multiplying blocks add the rows of a token.
    const bool distinct = m == 1 || rows * kExpertsPerRow <= moe.w13.e;
    auto* route = reinterpret_cast<Route*>(base + at.route);
    auto* sorted = reinterpret_cast<int32_t*>(base + at.sorted);
    for (SparseArgs* product : {&up, &down}) {
      product->distinct = distinct;
      if (!distinct) product->route = route, product->sorted = sorted;
    }

    // Gate, up and activation
    up.x = {reinterpret_cast<uint4*>(base + at.x), reinterpret_cast<float*>(base + at.x_factors)};
    up.route_from_predecessor = true;
    up.prepared = {reinterpret_cast<uint4*>(base + at.active),
                   reinterpret_cast<float*>(base + at.active_factors)};
    const void* hidden = up.raw;
    const bool raw = distinct && takes_raw(up, hidden, tokens.type);
    if (!raw) {
      up.raw = nullptr;
      launch_prepare({hidden, tokens.type, static_cast<int32_t>(m), up.k, up.x, up.rows,
                      distinct ? nullptr : route, sorted},
                     stream);
    }
    launch_sparse(up, moe.w13.layout, plan.w13, !raw, stream);

    // Down
    down.x = up.prepared;
    void* out = down.out;
    if (!distinct) down.epilogue = Epilogue::rows, down.out = base + at.y, down.out_type = Float::f32;
    launch_sparse(down, moe.w2.layout, plan.w2, true, stream);
    if (distinct) continue;

    launch_combine({up.rows, reinterpret_cast<const float*>(base + at.y), static_cast<int32_t>(m),
                    static_cast<int32_t>(topk), static_cast<int32_t>(h), out, tokens.type},
                   stream);
  }
}

}  // namespace twofour::cuda
