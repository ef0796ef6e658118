#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace twofour {

/// The weights of one synthetic tensor. A weight depends only on the seed, the tensor's name and the weight's
/// place in the tensor, so pieces may be drawn in any order by any thread. Weights follow Student's t
/// distribution with 6 degrees of freedom (kurtosis 6), cut at 10 standard deviations. Their standard
/// deviation is about 0.02 and varies by up to a quarter between rows.
class SynthWeights {
 public:
  SynthWeights(uint64_t seed, std::string_view tensor);

  /// The largest number of weights that draw() draws at once.
  static constexpr int64_t kPiece = 1024;
  /// Draws the weights of `row` from column `first` on, which must be a multiple of 4.
  void draw(int64_t row, int64_t first, std::span<float> out) const;
  /// The largest magnitude among the first `count` weights of `row`, found without computing the weights.
  float row_amax(int64_t row, int64_t count) const;
  /// A pseudo-random number for the tensor, from which values that the tensor has only once are derived.
  uint64_t key() const { return key_; }

 private:
  uint64_t row_key(int64_t row) const;
  uint64_t key_;
};

}  // namespace twofour
