#include <map>
#include <string>

#include "formats/module_roles.h"
#include "lib/lint/content/checks.h"

// A piece of a download that was never written is zeros at a border of pages. Rows may fill it exactly.

namespace twofour {
namespace {

/// True if all rows of zeros of a matrix are consecutive, fill a piece of 64 KiB or more between borders of
/// 16 KiB, and no other matrix lacks the same channels. Padding is at the end of a matrix. The numbers of
/// pruned matrices are zero elsewhere, too.
bool has_lost_page(const Member& m) {
  constexpr uint64_t kPiece = 1u << 16, kBorder = 1u << 14, kFewRows = 4;
  constexpr double kHardlyAny = 0.02;
  const MatrixFigures& f = *m.figures;
  const MatrixPlan& plan = f.plan;
  // Codes of 0 are no zeros in INT4. Block scales tell rows that are zero by design.
  if (!m.is_linear || !plan.is_rows || plan.k_outer || plan.scale_bytes > 0 ||
      plan.kind == NumberKind::kInt4 || is_router(m.name))
    return false;
  if (f.zero_lines < kFewRows || f.zero_lines != f.longest_zero_lines || m.shares_zero_rows) return false;
  const uint64_t bytes = f.zero_lines * plan.line_bytes, begin = f.first_zero_line * plan.line_bytes;
  if (bytes < kPiece || bytes % kBorder != 0 || begin % kBorder != 0 ||
      f.first_zero_line + f.zero_lines >= plan.lines)
    return false;
  const double rows = static_cast<double>(f.zero_lines) / static_cast<double>(plan.lines);
  return f.zero_columns == 0 && f.zero_share - rows < kHardlyAny;
}

}  // namespace

void lint_lost_pages(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  std::map<std::string, size_t> with_zeros;  // number of matrices of a kind that have rows of zeros
  for (const Member& m : members) with_zeros[m.at.kind] += m.figures->zero_lines > 0;
  for (const Member& m : members) {
    if (with_zeros[m.at.kind] > 1 || !has_lost_page(m)) continue;
    const MatrixFigures& f = *m.figures;
    reporter.add("zero-regions", s.at(f.tensor, m.name),
                 "expected weights other than zero, found {} bytes of zeros in rows {} to {}, as of a page "
                 "that was never written",
                 f.zero_lines * f.plan.line_bytes, f.first_zero_line, f.first_zero_line + f.zero_lines - 1);
  }
}

}  // namespace twofour
