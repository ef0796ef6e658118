#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/source/checkpoint/matrices.h"

namespace twofour {

/// The way in which weights of one checkpoint match those of another under other names or in another order.
enum class Moved {
  kExperts,     ///< experts of a layer under other numbers
  kRenumbered,  ///< the same with the router's rows: the model computes the same
  kLayers,
  kGateUp,  ///< gate and up exchanged, or the halves of a matrix that holds both
  kOther,   ///< the matrix of another name
  kRows,    ///< the matrix of its name, rows in another order
  kColumns,
  kNibbles,  ///< each column exchanged with its neighbour, as the two codes of a byte
  kSigns,
  kScales,  ///< the matrix of its name, blocks of other sizes: scales in another order, or of another matrix
  kFactor,  ///< the matrix of its name, all numbers larger or smaller
  kTransposed,
};
/// "experts", "renumbered-experts", "layers", "gate-up", "other", "rows", "columns", "nibbles", "signs",
/// "scales", "factor", "transposed".
const char* moved_name(Moved how);

/// One finding about moved weights.
struct MovedWeights {
  Moved how;
  std::string name;  ///< in A: a matrix, a block of experts ("model.layers.1.mlp.experts") or a layer
  std::string text;  ///< "expert 3 equals expert 8 of B, expert 8 equals expert 3 of B"
  /// Names in A, and the names in B that they equal; none for kRows to kScales.
  std::vector<std::pair<std::string, std::string>> pairs{};
  double factor = 1;  ///< of kFactor
};

/// Finds weights of A that are elsewhere in B, or in another order, although B has other weights under their
/// name. It compares some rows of each matrix as numbers, so that formats and dialects may differ, and
/// rounding and pruning do not matter. `differ`: the matrices of A that are known to differ, each with such a
/// row; only these are searched. `b_name` is the name of B in texts. Results are in natural order of names.
/// Matrices with invalid scales are left out. `compared`: the number of names that both have in the same
/// shape. `unlike`: those of them whose matrices have nothing in common and that were not found elsewhere.
struct MovedReport {
  std::vector<MovedWeights> moved;
  size_t compared = 0;
  std::vector<std::string> unlike{};
};
MovedReport find_moved(const Matrices& a, const Matrices& b, const std::string& b_name,
                       const std::map<std::string, int64_t>* differ = nullptr);

}  // namespace twofour
