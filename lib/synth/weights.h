#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace twofour {

/// The weights of one synthetic tensor. A weight depends only on the seed, the tensor's name and its place,
/// so any piece may be drawn in any order by any thread. Weights follow Student's t with 6 degrees of freedom
/// (kurtosis 6, cut at 10 standard deviations). Their standard deviation is about 0.02, and varies by a
/// quarter between rows.
class SynthWeights {
 public:
  SynthWeights(uint64_t seed, std::string_view tensor);

  /// The longest piece that draw() fills.
  static constexpr int64_t kPiece = 1024;
  /// Draws weights of `row` from `first`, a multiple of 4, on.
  void draw(int64_t row, int64_t first, std::span<float> out) const;
  /// The largest magnitude among the first `count` weights of `row`, without drawing them.
  float row_amax(int64_t row, int64_t count) const;
  /// A number that belongs to the tensor, for other values that are drawn once for each tensor.
  uint64_t key() const { return key_; }

 private:
  uint64_t row_key(int64_t row) const;
  uint64_t key_;
};

}  // namespace twofour
