#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/checkpoint/checkpoint.h"
#include "lib/methods/layout_matrix.h"

namespace twofour {

/// A layout's map for one shape, asked byte by byte once and kept as runs: bytes that follow each other in a
/// part and in the derived bytes. The order of those is chosen so that runs are long.
class LayoutRuns {
 public:
  /// `shape.e` is 1. Those of the last few shapes are kept, for layers are alike. Safe from several threads.
  static std::shared_ptr<const LayoutRuns> of(const std::string& layout, Shape shape);
  /// Whether every part holds the derived bytes where the map says so, and zeros as padding.
  bool hold(std::span<const uint8_t> derived, std::span<const std::span<const uint8_t>> parts) const;

 private:
  LayoutRuns(const std::string& layout, Shape shape);

  static constexpr uint32_t kZeros = UINT32_MAX;
  struct Run {
    uint32_t part_offset, derived, count;  ///< `derived` is kZeros where the part is padded
  };
  std::vector<std::vector<Run>> parts_;
};

/// What a piece of an expert must hold, derived from the source through a table of the 2:4 rule: slower
/// than the packers and without code in common with them. One a thread.
class PieceCheck {
 public:
  PieceCheck(const Checkpoint& source, const LayoutMatrix& matrix) : source_(source), matrix_(matrix) {}

  /// Of the rows that come from one source: what pruning did to them, and codes of magnitude 0.
  struct Figures {
    PruneStats stats;
    uint64_t zero_codes = 0;
    /// Hashes of the source's codes and block scales, where the piece holds all of them as they are stored.
    std::optional<LayoutResult::Slice> slice;
  };
  /// Whether `parts` hold what piece `piece` of expert `e` derives to. `figures` has one entry for each
  /// source of the expert. Throws Error where the source cannot be read.
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
