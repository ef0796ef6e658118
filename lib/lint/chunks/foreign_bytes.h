#pragma once
#include <cstdint>
#include <span>

namespace twofour {

/// Bytes that no weights have: readable text, or one pattern of two bytes again and again. In scales: text,
/// or numbers that neighbours never have, as in noise.
struct ForeignBytes {
  uint64_t bytes = 0, at = 0;  ///< number of bytes, 0 if none were found; their offset
  bool is_text = false;
  uint16_t pattern = 0;  ///< the repeated bytes, the first one in the upper half
};

/// Looks at sixteen bytes of each sector of a matrix. If these are text or one pattern, it also looks at the
/// bytes around them. Zeros are counted separately, because pruning gives them.
class Looks {
 public:
  static constexpr uint64_t kSector = 512;
  explicit Looks(bool scales = false) : scales_(scales) {}
  /// Adds bytes that lie at `offset` of the matrix and follow those of the call before.
  void add(uint64_t offset, std::span<const uint8_t> bytes);
  void merge(const Looks& other);
  const ForeignBytes& longest() const { return longest_; }
  const ForeignBytes& zeros() const { return zeros_; }  ///< the longest run of zero bytes that a look met

 private:
  uint64_t take_zeros(std::span<const uint8_t> bytes, uint64_t at, uint64_t offset);
  uint64_t look(std::span<const uint8_t> bytes, uint64_t at, uint64_t offset);

  void look_at_scales(std::span<const uint8_t> sector, uint64_t offset);

  bool scales_;
  uint64_t next_ = 0;  ///< offset of the next look
  ForeignBytes longest_{}, zeros_{};
};

}  // namespace twofour
