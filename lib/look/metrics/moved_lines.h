#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/names/sibling_name.h"
#include "lib/look/metrics/moved_search.h"

// Searches for rows and columns of one matrix in another matrix.

namespace twofour {

using Rows = std::vector<float>;  ///< [rows, K]

/// The smallest cosine of rows that count as similar. Rounding to four bits leaves a cosine of 0.99, and
/// pruning leaves 0.85. Only one pair in ten thousand of unrelated rows of 32 numbers exceeds this limit.
inline constexpr double kLike = 0.6;
inline constexpr int64_t kFewColumns = 16;  ///< with fewer numbers, a cosine is meaningless
inline constexpr int64_t kLookedAt = 16;    ///< rows that are compared in each matrix

double dot(const float* a, const float* b, int64_t count);
/// The cosine of the angle between two rows of `count` numbers. NaN if one row is zero.
double cosine(const float* a, const float* b, int64_t count);

/// A matrix of one checkpoint.
struct Located {
  const std::string* name;
  const StoredMatrix* matrix;
  SiblingName at;
  int64_t n, k;
  Rows sketch{};  ///< [kSketchRows, kSketchColumns]; empty if unreadable
};

/// Chooses the rows to compare, which are the same for all matrices of a shape. They are pseudo-random rows,
/// so that they do not coincide with a pattern, and the row `extra`. With `together`, which suits rows that
/// take many reads, they are adjacent.
std::vector<int64_t> choose_rows(int64_t n, int64_t k, bool together, int64_t extra);

Rows read_rows(const Matrices& m, WeightReader& reader, const Located& p, const std::vector<int64_t>& rows);

/// One checkpoint of a search: its matrices, and the thread's own reader.
struct LineSource {
  const Matrices& matrices;
  WeightReader& reader;
};
/// Finds the order in which `own` has the rows or columns of `other`, a matrix of the same shape, or whether
/// `own` is `other` transposed. `rows` are the rows to compare. Empty if the rows and columns are different,
/// or if they are in the same order.
std::optional<MovedMatrix> find_order(const Located& own, const Located& other,
                                      const std::vector<int64_t>& rows, LineSource a, LineSource b);

}  // namespace twofour
