#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// Places [begin, end) along one dimension; `single`: one number, which drops the dimension.
struct SliceRange {
  int64_t begin, end;
  bool single = false;
};

/// "NAME" or "NAME[...]", split into its parts.
struct SliceText {
  std::string name, ranges;
  bool has_ranges = false;
};
SliceText split_slice(std::string_view text);

/// Numbers and begin:end as in NumPy, without steps: negative numbers count from the end, ends beyond a
/// dimension are cut, omitted dimensions are complete. Throws Error naming `where`.
std::vector<SliceRange> parse_slice(std::string_view where, std::string_view text,
                                    const std::vector<int64_t>& shape);

/// Decoded values of a slice.
struct SliceValues {
  std::string name, format;    ///< "NVFP4", "F32", ...
  std::vector<int64_t> whole;  ///< of the sliced array: [E, N, K] or [N, K] of weights
  std::vector<int64_t> shape;  ///< of the slice
  std::vector<double> values;  ///< in row-major order
};

/// The most values that are read at once.
inline constexpr int64_t kMaxSliceValues = 1 << 16;

/// The slice "NAME[e, n, k0:k1]" of a checkpoint's or artifact's numbers. A module or one of its matrices
/// ("P.3.up_proj") gives its weights, in any dialect or layout. A tensor gives its elements as they are
/// stored; an artifact's own tensors, too. Names may end in brackets: an existing name takes precedence.
/// Throws Error on unknown names and slices of too many values.
SliceValues read_slice(const Checkpoint& checkpoint, std::string_view text);

}  // namespace twofour
