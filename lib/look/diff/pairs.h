#pragma once
#include <optional>
#include <vector>

#include "lib/base/threads/progress.h"
#include "lib/look/diff/diff.h"
#include "lib/look/metrics/matrix_pair.h"

namespace twofour {

/// The elements first, first + step, ... of a tensor, `count` in all.
struct TensorPart {
  size_t tensor;
  int64_t first, step, count;
  bool nvfp4 = false;    ///< an input scale of NVFP4
  bool divides = false;  ///< it is stored as the multiplier's reciprocal
};

/// The two sides that are compared under one name. Each side is a matrix, a part of a tensor, or absent.
struct DiffPair {
  DiffEntry entry;
  MatrixPair matrices{nullptr, nullptr};
  std::optional<TensorPart> a, b;
};

/// Pairs up everything that the two checkpoints hold, in natural order of names. Each tensor is in at least
/// one pair. The entries get their name, kind and sides.
std::vector<DiffPair> pair_up(const Matrices& a, const Matrices& b);

/// Gives the entry of each pair its class and figures. Stored bytes are compared first. Only pairs whose
/// bytes differ are compared as numbers.
void compare_pairs(const Matrices& a, const Matrices& b, const DiffOptions& options, Progress& progress,
                   std::vector<DiffPair>& pairs);

}  // namespace twofour
