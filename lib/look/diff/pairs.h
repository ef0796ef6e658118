#pragma once
#include <optional>
#include <vector>

#include "lib/base/threads/progress.h"
#include "lib/look/diff/diff.h"
#include "lib/look/metrics/matrix_pair.h"

namespace twofour {

/// Elements first, first + step, ... of a tensor.
struct TensorPart {
  size_t tensor;
  int64_t first, step, count;
  bool nvfp4 = false;    ///< an input scale of NVFP4
  bool divides = false;  ///< and stored as the reciprocal of the multiplier
};

/// The two sides that are compared under one name; each side has matrices or a part, or nothing.
struct DiffPair {
  DiffEntry entry;
  MatrixPair matrices{nullptr, nullptr};
  std::optional<TensorPart> a, b;
};

/// Everything that both checkpoints hold, in natural order of names: each tensor is in at least one pair.
/// Entries have name, kind and sides.
std::vector<DiffPair> pair_up(const Matrices& a, const Matrices& b);

/// Gives every pair's entry its class and figures. Stored bytes are compared first; only pairs that differ
/// there are compared as numbers.
void compare_pairs(const Matrices& a, const Matrices& b, const DiffOptions& options, Progress& progress,
                   std::vector<DiffPair>& pairs);

}  // namespace twofour
