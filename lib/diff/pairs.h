#pragma once
#include <optional>
#include <vector>

#include "lib/diff/diff.h"
#include "lib/metrics/matrix_pair.h"
#include "lib/threads/progress.h"

namespace twofour {

/// Elements first, first + step, ... of a tensor.
struct TensorPart {
  size_t tensor;
  int64_t first, step, count;
  bool nvfp4 = false;    ///< an input scale of NVFP4
  bool divides = false;  ///< and stored as the reciprocal of the multiplier
};

/// What is held against each other under one name; each side has either, or nothing.
struct DiffPair {
  DiffEntry entry;
  MatrixPair matrices{nullptr, nullptr};
  std::optional<TensorPart> a, b;
};

/// Everything that both checkpoints hold, in natural order of names: each tensor is in one pair at least.
/// Entries have name, kind and sides.
std::vector<DiffPair> pair_up(const Matrices& a, const Matrices& b);

/// Gives every pair's entry its class and figures. Bytes first, as they are stored; as numbers only what
/// differs there.
void compare_pairs(const Matrices& a, const Matrices& b, const DiffOptions& options, Progress& progress,
                   std::vector<DiffPair>& pairs);

}  // namespace twofour
