#include "lib/names/name_tree.h"

#include <algorithm>
#include <map>

namespace twofour {
namespace {

struct Node {
  std::string label;
  uint64_t bytes = 0;
  std::vector<Node> children{};
  std::map<std::string, size_t> parents{};  ///< children that are no leaves, by label
  std::optional<size_t> leaf{};
};

/// Cuts a name at its dots, but for those before numbers and ranges.
std::vector<std::string> labels_of(const std::string& name) {
  std::vector<std::string> labels;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    std::string piece = name.substr(begin, end - begin);
    const bool number = !piece.empty() && piece.find_first_not_of("0123456789-,") == std::string::npos;
    if (number && !labels.empty()) {
      labels.back() += "." + piece;
    } else {
      labels.push_back(std::move(piece));
    }
    begin = end + 1;
  }
  return labels;
}

void list(Node&& node, size_t depth, std::vector<TreeLine>& lines) {
  while (node.children.size() == 1 && !node.leaf) {
    Node child = std::move(node.children[0]);
    child.label = node.label + "." + child.label;
    node = std::move(child);
  }
  lines.push_back({depth, std::move(node.label), node.bytes, node.leaf});
  for (Node& child : node.children) list(std::move(child), depth + 1, lines);
}

}  // namespace

std::vector<TreeLine> name_tree(const std::vector<std::pair<std::string, uint64_t>>& names) {
  Node root;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto& [name, bytes] = names[i];
    Node* at = &root;
    const std::vector<std::string> labels = labels_of(name);
    for (size_t l = 0; l < labels.size(); ++l) {
      // Two tensors of one name folded differ in type or shape; each is a leaf of its own.
      bool fresh = l + 1 == labels.size();
      size_t child = at->children.size();
      if (!fresh) {
        const auto [it, added] = at->parents.emplace(labels[l], child);
        child = it->second;
        fresh = added;
      }
      if (fresh) at->children.push_back({labels[l]});
      at = &at->children[child];
      at->bytes += bytes;
    }
    at->leaf = i;
  }
  std::vector<TreeLine> lines;
  for (Node& child : root.children) list(std::move(child), 0, lines);
  return lines;
}

}  // namespace twofour
