#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/checkpoint/matrices.h"

namespace twofour {

/// How weights of one checkpoint are those of another without being the ones of the same name.
enum class Moved {
  kExperts,     ///< experts of a layer under other numbers
  kRenumbered,  ///< the same, and the rows of the router with them: the model computes what it did
  kLayers,
  kGateUp,  ///< gate and up exchanged, or the halves of a matrix that holds both
  kOther,   ///< the matrix of another name
  kRows,    ///< its own matrix, rows in another order
  kColumns,
  kNibbles,  ///< each column exchanged with its neighbour, as the two codes of a byte
  kSigns,
  kScales,  ///< its own matrix, blocks of other sizes: scales in another order, or of another matrix
  kFactor,  ///< its own matrix, all numbers larger or smaller
  kTransposed,
};
/// "experts", "renumbered-experts", "layers", "gate-up", "other", "rows", "columns", "nibbles", "signs",
/// "scales", "factor", "transposed".
const char* moved_name(Moved how);

/// One thing that moved.
struct MovedWeights {
  Moved how;
  std::string name;  ///< in A: a matrix, a block of experts ("model.layers.1.mlp.experts") or a layer
  std::string text;  ///< "expert 3 equals expert 8 of B, expert 8 equals expert 3 of B"
  /// Names in A, and what they equal in B; of kRows to kScales none.
  std::vector<std::pair<std::string, std::string>> pairs{};
  double factor = 1;  ///< of kFactor
};

/// Weights of A that are found elsewhere in B, or in another order there, though B has others under their
/// name: by some rows of each matrix, as numbers, so that formats and dialects may differ, and rounding and
/// pruning do not matter. `differ`: the matrices of A that are known to differ, each with a row that does, so
/// that no others are looked at. `b_name` is what the texts call B. In natural order of names. Matrices with
/// scales that are not valid are left out. `compared`: how many names both hold in one shape. `unlike`: those
/// of them under which the two have matrices with nothing in common, that were not found elsewhere.
struct MovedReport {
  std::vector<MovedWeights> moved;
  size_t compared = 0;
  std::vector<std::string> unlike{};
};
MovedReport find_moved(const Matrices& a, const Matrices& b, const std::string& b_name,
                       const std::map<std::string, int64_t>* differ = nullptr);

}  // namespace twofour
