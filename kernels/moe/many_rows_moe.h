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

/// Tokens that are worked on at a time: bounds the workspace.
inline constexpr int64_t kManyTokens = 16384;

/// Whether the current device has the many-row kernel and it takes such sizes.
bool knows_many_rows(const LayerSizes& layer);

/// Whether it is the faster one for `m` tokens, more than one and `crossing` rows an expert or more on
/// average.
bool many_rows_pay(const LayerSizes& layer, int64_t m, int64_t crossing);

/// Bytes of workspace for up to `m` tokens, of which kManyTokens at most are worked on at a time.
int64_t many_rows_moe_bytes(const LayerSizes& layer, int64_t m, Float type);

/// How both products of a layer are started.
struct ManyRowsLaunches {
  /// Whether weights are g8: pairs of blocks can multiply by them, and they take k in the order of
  /// permuted_k.
  bool g8 = false;
  std::function<void(const ManyRows&)> up, down;
};

/// The layer for at most kManyTokens tokens. `rows` as both products have them.
void many_rows_moe(const LayerSizes& layer, const MoeOptions& options, const MoeTokens& tokens,
                   const RowIds& rows, const ManyRowsLaunches& launches, void* workspace, Stream stream);

}  // namespace twofour::cuda
