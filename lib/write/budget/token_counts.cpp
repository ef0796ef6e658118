#include "lib/write/budget/token_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/naming.h"

namespace twofour {

double tokens_of(const Statistics& s, const StatisticsEntry& entry, const EncodedMatrix& m) {
  const auto all = static_cast<double>(entry.count);
  const auto name = parse_module_name(m.name);
  if (!name || name->kind != BlockKind::kRoutedExperts) return all;
  std::set<int64_t> experts;
  int64_t stacked = 0;
  for (const std::string& member : entry.members) {
    const auto other = parse_module_name(member);
    if (!other || other->kind != BlockKind::kRoutedExperts) continue;
    if (other->expert < 0) stacked = m.source->e;
    experts.insert(other->expert);
  }
  const int64_t shared = std::max(stacked, static_cast<int64_t>(experts.size()));
  if (shared < 2) return all;
  const StatisticsEntry* down =
      s.find(fmt::format("{}.{}.{}", name->block, name->expert, name->naming->down));
  if (down != nullptr && down->members.size() == 1) return static_cast<double>(down->count);
  return all / static_cast<double>(shared);
}

double tokens_of_model(const Statistics& s) {
  int64_t all = 0, of_experts = 0;
  for (const StatisticsEntry& e : s.entries()) {
    const auto name = parse_module_name(e.members[0]);
    const bool routed = name && name->kind == BlockKind::kRoutedExperts;
    (routed ? of_experts : all) = std::max(routed ? of_experts : all, e.count);
  }
  return static_cast<double>(std::max<int64_t>(1, all > 0 ? all : of_experts));
}

}  // namespace twofour
