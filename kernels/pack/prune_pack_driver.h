#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "formats/atom.h"
#include "formats/layouts/layout.h"
#include "kernels/device/check.h"
#include "kernels/pack/prune_pack.h"
#include "kernels/pack/prune_pack_ops.h"

/// The packer for all layouts of SparseGroups that store neighbouring rows in neighbouring bytes. It does not
/// depend on the layout. It selects whole rows into scratch memory, and transposes this memory to the places
/// that `Layout::place` gives.

namespace twofour {

/// Bytes of SparseGroup that the selection writes to a separate array. In row r, group g and byte i of the
/// run are at column g * count + i.
struct AtomRun {
  int first, count;
};
inline constexpr AtomRun kAtomRuns[] = {{0, 4}, {4, 2}, {6, 1}};  // comp, meta, scale
static_assert(offsetof(SparseGroup, meta) == 4 && offsetof(SparseGroup, scale) == 6);

/// Groups [g0, g0 + groups) of every row. This part of K is selected before it is transposed.
struct KChunk {
  int64_t g0, groups;
};

/// One stored copy of a run over a chunk of K. `rows[c]` is the destination of column c for row n0.
struct PackSweep {
  int run;  ///< index in kAtomRuns
  std::vector<uint8_t*> rows;
};

/// Divides the groups of a row into chunks, so that the scratch memory of a block of rows fits the L2 cache.
std::vector<KChunk> k_chunks(int64_t groups);

/// Prunes a chunk of all rows and writes it to `sweeps`.
PruneStats pack_chunk(const DenseRows& rows, KChunk chunk, std::span<const PackSweep> sweeps,
                      const PrunePackOps& ops, Stores stores);

/// Prunes one group and adds to `stats`. This function defines the statistics.
SparseGroup prune_counted(const DenseGroup& dense, PruneStats& stats);

/// The functions for `isa`, which must be available.
const PrunePackOps& prune_pack_ops(Isa isa);

void check_prune_pack(const DenseRows& rows, Shape shape, int64_t n0, size_t given_parts, int layout_parts);

/// Finds the destinations of a chunk by the layout's map. Checks that the rows of a column are neighbours
/// there.
template <class Layout>
std::vector<PackSweep> pack_sweeps(Shape shape, int64_t n0, int64_t n, KChunk chunk,
                                   std::span<uint8_t* const> parts) {
  const auto place = [&](int64_t row, int64_t group, int byte, int copy) {
    return Layout::place(shape, Source{0, row, group, byte}, copy);
  };
  std::vector<PackSweep> sweeps;
  for (int run = 0; run < static_cast<int>(std::size(kAtomRuns)); ++run) {
    const auto [first_byte, count] = kAtomRuns[run];
    const int copies = Layout::copies(first_byte);
    for (int copy = 0; copy < copies; ++copy) {
      PackSweep sweep{run, {}};
      sweep.rows.reserve(static_cast<size_t>(chunk.groups * count));
      for (int64_t group = chunk.g0; group < chunk.g0 + chunk.groups; ++group) {
        for (int byte = first_byte; byte < first_byte + count; ++byte) {
          check(Layout::copies(byte) == copies, "as many copies of every byte of comp, meta or scale");
          const Stored head = place(n0, group, byte, copy);
          const Part part = Layout::part(head.part, shape);
          const auto is_neighbour = [&](int64_t i) {
            const Stored at = place(n0 + i, group, byte, copy);
            return at.part == head.part && at.at == Place{head.at.e, head.at.row, head.at.col + i};
          };
          bool neighbours = is_neighbour(n - 1);
          // Check every row of the first group, but only the last row of other groups, because mapping all
          // rows would cost as much as packing.
          for (int64_t i = 0; group == chunk.g0 && i < n; ++i) neighbours = neighbours && is_neighbour(i);
          check(neighbours, "a layout that keeps row n + 1 in the byte after row n");
          check(head.at.e == 0 && head.at.row >= 0 && head.at.row < part.rows && head.at.col >= 0 &&
                    head.at.col + n <= part.cols,
                "a place inside the part");
          sweep.rows.push_back(parts[static_cast<size_t>(head.part)] + head.at.row * part.cols + head.at.col);
        }
      }
      sweeps.push_back(std::move(sweep));
    }
  }
  return sweeps;
}

template <class Layout>
PruneStats prune_pack(const DenseRows& rows, Shape shape, int64_t n0, std::span<uint8_t* const> parts,
                      Isa isa, Stores stores) {
  static_assert(std::is_same_v<typename Layout::Atom, SparseGroup>, "only a 2:4 layout takes pruned weights");
  check_prune_pack(rows, shape, n0, parts.size(), Layout::part_count);
  const PrunePackOps& ops = prune_pack_ops(isa);
  PruneStats stats;
  if (rows.n == 0) return stats;
  for (const KChunk chunk : k_chunks(shape.groups())) {
    stats += pack_chunk(rows, chunk, pack_sweeps<Layout>(shape, n0, rows.n, chunk, parts), ops, stores);
  }
  if (stores == Stores::streaming) ops.fence();
  return stats;
}

template <class Layout>
PruneStats prune_pack_reference(const DenseRows& rows, Shape shape, int64_t n0,
                                std::span<uint8_t* const> parts) {
  static_assert(std::is_same_v<typename Layout::Atom, SparseGroup>, "only a 2:4 layout takes pruned weights");
  check_prune_pack(rows, shape, n0, parts.size(), Layout::part_count);
  PruneStats stats;
  for (int64_t n = 0; n < rows.n; ++n) {
    for (int64_t group = 0; group < shape.groups(); ++group) {
      DenseGroup dense;
      std::copy_n(rows.codes + n * rows.codes_pitch + group * 8, 8, dense.codes);
      dense.scale = rows.scales[n * rows.scales_pitch + group];
      const SparseGroup sparse = prune_counted(dense, stats);
      for (int byte = 0; byte < static_cast<int>(sizeof sparse); ++byte) {
        for (int copy = 0; copy < Layout::copies(byte); ++copy) {
          const Stored s = Layout::place(shape, {0, n0 + n, group, byte}, copy);
          const int64_t cols = Layout::part(s.part, shape).cols;
          parts[static_cast<size_t>(s.part)][s.at.row * cols + s.at.col] =
              reinterpret_cast<const uint8_t*>(&sparse)[byte];
        }
      }
    }
  }
  return stats;
}

/// prune_pack and prune_pack_reference for one layout.
struct PackFunctions {
  PruneStats (*fast)(const DenseRows&, Shape, int64_t, std::span<uint8_t* const>, Isa, Stores);
  PruneStats (*reference)(const DenseRows&, Shape, int64_t, std::span<uint8_t* const>);
};
std::vector<PackFunctions> prune_pack_functions();

}  // namespace twofour
