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

/// A layout's map for one shape, read byte by byte once and stored as runs: bytes that are consecutive both
/// in a part and in the derived bytes. The order of derived bytes is chosen so that runs are long.
class LayoutRuns {
 public:
  /// `shape.e` is 1. Runs of the last few shapes are cached, since layers are alike. Safe from several
  /// threads.
  static std::shared_ptr<const LayoutRuns> of(const std::string& layout, Shape shape);
  /// True if every part holds the derived bytes in the places of the map, and zeros as padding.
  bool hold(std::span<const uint8_t> derived, std::span<const std::span<const uint8_t>> parts) const;

 private:
  LayoutRuns(const std::string& layout, Shape shape);

  static constexpr uint32_t kZeros = UINT32_MAX;
  struct Run {
    uint32_t part_offset, derived, count;  ///< `derived` is kZeros for padding
  };
  std::vector<std::vector<Run>> parts_;
};

/// The expected content of a piece of an expert, derived from the source through a table of the 2:4 rule:
/// slower than the packers and without their code. Use one per thread.
class PieceCheck {
 public:
  PieceCheck(const Checkpoint& source, const LayoutMatrix& matrix) : source_(source), matrix_(matrix) {}

  /// Figures of the rows of one source: the effect of pruning, and codes of magnitude 0.
  struct Figures {
    PruneStats stats;
    uint64_t zero_codes = 0;
    /// Hashes of the source's codes and block scales, if the piece holds all of them as they are stored.
    std::optional<LayoutResult::Slice> slice;
  };
  /// True if `parts` hold the bytes derived for piece `piece` of expert `e`. `figures` has one entry for each
  /// source of the expert. Throws Error if the source cannot be read.
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
