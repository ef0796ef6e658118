#pragma once
#include <cstdint>
#include <functional>

#include "kernels/moe/sparse_moe.h"
#include "kernels/multiply/many_rows.h"

/// A layer of many tokens: rows sorted by expert, two launches of the many-row kernel, a sum.

namespace twofour::cuda {

/// Sizes of a layer.
struct LayerSizes {
  int64_t e, h, i, topk;
  bool gated;
};

/// Tokens that are computed at a time: this bounds the workspace.
inline constexpr int64_t kManyTokens = 16384;

/// True if the current device has the many-row kernel and the kernel takes these sizes.
bool knows_many_rows(const LayerSizes& layer);

/// True if it is faster for `m` tokens: more than one, and `crossing` or more rows for each expert on
/// average.
bool many_rows_pay(const LayerSizes& layer, int64_t m, int64_t crossing);

/// Bytes of workspace for up to `m` tokens, of which at most kManyTokens are computed at a time.
int64_t many_rows_moe_bytes(const LayerSizes& layer, int64_t m, Float type);

/// The launches of both products of a layer.
struct ManyRowsLaunches {
  /// True if weights are g8: pairs of blocks can multiply by them, and their k is in the order of permuted_k.
  bool g8 = false;
  std::function<void(const ManyRows&)> up, down;
};

/// The layer for at most kManyTokens tokens. `rows` are the same for both products.
void many_rows_moe(const LayerSizes& layer, const MoeOptions& options, const MoeTokens& tokens,
                   const RowIds& rows, const ManyRowsLaunches& launches, void* workspace, Stream stream);

}  // namespace twofour::cuda
