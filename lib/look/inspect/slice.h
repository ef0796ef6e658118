#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// Positions [begin, end) along one dimension. `single` is true for a single number, which removes the
/// dimension.
struct SliceRange {
  int64_t begin, end;
  bool single = false;
};

/// The parts of a text "NAME" or "NAME[...]".
struct SliceText {
  std::string name, ranges;
  bool has_ranges = false;
};
SliceText split_slice(std::string_view text);

/// Parses numbers and begin:end as in NumPy, but without steps. Negative numbers count from the end, an end
/// beyond a dimension is cut, and omitted dimensions are complete. Throws Error that names `where` on invalid
/// texts.
std::vector<SliceRange> parse_slice(std::string_view where, std::string_view text,
                                    const std::vector<int64_t>& shape);

/// Decoded values of a slice.
struct SliceValues {
  std::string name, format;    ///< "NVFP4", "F32", ...
  std::vector<int64_t> whole;  ///< shape of the whole array; weights are [E, N, K] or [N, K]
  std::vector<int64_t> shape;  ///< shape of the slice
  std::vector<double> values;  ///< in row-major order
};

/// The largest number of values in a slice.
inline constexpr int64_t kMaxSliceValues = 1 << 16;

/// Reads the slice "NAME[e, n, k0:k1]" of the numbers of a checkpoint or artifact. If NAME is a module or one
/// of its matrices ("P.3.up_proj"), the values are its weights, in any dialect or layout. If NAME is a
/// tensor, including an artifact's own tensors, the values are its elements as they are stored. A name may
/// itself end in brackets, so an existing name takes precedence. Throws Error on unknown names and on slices
/// of too many values.
SliceValues read_slice(const Checkpoint& checkpoint, std::string_view text);

}  // namespace twofour
