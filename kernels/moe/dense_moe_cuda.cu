#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/moe/dense_cooperative.h"
#include "kernels/moe/dense_moe.h"
#include "kernels/moe/many_rows_moe.h"
#include "kernels/multiply/dense_launch.h"
#include "kernels/multiply/sparse_launch.h"
#include "kernels/pack/device_pack.h"

namespace twofour::cuda {
namespace {

constexpr const char* kWhere = "dense_moe";

/// The number of tokens that are computed at a time. It bounds the workspace, and keeps the number of rows
/// within the limit of a grid along y.
int64_t most_tokens(int64_t topk) { return std::clamp<int64_t>(65535 / std::max<int64_t>(topk, 1), 1, 1024); }

/// The number of rows of the first multiplication that share a row of hidden. Rows share none if hidden is
/// quantized after it was multiplied by the router's weights.
int64_t rows_per_hidden(const DenseMoe& moe, int64_t topk) {
  return moe.w13_input_scale && moe.weight_on_input ? 1 : topk;
}

/// The number of rows per expert from which the kernel for many rows is faster.
constexpr int64_t kManyRowsFrom = 5;

/// The number of experts per row from which rows are not sorted, as in sparse_moe.
constexpr int64_t kExpertsPerRow = 4;

LayerSizes sizes_of(const DenseMoe& moe, int64_t topk) { return {moe.w13.e, moe.w2.n, moe.w2.k, topk, true}; }

/// True if the kernel for many rows supports the layer, which must be W4A16.
bool knows_many_rows(const DenseMoe& moe, int64_t topk) {
  return !moe.w13_input_scale && fits_many_rows(moe.w13) && fits_many_rows(moe.w2) &&
         knows_many_rows(sizes_of(moe, topk));
}

ExpertRows rows_of(int64_t rows, int64_t rows_per_x) {
  ExpertRows r;
  r.rows = rows, r.rows_per_x = rows_per_x;
  return r;
}

/// The workspace for W4A4. `hidden` and `active` are activations, with the size of hidden and of the second
/// multiplication's input.
struct QuantizedWorkspace {
  int64_t hidden_codes, hidden_scales, products, active_codes, active_scales, y, multiply, multiply_bytes,
      bytes;
  QuantizedWorkspace(const DenseMoe& moe, int64_t m, int64_t topk) {
    const int64_t rows = std::min(m, most_tokens(topk)) * topk, h = moe.w13.k, i = moe.w2.k;
    const int64_t hidden = rows / rows_per_hidden(moe, topk) * h;
    hidden_codes = 0;
    hidden_scales = hidden_codes + align_up(hidden / 2);
    products = hidden_scales + align_up(hidden / 16);
    active_codes = products + align_up(rows * (moe.fused ? i : 2 * i) * 2);
    active_scales = active_codes + align_up(rows * i / 2);
    y = active_scales + align_up(rows * i / 16);
    multiply = y + align_up(rows * h * 4);
    multiply_bytes = static_cast<int64_t>(
        std::max(dense_multiply_workspace(moe.w13, rows_of(rows, rows_per_hidden(moe, topk))),
                 dense_multiply_workspace(moe.w2, rows_of(rows, 1))));
    bytes = multiply + multiply_bytes;
  }
};

/// The workspace for W4A16 with few rows per expert.
struct FewRowsWorkspace {
  int64_t route, sorted, x, factors, active, y, bytes;
  FewRowsWorkspace(const DenseMoe& moe, int64_t m, int64_t topk) {
    const int64_t tokens = std::min(m, most_tokens(topk)), rows = tokens * topk;
    route = 0;
    sorted = route + align_up(16 + std::min(rows, moe.w13.e) * 16);
    x = sorted + align_up(rows * 4);
    factors = x + align_up(tokens * dense_steps(moe.w13.k) * 512);
    active = factors + align_up(tokens * 4);
    y = active + align_up(rows * dense_steps(moe.w2.k) * 512);
    bytes = y + align_up(rows * moe.w2.n * 4);
  }
};

int64_t workspace_bytes(const DenseMoe& moe, int64_t m, int64_t topk) {
  if (moe.w13_input_scale) return QuantizedWorkspace(moe, m, topk).bytes;
  const int64_t few = FewRowsWorkspace(moe, m, topk).bytes;
  const bool many = m > 1 && knows_many_rows(moe, topk);
  return many ? std::max(few, many_rows_moe_bytes(sizes_of(moe, topk), m, Float::f32)) : few;
}

void check(const DenseMoe& moe, const MoeTokens& in, const void* workspace, size_t bytes) {
  expect(moe.w13.layout == DenseLayout::g8 && moe.w13.gated, kWhere, "gated g8 weights", "others");
  expect(moe.w13.e == moe.w2.e && moe.w2.n == moe.w13.k && moe.w13.n == 2 * moe.w2.k && !moe.w2.gated, kWhere,
         "w13 [E, 2I, H] and w2 [E, H, I]",
         std::to_string(moe.w13.n) + " x " + std::to_string(moe.w13.k) + " and " + std::to_string(moe.w2.n) +
             " x " + std::to_string(moe.w2.k));
  expect((moe.w13_input_scale == nullptr) == (moe.w2_input_scale == nullptr), kWhere,
         "both input scales or none", "one");
  expect(moe.fused || moe.w2_input_scale, kWhere, "input scales where SwiGLU is not fused", "none");
  expect(in.m >= 0 && in.topk > 0 && in.topk < kMaxSegments, kWhere, "1 to 511 experts a token",
         std::to_string(in.topk));
  expect(in.m == 0 || (in.hidden && in.topk_ids && in.topk_weights && in.out), kWhere,
         "hidden, topk_ids, topk_weights and out", "nullptr");
  expect_aligned(kWhere, "hidden", in.hidden, 2 * size_of(in.type));
  if (in.m > 0) expect_workspace(kWhere, workspace, bytes, workspace_bytes(moe, in.m, in.topk));
}

RowIds ids_of(const DenseMoe& moe, const MoeTokens& in) {
  const auto e = static_cast<int32_t>(moe.w13.e);
  return {in.topk_ids,
          moe.expert_map,
          static_cast<int32_t>(in.m * in.topk),
          moe.expert_map ? static_cast<int32_t>(moe.map_size) : e,
          e,
          in.error};
}

/// Adds the rows of each token. Rows without an expert are neither written nor read.
void combine(const DenseMoe& moe, const MoeTokens& in, const void* y, Stream stream) {
  RowIds rows = ids_of(moe, in);
  rows.error = nullptr;
  launch_combine({rows, static_cast<const float*>(y), static_cast<int32_t>(in.m),
                  static_cast<int32_t>(in.topk), static_cast<int32_t>(moe.w2.n), in.out, in.type},
                 stream);
}

/// Computes W4A4 for the tokens of one pass.
void run_quantized(const DenseMoe& moe, const MoeTokens& in, uint8_t* base, Stream stream) {
  const QuantizedWorkspace at(moe, in.m, in.topk);
  const int64_t rows = in.m * in.topk, h = moe.w13.k, i = moe.w2.k;
  const auto quantize = [&](QuantizeActivations q, int64_t codes, int64_t scales) {
    q.limit = moe.limit;
    q.codes = base + codes, q.scales = base + scales;
    quantize_activations(q, stream);
    return Nvfp4Rows{base + codes, base + scales, q.global_scale};
  };

  // Gate and up
  ExpertRows up = rows_of(rows, rows_per_hidden(moe, in.topk));
  QuantizeActivations q;
  q.x = in.hidden, q.type = in.type, q.m = rows / up.rows_per_x, q.k = h;
  q.rows_per_x = in.topk / up.rows_per_x, q.row_weight = moe.weight_on_input ? in.topk_weights : nullptr;
  q.global_scale = moe.w13_input_scale;
  Nvfp4Rows nvfp4 = quantize(q, at.hidden_codes, at.hidden_scales);
  up.x = in.hidden, up.x_type = in.type;
  up.ids = in.topk_ids, up.error = in.error;
  up.out = base + at.products, up.out_type = Float::bf16;
  up.distinct = in.m == 1;
  DenseOptions options;
  options.nvfp4 = &nvfp4;
  options.epilogue = moe.fused ? DenseEpilogue::swiglu : DenseEpilogue::stored;
  options.limit = moe.limit;
  options.expert_map = moe.expert_map, options.map_size = moe.map_size;
  dense_multiply(moe.w13, up, base + at.multiply, static_cast<size_t>(at.multiply_bytes), stream, options);

  // Down. Rows without an expert are not written, and their results are not read.
  q = {};
  q.x = base + at.products, q.type = Float::bf16, q.m = rows, q.k = i;
  q.interleaved = !moe.fused;
  q.global_scale = moe.w2_input_scale;
  nvfp4 = quantize(q, at.active_codes, at.active_scales);
  ExpertRows down = rows_of(rows, 1);
  down.x = base + at.products, down.x_type = Float::bf16;
  down.ids = in.topk_ids, down.row_weight = moe.weight_on_input ? nullptr : in.topk_weights;
  down.out = base + at.y;
  down.distinct = up.distinct;
  options.epilogue = DenseEpilogue::rows;
  dense_multiply(moe.w2, down, base + at.multiply, static_cast<size_t>(at.multiply_bytes), stream, options);
  combine(moe, in, base + at.y, stream);
}

/// Both products, before their launches are chosen.
struct Products {
  DenseArgs up{}, down{};
  Products(const DenseMoe& moe, const MoeTokens& in) {
    describe_dense(moe.w13, kWhere, up);
    describe_dense(moe.w2, kWhere, down);
    for (DenseArgs* product : {&up, &down}) product->rows = ids_of(moe, in), product->limit = moe.limit;
    (moe.weight_on_input ? up : down).row_weight = in.topk_weights;
    up.rows_per_x = static_cast<int32_t>(in.topk), down.rows_per_x = 1;
  }
};

/// Computes W4A16 with few rows per expert, for the tokens of one pass. Rows are sorted and prepared once,
/// and the first product writes gate times up in the form that the second product reads.
void run_few(const DenseMoe& moe, const MoeTokens& in, uint8_t* base, Stream stream) {
  const FewRowsWorkspace at(moe, in.m, in.topk);
  Products products(moe, in);
  DenseArgs &up = products.up, &down = products.down;
  const bool distinct = (in.m == 1 || in.m * in.topk * kExpertsPerRow <= moe.w13.e) &&
                        fits_dense_single(up) && fits_dense_single(down);
  if (!distinct) {
    for (DenseArgs* product : {&up, &down}) {
      product->route = reinterpret_cast<Route*>(base + at.route);
      product->sorted = reinterpret_cast<int32_t*>(base + at.sorted);
    }
  }
  up.x = {reinterpret_cast<uint4*>(base + at.x),
          in.type == Float::bf16 ? nullptr : reinterpret_cast<float*>(base + at.factors)};
  up.route_from_predecessor = true;
  up.epilogue = DenseEpilogue::swiglu;
  up.active = reinterpret_cast<uint16_t*>(base + at.active);
  if (in.m == 1 && moe.launches != DenseMoeLaunches::several) {
    down.out = in.out;
    const bool fits = fits_cooperative(up, down);
    expect(fits || moe.launches == DenseMoeLaunches::chosen, kWhere, "a layer that one launch can do",
           "another");
    if (fits && launch_cooperative(up, down, in.hidden, in.type, stream)) return;
    expect(moe.launches == DenseMoeLaunches::chosen, kWhere, "one launch that the stream takes",
           "one that it does not");
  }
  if (distinct && in.type == Float::bf16) {
    up.raw_x = static_cast<const uint16_t*>(in.hidden);
  } else {
    launch_prepare_dense({in.hidden,
                          in.type,
                          {},
                          static_cast<int32_t>(in.m),
                          up.k,
                          up.x,
                          up.rows,
                          false,
                          const_cast<Route*>(up.route),
                          const_cast<int32_t*>(up.sorted)},
                         stream);
  }
  launch_dense(up, 0, stream);

  down.x = {reinterpret_cast<uint4*>(base + at.active), nullptr};
  if (distinct && fits_dense_tokens(down, in.topk)) {
    down.segments = static_cast<int32_t>(in.topk);
    down.out = in.out, down.out_type = in.type;
    return launch_dense_tokens(down, stream);
  }
  down.epilogue = DenseEpilogue::rows;
  down.out = base + at.y, down.out_type = Float::f32;
  launch_dense(down, 0, stream);
  combine(moe, in, base + at.y, stream);
}

/// Computes tokens with the kernel for many rows. Returns false if another kernel is faster or the weights do
/// not fit.
bool run_many(const DenseMoe& moe, const MoeTokens& in, void* workspace, Stream stream) {
  const LayerSizes sizes = sizes_of(moe, in.topk);
  const bool wanted = moe.many_rows == ManyRowsUse::chosen ? many_rows_pay(sizes, in.m, kManyRowsFrom)
                                                           : moe.many_rows == ManyRowsUse::always;
  if (!wanted) return false;
  expect(in.m > 1, kWhere, "several tokens for the many-row kernel", "one");
  const bool fits = knows_many_rows(moe, in.topk);
  expect(fits || moe.many_rows == ManyRowsUse::chosen, kWhere, "weights that the many-row kernel reads",
         "others");
  if (!fits) return false;
  const RowIds rows = ids_of(moe, in);
  ManyRowsLaunches launches;
  launches.g8 = true;
  launches.up = [&](ManyRows product) {
    product.global_scale = moe.w13.global_scale;
    launch_many_rows(moe.w13, product, stream);
  };
  launches.down = [&](ManyRows product) {
    product.global_scale = moe.w2.global_scale;
    launch_many_rows(moe.w2, product, stream);
  };
  many_rows_moe(sizes, moe, in, rows, launches, workspace, stream);
  return true;
}

}  // namespace

size_t dense_moe_workspace(const DenseMoe& moe, int64_t m, int64_t topk) {
  return static_cast<size_t>(workspace_bytes(moe, m, topk));
}

bool dense_moe_in_bf16(const DenseMoe& moe, int64_t m, int64_t topk) {
  return m > 0 && many_rows_pay(sizes_of(moe, topk), std::min(m, kManyTokens), kManyRowsFrom) &&
         knows_many_rows(moe, topk);
}

bool dense_moe_in_one(const DenseMoe& moe, const MoeTokens& tokens) {
  const Products products(moe, tokens);
  return tokens.m == 1 && !moe.w13_input_scale && fits_cooperative(products.up, products.down);
}

void dense_moe(const DenseMoe& moe, const MoeTokens& tokens, void* workspace, size_t workspace_bytes,
               Stream stream) {
  check(moe, tokens, workspace, workspace_bytes);
  const int64_t bytes = moe.w13.k * size_of(tokens.type);
  int64_t m = 0;
  for (int64_t m0 = 0; m0 < tokens.m; m0 += m) {
    MoeTokens some = tokens;
    some.hidden = static_cast<const char*>(tokens.hidden) + m0 * bytes;
    some.out = static_cast<char*>(tokens.out) + m0 * bytes;
    some.topk_ids += m0 * tokens.topk, some.topk_weights += m0 * tokens.topk;
    some.m = m = std::min(tokens.m - m0, kManyTokens);
    if (run_many(moe, some, workspace, stream)) continue;
    some.m = m = std::min(m, most_tokens(tokens.topk));
    auto* base = static_cast<uint8_t*>(workspace);
    moe.w13_input_scale ? run_quantized(moe, some, base, stream) : run_few(moe, some, base, stream);
  }
}

}  // namespace twofour::cuda
