#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace twofour {

/// The weights of one synthetic tensor. A weight depends on the seed, the tensor's name and its place alone,
/// so any piece may be drawn in any order by any thread. They follow Student's t with 6 degrees of freedom
/// (kurtosis 6, cut at 10 standard deviations) with a standard deviation of about 0.02 that varies by a
/// quarter between rows.
class SynthWeights {
 public:
  SynthWeights(uint64_t seed, std::string_view tensor);

  /// Longest piece that draw() fills.
  static constexpr int64_t kPiece = 1024;
  /// Weights of `row` from `first`, a multiple of 4, on.
  void draw(int64_t row, int64_t first, std::span<float> out) const;
  /// Largest magnitude among the first `count` weights of `row`, without drawing them.
  float row_amax(int64_t row, int64_t count) const;
  /// A number that belongs to the tensor, for whatever else is drawn once a tensor.
  uint64_t key() const { return key_; }

 private:
  uint64_t row_key(int64_t row) const;
  uint64_t key_;
};

}  // namespace twofour
