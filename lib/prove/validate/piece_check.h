#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/methods/layout_matrix.h"

namespace twofour {

/// The map of a layout for one shape, as runs. A run is a range of bytes that are consecutive both in a part
/// and in the derived bytes. The map is read byte by byte once. The order of derived bytes is chosen so that
/// runs are long.
class LayoutRuns {
 public:
  /// `shape.e` must be 1. The runs of the last few shapes are cached, since many layers have the same shapes.
  /// Safe to call from several threads.
  static std::shared_ptr<const LayoutRuns> of(const std::string& layout, Shape shape);
  /// True if every part has the derived bytes in the places of the map, and zeros as padding.
  bool hold(std::span<const uint8_t> derived, std::span<const std::span<const uint8_t>> parts) const;

 private:
  LayoutRuns(const std::string& layout, Shape shape);

  static constexpr uint32_t kZeros = UINT32_MAX;
  struct Run {
    uint32_t part_offset, derived, count;  ///< in bytes; `derived` is kZeros for padding
  };
  std::vector<std::vector<Run>> parts_;
};

/// The expected content of a piece of an expert. It is derived from the source by a table of the 2:4 rule.
/// This is slower than the packers and shares no code with them. Each thread needs its own object.
class PieceCheck {
 public:
  PieceCheck(const Checkpoint& source, const LayoutMatrix& matrix) : source_(source), matrix_(matrix) {}

  /// Figures of the rows of one source: the effect of pruning, and the number of codes with magnitude 0.
  struct Figures {
    PruneStats stats;
    uint64_t zero_codes = 0;
    /// Hashes of the source's codes and block scales. Set if the piece has all of them, as they are stored.
    std::optional<LayoutResult::Slice> slice;
  };
  /// True if `parts` has the bytes that are derived for piece `piece` of expert `e`. `figures` has one entry
  /// for each source of the expert. Throws Error if the source cannot be read.
  bool run(int64_t e, const Piece& piece, const LayoutRuns& runs,
           std::span<const std::span<const uint8_t>> parts, std::span<Figures> figures);

 private:
  template <class Layout>
  void derive(int64_t e, const Piece& piece, std::span<Figures> figures);

  const Checkpoint& source_;
  const LayoutMatrix& matrix_;
  std::vector<uint8_t> codes_, scales_, derived_;
};

}  // namespace twofour
