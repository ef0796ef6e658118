#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace twofour {

/// Folds names: those that differ only in numbers share a group, if all combinations of the numbers occur.
std::vector<std::pair<std::string, std::vector<size_t>>> fold_names(const std::vector<std::string>& names);

/// A line of a tree of dotted names.
struct TreeLine {
  size_t depth;
  std::string label;           ///< part of the name: "mlp.experts.0-511"; numbers stay with what they count
  uint64_t bytes = 0;          ///< of everything below it
  std::optional<size_t> leaf;  ///< position of the name that ends here
};

/// Names with sizes as a tree, each parent before its children, in the order of the names; a parent with a
/// single child shares one line with it.
std::vector<TreeLine> name_tree(const std::vector<std::pair<std::string, uint64_t>>& names);

}  // namespace twofour
