#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "lib/lint/siblings/checks.h"

// Linears that read or write the residual stream have one side with the stream's channels. The levels of
// these channels are similar in all layers but the first and the last.

namespace twofour {
namespace {

constexpr size_t kFewestSquares = 4;

using Sums = std::vector<double>;

/// One side of some matrices: the sum of their sketches.
struct Side {
  Sketch MatrixFigures::*own;
  Sketch MatrixFigures::*other;
  const char* name;
  const char* other_name;
};
constexpr Side kSides[] = {{&MatrixFigures::row_sketch, &MatrixFigures::column_sketch, "rows", "columns"},
                           {&MatrixFigures::column_sketch, &MatrixFigures::row_sketch, "columns", "rows"}};

/// Returns the sum of the sketches of one side of all matrices but one.
Sums sum_without(const std::vector<Member*>& all, const Member* one, Sketch MatrixFigures::*side) {
  Sums sums(std::tuple_size_v<Sketch>);
  for (const Member* m : all) {
    if (m == one) continue;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += (m->figures->*side)[i];
  }
  return sums;
}

/// Returns the one matrix whose other side follows what this side follows in the others; nullptr: none.
Member* find_turned(const std::vector<Member*>& all, const Side& side) {
  constexpr double kAlike = 0.4, kUnlike = 0.25;
  Member* found = nullptr;
  size_t alike = 0;
  for (Member* m : all) {
    const Sums others = sum_without(all, m, side.own);
    const double own = cosine_of(m->figures->*side.own, others),
                 other = cosine_of(m->figures->*side.other, others);
    alike += own >= kAlike && other < own - kUnlike;
    if (own >= kUnlike || other < kAlike || other < own + kAlike) continue;
    if (found != nullptr) return nullptr;
    found = m;
  }
  return 4 * alike >= 3 * (all.size() - 1) ? found : nullptr;
}

}  // namespace

void lint_turned(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  std::map<std::string, std::vector<Member*>> kinds;
  const Sketch none{};
  for (Member& m : members) {
    if (m.is_linear && m.at.layer >= 0 && m.at.expert < 0 && m.figures->row_sketch != none &&
        m.figures->column_sketch != none)
      kinds[m.at.kind].push_back(&m);
  }
  for (const auto& [kind, all] : kinds) {
    if (all.size() < kFewestSquares) continue;
    for (const Side& side : kSides) {
      Member* m = find_turned(all, side);
      if (m == nullptr || m->reported) continue;
      m->reported = true;
      reporter.add("layer-outlier", s.at(m->figures->tensor, m->name),
                   "expected {} whose sizes follow those of {} other layers, found that the {} follow them, "
                   "as of a transposed matrix",
                   side.name, all.size() - 1, side.other_name);
    }
  }
}

}  // namespace twofour
