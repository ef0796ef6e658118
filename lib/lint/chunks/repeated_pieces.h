#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace twofour {

/// Finds bytes that a matrix has twice, at a distance of whole pieces: for example, a page that was written
/// to two places. A piece is identified by sixteen of its bytes.
class Pieces {
 public:
  static constexpr uint64_t kPiece = 512;
  /// `bytes` is the number of bytes that are added, `piece` the distance between looks. Large matrices are
  /// looked at in larger pieces.
  Pieces(uint64_t bytes, uint64_t piece);
  /// Adds bytes that lie at `offset` of the matrix and follow those of the call before.
  void add(uint64_t offset, std::span<const uint8_t> bytes);
  void merge(const Pieces& other);
  /// The longest run of pieces that repeats an earlier one: its size in bytes, its offset, and the offset of
  /// the earlier run.
  struct Repeat {
    uint64_t bytes = 0, at = 0, from = 0;
  };
  const Repeat& longest() const { return longest_; }
  double repeated_share() const;  ///< share of pieces that are equal to an earlier one

 private:
  void take(uint64_t offset, uint64_t hash);

  uint64_t piece_;
  struct Entry {
    uint32_t tag = 0, place = 0;
  };
  std::vector<Entry> table_;  ///< open addressing, at most half full
  uint64_t next_ = 0;         ///< offset of the next piece
  uint64_t count_ = 0, repeated_ = 0;
  Repeat run_{}, longest_{};
};

}  // namespace twofour
