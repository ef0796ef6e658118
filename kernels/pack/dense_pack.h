#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "formats/layouts/layout.h"
#include "kernels/pack/prune_pack.h"

namespace twofour {

/// Writes dense rows to rows [n0, n0 + rows.n) of one expert (`shape.e == 1`, `shape.k == rows.k`), in the
/// places of `Layout`. `Layout` is a layout of DenseGroups, and `parts[p]` is part p of the expert. Padding
/// is not written. The bytes equal those from packing with the layout's map. Returns the number of block
/// scales that are NaN or negative.
template <class Layout>
uint64_t dense_pack(const DenseRows& rows, Shape shape, int64_t n0, std::span<uint8_t* const> parts);

/// The functions dense_pack<Layout> for all dense layouts.
using DensePackFunction = uint64_t(const DenseRows&, Shape, int64_t, std::span<uint8_t* const>);
std::vector<DensePackFunction*> dense_pack_functions();

}  // namespace twofour
