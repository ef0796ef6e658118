#pragma once
#include <cstdint>
#include <functional>

#include "kernels/moe/sparse_moe.h"
#include "kernels/multiply/many_rows.h"

/// Computes a layer for many tokens: sorts rows by expert, launches the kernel for many rows twice, and adds
/// the rows of each token.

namespace twofour::cuda {

/// Sizes of a layer.
struct LayerSizes {
  int64_t e, h, i, topk;
  bool gated;
};

/// The largest number of tokens that are computed at a time. It bounds the workspace.
inline constexpr int64_t kManyTokens = 16384;

/// True if the current device can run the kernel for many rows and the kernel accepts these sizes.
bool knows_many_rows(const LayerSizes& layer);

/// True if the kernel for many rows is faster for `m` tokens. This needs more than one token, and at least
/// `crossing` rows per expert on average.
bool many_rows_pay(const LayerSizes& layer, int64_t m, int64_t crossing);

/// The number of bytes of workspace for up to `m` tokens. At most kManyTokens tokens are computed at a time.
int64_t many_rows_moe_bytes(const LayerSizes& layer, int64_t m, Float type);

/// The functions that launch both products of a layer.
struct ManyRowsLaunches {
  /// True if weights are g8. Pairs of blocks can then multiply by them, and their k is in the order of
  /// permuted_k.
  bool g8 = false;
  std::function<void(const ManyRows&)> up, down;
};

/// Computes the layer for at most kManyTokens tokens. `rows` are the same for both products.
void many_rows_moe(const LayerSizes& layer, const MoeOptions& options, const MoeTokens& tokens,
                   const RowIds& rows, const ManyRowsLaunches& launches, void* workspace, Stream stream);

}  // namespace twofour::cuda
