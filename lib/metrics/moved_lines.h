#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/metrics/moved_search.h"
#include "lib/names/sibling_name.h"

// Rows and columns of one matrix, found among those of another.

namespace twofour {

using Rows = std::vector<float>;  ///< [rows, K]

/// Rounding to four bits leaves a cosine of 0.99, pruning 0.85; of unrelated rows of 32 numbers one in ten
/// thousand has more.
inline constexpr double kLike = 0.6;
inline constexpr int64_t kFewColumns = 16;  ///< a cosine of fewer numbers says nothing
inline constexpr int64_t kLookedAt = 16;    ///< rows of each matrix

double dot(const float* a, const float* b, int64_t count);
/// NaN where one of them is zero.
double cosine(const float* a, const float* b, int64_t count);

/// A matrix of one side.
struct Located {
  const std::string* name;
  const StoredMatrix* matrix;
  SiblingName at;
  int64_t n, k;
  Rows sketch{};  ///< [kSketchRows, kSketchColumns]; empty where it could not be read
};

/// The rows that are looked at, the same of all matrices of a shape: anywhere, so that no pattern agrees with
/// them, and `extra`. Where a row takes many reads they lie side by side.
std::vector<int64_t> choose_rows(int64_t n, int64_t k, bool together, int64_t extra);

Rows read_rows(const Matrices& m, WeightReader& reader, const Located& p, const std::vector<int64_t>& rows);

/// One side of a search: a checkpoint's matrices, and a reader of the thread's own.
struct LineSource {
  const Matrices& matrices;
  WeightReader& reader;
};
/// What order `own` has the lines of `other` in, which has its shape: of rows, of columns, or transposed.
/// `rows`: those that are looked at. Nothing where it has other lines, or the same in the same places.
std::optional<MovedMatrix> find_order(const Located& own, const Located& other,
                                      const std::vector<int64_t>& rows, LineSource a, LineSource b);

}  // namespace twofour
