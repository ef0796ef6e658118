#include "lib/base/names/name_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <iterator>
#include <map>
#include <set>

#include "lib/base/names/natural.h"

namespace twofour {
namespace {

/// Numbers as a text of ranges: "0-3,7".
std::string ranges(const std::set<int64_t>& numbers) {
  std::string text;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const int64_t first = *it;
    int64_t last = first;
    while (++it != numbers.end() && *it == last + 1) last = *it;
    text += fmt::format("{}{}", text.empty() ? "" : ",", first);
    if (last > first) text += fmt::format("-{}", last);
  }
  return text;
}

using Member = std::pair<std::vector<int64_t>, size_t>;  // numbers of a name, its index
using Group = std::vector<Member>;

/// Splits a group into parts whose names are equal except for the number at `place`, for example into layers
/// with the same experts. Numbers are compared in place, since a name may hold thousands.
std::vector<Group> split_at(size_t place, Group group) {
  const auto at = static_cast<std::ptrdiff_t>(place);
  const auto others_less = [at](const Member* a, const Member* b) {
    const auto x = a->first.begin() + at, y = b->first.begin() + at;
    const auto before = std::lexicographical_compare_three_way(a->first.begin(), x, b->first.begin(), y);
    if (before != 0) return before < 0;
    return std::lexicographical_compare(x + 1, a->first.end(), y + 1, b->first.end());
  };
  using Members = std::vector<const Member*>;
  const auto all_less = [&](const Members& a, const Members& b) {
    if (a.size() != b.size()) return a.size() < b.size();
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), others_less);
  };
  std::map<int64_t, Group> by_number;
  for (Member& member : group) by_number[member.first[place]].push_back(std::move(member));
  std::map<size_t, size_t> of_size;
  for (const auto& [number, members] : by_number) ++of_size[members.size()];
  std::map<Members, std::vector<Group*>, decltype(all_less)> by_others(all_less);
  for (auto& [number, members] : by_number) {
    Members sorted;
    for (const Member& member : members) sorted.push_back(&member);
    if (of_size[members.size()] > 1) std::sort(sorted.begin(), sorted.end(), others_less);
    by_others[std::move(sorted)].push_back(&members);
  }
  std::vector<Group> parts;
  for (const auto& [others, alike] : by_others) {
    Group& part = parts.emplace_back();
    for (Group* members : alike) std::move(members->begin(), members->end(), std::back_inserter(part));
  }
  return parts;
}

/// A group that can only be split at places from `depth` on.
struct Part {
  size_t depth;
  Group group;
};

/// Names each part whose numbers form all combinations, and splits every other part at its depth and deeper.
/// A name may hold thousands of numbers, and each may split a part again, so parts wait in a list and not on
/// the call stack.
void fold(const std::string& name_template, Group whole,
          std::vector<std::pair<std::string, std::vector<size_t>>>& out) {
  const size_t places = whole[0].first.size();
  std::vector<Part> parts;
  parts.push_back({0, std::move(whole)});
  while (!parts.empty()) {
    Part part = std::move(parts.back());
    parts.pop_back();
    size_t& depth = part.depth;
    Group& group = part.group;
    const auto differ_at = [&group](size_t place) {
      return std::any_of(group.begin(), group.end(),
                         [&](const Member& m) { return m.first[place] != group[0].first[place]; });
    };
    while (depth < places && !differ_at(depth)) ++depth;
    std::vector<std::set<int64_t>> sets;
    size_t combinations = 1;
    // With too many combinations, the remaining places do not matter.
    while (sets.size() < places && (combinations <= group.size() || depth == places)) {
      std::set<int64_t> numbers;
      for (const Member& member : group) numbers.insert(member.first[sets.size()]);
      combinations = std::min<size_t>(combinations * numbers.size(), group.size() + 1);
      sets.push_back(std::move(numbers));
    }
    if (combinations != group.size() && depth < places) {
      for (Group& split : split_at(depth, std::move(group))) parts.push_back({depth + 1, std::move(split)});
      continue;
    }
    std::string name;
    size_t place = 0;
    for (const char c : name_template) name += c == kNumberMark ? ranges(sets[place++]) : std::string(1, c);
    std::vector<size_t> members;
    for (const auto& [numbers, index] : group) members.push_back(index);
    out.emplace_back(std::move(name), std::move(members));
  }
}

}  // namespace

std::vector<std::pair<std::string, std::vector<size_t>>> fold_names(const std::vector<std::string>& names) {
  std::map<std::string, Group> groups;
  for (size_t i = 0; i < names.size(); ++i) {
    NumberedName s = split_numbers(names[i]);
    groups[s.name_template].emplace_back(std::move(s.numbers), i);
  }
  std::vector<std::pair<std::string, std::vector<size_t>>> folded;
  for (auto& [name_template, group] : groups) fold(name_template, std::move(group), folded);
  std::sort(folded.begin(), folded.end(), [](auto& a, auto& b) { return natural_less(a.first, b.first); });
  return folded;
}

namespace {

struct Node {
  std::string label;
  uint64_t bytes = 0;
  std::vector<Node> children{};
  std::map<std::string, size_t> parents{};  ///< children that are not leaves, by label
  std::optional<size_t> leaf{};
};

/// Cuts a name at its dots, except for dots before numbers and ranges.
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
      // Two tensors with the same folded name differ in type or shape; each is a leaf of its own.
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
