#include "lib/base/findings/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace twofour {
namespace {

/// The number of edits between two words by optimal string alignment. An edit inserts, drops or replaces a
/// character, or swaps neighbours.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::optional<std::string> suggest(std::string_view typed, const std::vector<std::string>& candidates) {
  constexpr size_t kLongest = 100;  // all names of twofour are far shorter
  std::optional<std::string> best;
  if (typed.size() > kLongest) return best;
  size_t fewest = 3;
  for (const std::string& candidate : candidates) {
    const size_t distance = candidate.starts_with(typed) && typed.size() >= 3 ? 1 : edits(typed, candidate);
    if (distance >= fewest || distance >= candidate.size()) continue;
    fewest = distance;
    best = candidate;
  }
  return best;
}

}  // namespace

std::string did_you_mean(std::string_view typed, const std::vector<std::string>& candidates) {
  const auto guess = suggest(typed, candidates);
  return guess ? fmt::format("; did you mean {}?", *guess) : "";
}

}  // namespace twofour
