#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/lint/content/checks.h"

namespace twofour {
namespace {

/// True for FP8 and INT8 with a scale for each row.
bool has_row_scales(const Member& m) {
  constexpr uint64_t kFewRows = 64;
  const MatrixFigures& f = *m.figures;
  const bool is_bytes = f.plan.kind == NumberKind::kE4m3 || f.plan.kind == NumberKind::kInt8;
  return m.is_linear && is_bytes && f.plan.is_rows && !f.plan.k_outer && f.plan.lines >= kFewRows &&
         m.scale_figures != nullptr && m.scale_figures->plan.kind != NumberKind::kE8m0 &&
         m.scale_figures->counted == f.plan.lines;
}

bool has_one_scale(const Member& m) {
  constexpr double kSame = 1e-4;  // octaves; neighbouring numbers in half precision differ by more
  return std::fabs(m.scale_figures->log2_amax - m.scale_figures->log2_rms) < kSame;
}

/// True if nearly every row has the largest number of its format, and few of it. A row's own scale gives it
/// one or two. Under one scale for all rows, only the largest row reaches it. If that scale was chosen to cut
/// weights off, rows have many or none of it: of a mean of 3, one row in twenty has none by chance.
bool does_each_row_reach_end(const LintInput& s, const Member& m) {
  constexpr uint64_t kMostRows = 512;
  constexpr double kNearlyAll = 0.98, kFewOfRow = 3;
  const MatrixPlan& plan = m.figures->plan;
  const uint64_t rows = std::min(kMostRows, plan.lines),
                 begin = static_cast<uint64_t>(std::max<int64_t>(m.figures->expert, 0)) * plan.lines;
  const auto is_end = [&](uint8_t byte) {
    return plan.kind == NumberKind::kE4m3 ? (byte & 0x7F) == 0x7E : byte >= 0x7F && byte <= 0x81;
  };
  std::vector<uint8_t> row(plan.line_bytes);
  uint64_t reaching = 0, ends = 0;
  for (uint64_t i = 0; i < rows; ++i) {
    s.read(m.figures->tensor, (begin + i * plan.lines / rows) * plan.line_bytes, row);
    const auto count = static_cast<uint64_t>(std::ranges::count_if(row, is_end));
    reaching += count > 0;
    ends += count;
  }
  return static_cast<double>(reaching) >= kNearlyAll * static_cast<double>(rows) &&
         static_cast<double>(ends) <= kFewOfRow * static_cast<double>(rows);
}

}  // namespace

void lint_one_scale(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  size_t scaled = 0, flat = 0;
  for (const Member& m : members) {
    if (!has_row_scales(m)) continue;
    ++scaled;
    flat += has_one_scale(m);
  }
  // Where most matrices have one scale, the rows of their model may be of one size.
  if (8 * flat > scaled) return;
  for (const Member& m : members) {
    if (!has_row_scales(m) || !has_one_scale(m) || !does_each_row_reach_end(s, m)) continue;
    reporter.add("suspicious-scale", s.at(m.figures->tensor, m.name),
                 "expected scales that differ (as in {} of {} matrices), because each row has the largest "
                 "number of its format, found {:.3g} for all rows",
                 scaled - flat, scaled, std::exp2(m.scale_figures->log2_amax));
  }
}

}  // namespace twofour
