#include <array>
#include <map>
#include <string>

#include "lib/lint/content/checks.h"

// For tensor parallelism, producers repeat heads of keys and of values alike.

namespace twofour {
namespace {

/// True if the second half of all rows is the first half.
bool is_twice(const MatrixFigures& f) {
  constexpr uint64_t kFewRows = 64;
  const uint64_t half = f.plan.lines / 2, bytes = half * f.plan.line_bytes;
  if (!f.plan.is_rows || f.plan.k_outer || f.plan.lines < kFewRows || f.plan.lines % 2 != 0) return false;
  return f.repeated_lines >= half && f.repeat.at - f.repeat.from == bytes && 2 * f.repeat.bytes > bytes;
}

}  // namespace

void lint_repeated_heads(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  std::map<std::string, std::array<Member*, 2>> pairs;  // by the name without its last part
  for (Member& m : members) {
    for (const size_t i : {0u, 1u}) {
      const std::string leaf = i == 0 ? ".k_proj" : ".v_proj";
      if (m.is_linear && m.module.ends_with(leaf))
        pairs[m.module.substr(0, m.module.size() - leaf.size())][i] = &m;
    }
  }
  for (const auto& [name, pair] : pairs) {
    if (pair[0] == nullptr || pair[1] == nullptr) continue;
    for (const size_t i : {0u, 1u}) {
      const MatrixFigures &f = *pair[i]->figures, &other = *pair[1 - i]->figures;
      if (!is_twice(f) || other.repeated_lines > 0 || other.plan.lines != f.plan.lines) continue;
      reporter.add("repeated-rows", s.at(f.tensor, pair[i]->name),
                   "expected rows that differ, as those of {} do, found the second half of {} equal to the "
                   "first, as of one rank's heads twice",
                   pair[1 - i]->name, f.plan.lines);
    }
  }
}

}  // namespace twofour
