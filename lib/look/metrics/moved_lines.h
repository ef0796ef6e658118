#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/names/sibling_name.h"
#include "lib/look/metrics/moved_search.h"

// Searches for rows and columns of one matrix among those of another.

namespace twofour {

using Rows = std::vector<float>;  ///< [rows, K]

/// Rounding to four bits leaves a cosine of 0.99, pruning 0.85; only one in ten thousand pairs of unrelated
/// rows of 32 numbers exceeds it.
inline constexpr double kLike = 0.6;
inline constexpr int64_t kFewColumns = 16;  ///< with fewer numbers a cosine is meaningless
inline constexpr int64_t kLookedAt = 16;    ///< rows that are compared in each matrix

double dot(const float* a, const float* b, int64_t count);
/// NaN if one of them is zero.
double cosine(const float* a, const float* b, int64_t count);

/// A matrix of one side.
struct Located {
  const std::string* name;
  const StoredMatrix* matrix;
  SiblingName at;
  int64_t n, k;
  Rows sketch{};  ///< [kSketchRows, kSketchColumns]; empty if unreadable
};

/// The rows to compare, the same for all matrices of a shape: pseudo-random ones, so that they do not
/// coincide with a pattern, and `extra`. They are adjacent if a row takes many reads.
std::vector<int64_t> choose_rows(int64_t n, int64_t k, bool together, int64_t extra);

Rows read_rows(const Matrices& m, WeightReader& reader, const Located& p, const std::vector<int64_t>& rows);

/// One side of a search: a checkpoint's matrices, and the thread's own reader.
struct LineSource {
  const Matrices& matrices;
  WeightReader& reader;
};
/// The order in which `own` has the lines of `other`, which has the same shape: of rows, of columns, or
/// transposed. `rows`: the rows to compare. Nothing if its lines are others, or are in the same places.
std::optional<MovedMatrix> find_order(const Located& own, const Located& other,
                                      const std::vector<int64_t>& rows, LineSource a, LineSource b);

}  // namespace twofour
