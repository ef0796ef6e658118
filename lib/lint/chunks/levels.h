#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace twofour {

/// The middle and the spread of some numbers. A few outliers hardly change them.
struct RobustSpread {
  double median = 0;
  /// 1.4826 times the median absolute deviation. For a Gaussian, this is the standard deviation.
  double deviation = 0;
};
RobustSpread robust_spread(std::vector<double> values);
/// Returns the median of some numbers. 0 without numbers.
double median_of(std::vector<float> values);

/// Magnitudes of the rows, or of the columns, of one matrix.
struct Levels {
  /// The position of the largest row, and the octaves by which it is above the median.
  uint32_t largest = 0;
  float above = 0;
  float median = 0;  ///< log2 of the median magnitude, to half an octave
  float spread = 0;  ///< standard deviation, in octaves
  /// The largest step between two neighbours of `parts` equal parts, 2, 4 or 8: the part after the step, and
  /// its median minus that of the part before, in octaves. 0 parts: there is no step.
  int parts = 0, part = 0;
  float step = 0;
};

/// Levels of channels, summed with pseudorandom signs into a few numbers. If two matrices have the same
/// channels along a side, the cosine of their sketches is about the correlation of their levels.
using Sketch = std::array<int8_t, 64>;
/// Returns the sketch of levels. Averages `group` neighbours first. The sketch of equal levels is all zero.
Sketch sketch_of(std::span<const float> octaves, size_t group);
/// Returns the cosine of a sketch and a sum of others.
double cosine_of(const Sketch& a, std::span<const double> sum);

/// Compares the magnitudes of lines or columns, given as log2. Rows of zeros, at -infinity, are left out.
Levels compare_levels(std::span<const float> octaves);

}  // namespace twofour
