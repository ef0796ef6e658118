#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace twofour {

/// Folds names into groups. Names that differ only in numbers share a group if all combinations of the
/// numbers occur. Returns the folded name of each group with the positions of its names.
std::vector<std::pair<std::string, std::vector<size_t>>> fold_names(const std::vector<std::string>& names);

/// A line of a tree of dotted names.
struct TreeLine {
  size_t depth;
  std::string label;   ///< part of the name, "mlp.experts.0-511"; a number stays with the part before it
  uint64_t bytes = 0;  ///< sum of all names below this line
  std::optional<size_t> leaf;  ///< position of the name that ends here
};

/// Names with sizes in bytes, as a tree in the order of the names. Each parent comes before its children. A
/// parent with a single child shares one line with it.
std::vector<TreeLine> name_tree(const std::vector<std::pair<std::string, uint64_t>>& names);

}  // namespace twofour
