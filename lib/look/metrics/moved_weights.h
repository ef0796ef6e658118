#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/source/linears/matrices.h"

namespace twofour {

/// The ways in which weights of a checkpoint A match weights of a checkpoint B under other names or in a
/// different order.
enum class Moved {
  kExperts,     ///< experts of a layer under other numbers
  kRenumbered,  ///< experts and router rows; the model computes the same
  kLayers,
  kGateUp,  ///< gate and up exchanged, or the halves of a matrix that holds both
  kOther,   ///< equals a matrix of another name
  kRows,    ///< equals the matrix of its name with rows in a different order
  kColumns,
  kNibbles,  ///< columns exchanged in pairs, like the two codes of a byte
  kSigns,
  kScales,  ///< block scales in a different order, or of another matrix
  kFactor,  ///< equals the matrix of its name times a factor
  kTransposed,
};
/// The name of a way: "experts", "renumbered-experts", "layers", "gate-up", "other", "rows", "columns",
/// "nibbles", "signs", "scales", "factor" or "transposed".
const char* moved_name(Moved how);

/// One finding about moved weights.
struct MovedWeights {
  Moved how;
  std::string name;  ///< a matrix of A, a block of experts or a layer
  std::string text;  ///< "expert 3 equals expert 8 of B, expert 8 equals expert 3 of B"
  /// Pairs of a name in A and the name in B that it equals. Empty for kRows to kScales.
  std::vector<std::pair<std::string, std::string>> pairs{};
  double factor = 1;  ///< for kFactor
};

/// Finds weights of A that B has elsewhere, or in a different order, and for which B has other weights under
/// their name. It compares some rows of each matrix as numbers, so formats and dialects may differ, and
/// rounding and pruning do not matter. `differ` has the matrices of A that are known to differ, each with a
/// row that differs; only these are searched. `b_name` is the name of B in texts. Results are in natural
/// order of names. Matrices with invalid scales are left out. `compared` is the number of names that both
/// checkpoints have with the same shape. `unlike` has the names among them whose matrices have nothing in
/// common and were not found elsewhere.
struct MovedReport {
  std::vector<MovedWeights> moved;
  size_t compared = 0;
  std::vector<std::string> unlike{};
};
MovedReport find_moved(const Matrices& a, const Matrices& b, const std::string& b_name,
                       const std::map<std::string, int64_t>* differ = nullptr);

}  // namespace twofour
