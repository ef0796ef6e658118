#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "formats/atom.h"
#include "formats/layouts/layout.h"

namespace twofour {

/// Neighbouring bytes of a part that all hold the same kind of data.
struct PartRun {
  ByteKind kind;
  int64_t begin, count;  ///< in bytes, from the beginning of a unit
  int64_t
      back;  ///< if a source byte is stored several times: bytes back to its first copy; 0: the first or only
  bool operator==(const PartRun&) const = default;
};

/// The contents of one part of an expert, as runs of bytes. The part has `units` units of `unit` bytes each.
/// All units have the same runs, except that padding may begin earlier in the last unit.
struct PartMap {
  int64_t unit = 0, units = 0;
  std::vector<PartRun> runs, last;
  const std::vector<PartRun>& runs_of(int64_t index) const { return index == units - 1 ? last : runs; }
};

/// Lists the runs of a whole part. Calls the layout's `source` and `place` once for each byte.
template <class Layout>
std::vector<PartRun> list_runs(int p, Shape shape) {
  const Part part = Layout::part(p, shape);
  std::vector<PartRun> runs;
  for (int64_t row = 0; row < part.rows; ++row) {
    for (int64_t col = 0; col < part.cols; ++col) {
      const int64_t at = row * part.cols + col;
      const Source s = Layout::source(p, shape, {0, row, col});
      PartRun run{ByteKind::kPadding, at, 1, 0};
      if (s.byte != kPadding) {
        run.kind = Layout::Atom::kind(s.byte);
        const Stored first = Layout::copies(s.byte) > 1 ? Layout::place(shape, s, 0) : Stored{-1, {}};
        if (first.part == p) run.back = at - (first.at.row * part.cols + first.at.col);
      }
      const bool joins = !runs.empty() && runs.back().kind == run.kind && runs.back().back == run.back;
      joins ? void(++runs.back().count) : runs.push_back(run);
    }
  }
  return runs;
}

/// Returns the map of part `p`, derived from the layout's own functions alone. A unit is the shortest period
/// of the layout along its outer axis, at most kTileAlignment rows or inputs. All copies of a byte are in the
/// same unit as its first copy. The map is empty for a part without bytes.
template <class Layout>
PartMap map_part(int p, Shape shape) {
  constexpr bool along_k = Layout::outer == Axis::kK;
  // Interleaving moves whole rows, so it does not change the kinds of bytes in a row.
  const auto cut = [&](Shape whole, int64_t size) {
    return along_k ? Shape{1, whole.n, size} : Shape{1, size, whole.k};
  };
  const auto repeats = [&](int64_t grain) {
    const Shape some{1, kTileAlignment, kTileAlignment};
    const std::vector<PartRun> once = list_runs<Layout>(p, cut(some, grain)),
                               whole = list_runs<Layout>(p, some);
    std::vector<PartRun> repeated;
    const int64_t bytes = Layout::part(p, cut(some, grain)).bytes();
    for (int64_t unit = 0; unit < kTileAlignment / grain; ++unit) {
      for (PartRun run : once) {
        run.begin += unit * bytes;
        const bool joins =
            !repeated.empty() && repeated.back().kind == run.kind && repeated.back().back == run.back;
        joins ? void(repeated.back().count += run.count) : repeated.push_back(run);
      }
    }
    return repeated == whole;
  };
  const int64_t bytes = Layout::part(p, shape).bytes(), outer = along_k ? shape.k : shape.n;
  if (bytes <= 0) return {};
  PartMap map{bytes, 1, {}, {}};
  for (int64_t grain = kGroup; grain <= kTileAlignment && map.units == 1; grain *= 2) {
    const int64_t units = (outer + grain - 1) / grain, unit = Layout::part(p, cut(shape, grain)).bytes();
    if (units > 1 && units * unit == bytes && repeats(grain)) map = {unit, units, {}, {}};
    if (map.units == 1) continue;
    map.runs = list_runs<Layout>(p, cut(shape, grain));
    map.last = outer % grain == 0 ? map.runs : list_runs<Layout>(p, cut(shape, outer % grain));
  }
  if (map.units == 1) map.last = list_runs<Layout>(p, {1, shape.n, shape.k});
  return map;
}

}  // namespace twofour
