#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "lib/inspect.h"
#include "lib/natural.h"
#include "lib/numbered_name.h"

namespace twofour {
namespace {

/// "0-3,7"
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

using Group = std::vector<std::pair<std::vector<int64_t>, size_t>>;  // numbers of a name, its index

/// Parts of a group that are alike but for the number at `place`: layers with the same experts.
std::vector<Group> split_at(size_t place, Group group) {
  std::map<int64_t, Group> by_number;
  for (auto& member : group) by_number[member.first[place]].push_back(std::move(member));
  std::map<std::vector<std::vector<int64_t>>, Group> by_others;
  for (auto& [number, members] : by_number) {
    std::vector<std::vector<int64_t>> others;
    for (const auto& [numbers, index] : members) {
      others.push_back(numbers);
      others.back().erase(others.back().begin() + static_cast<std::ptrdiff_t>(place));
    }
    std::sort(others.begin(), others.end());
    Group& alike = by_others[std::move(others)];
    std::move(members.begin(), members.end(), std::back_inserter(alike));
  }
  std::vector<Group> parts;
  for (auto& [others, members] : by_others) parts.push_back(std::move(members));
  return parts;
}

/// Names a group whose numbers form all combinations; splits it at `depth` and behind where they don't.
void fold(const std::string& skeleton, size_t depth, Group group,
          std::vector<std::pair<std::string, std::vector<size_t>>>& out) {
  const size_t places = group[0].first.size();
  std::vector<std::set<int64_t>> sets(places);
  for (const auto& [numbers, index] : group) {
    for (size_t p = 0; p < places; ++p) sets[p].insert(numbers[p]);
  }
  size_t combinations = 1;
  for (const auto& s : sets) combinations = std::min<size_t>(combinations * s.size(), group.size() + 1);
  if (combinations != group.size() && depth < places) {
    for (Group& part : split_at(depth, std::move(group))) fold(skeleton, depth + 1, std::move(part), out);
    return;
  }
  std::string name;
  size_t place = 0;
  for (const char c : skeleton) name += c == kNumberMark ? ranges(sets[place++]) : std::string(1, c);
  std::vector<size_t> members;
  for (const auto& [numbers, index] : group) members.push_back(index);
  out.emplace_back(std::move(name), std::move(members));
}

}  // namespace

std::vector<std::pair<std::string, std::vector<size_t>>> fold_names(const std::vector<std::string>& names) {
  std::map<std::string, Group> groups;
  for (size_t i = 0; i < names.size(); ++i) {
    NumberedName s = split_numbers(names[i]);
    groups[s.skeleton].emplace_back(std::move(s.numbers), i);
  }
  std::vector<std::pair<std::string, std::vector<size_t>>> folded;
  for (auto& [skeleton, group] : groups) fold(skeleton, 0, std::move(group), folded);
  std::sort(folded.begin(), folded.end(), [](auto& a, auto& b) { return natural_less(a.first, b.first); });
  return folded;
}

}  // namespace twofour
