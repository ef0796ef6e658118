#include "lib/lint/siblings/untrained.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "formats/module_roles.h"
#include "lib/lint/siblings/checks.h"

namespace twofour {
namespace {

/// True if a matrix has rows of one size, though those of the other experts differ.
bool has_flat_rows(const Member& m, const Group& experts) {
  constexpr double kFlat = 0.6;
  std::vector<double> spreads;
  for (const Member* other : experts) spreads.push_back(other->figures->row_levels.spread);
  const double spread = m.figures->row_levels.spread;
  return spread > 0 && spread < kFlat * robust_spread(std::move(spreads)).median;
}

/// How many times rows and columns differ more in size than those of a matrix of equal distributions.
struct Unevenness {
  double rows = 0, columns = 0;
};

/// Returns nullopt if the figures do not show it.
std::optional<Unevenness> unevenness_of(const Member& m) {
  constexpr uint64_t kFewLines = 16, kLeastCounted = 1u << 16;
  const MatrixFigures& f = *m.figures;
  if (f.counted < kLeastCounted || f.plan.k_outer || !f.plan.is_rows || f.zero_share > 0.1) return std::nullopt;
  const bool floats = width_of(f.plan.kind) > 1;
  const MatrixFigures* scales = f.plan.scale_bytes > 0 ? &f : m.scale_figures;
  double cell = 0, rows = 0, columns = 0;
  if (floats) {
    // The logarithm of an RMS of n normal numbers has this standard deviation times 1 / sqrt(n).
    cell = 1 / (std::sqrt(2.0) * std::log(2.0));
    rows = static_cast<double>(f.plan.lines);
    columns = static_cast<double>(f.columns);
    scales = &f;
  } else if (f.plan.scale_bytes > 0) {
    cell = f.scale_sd;
    rows = static_cast<double>(f.plan.lines);
    columns = static_cast<double>(f.plan.scale_bytes);
  } else if (scales != nullptr && scales->plan.scale_columns > 0) {
    // Of floats, the spread follows from the mean of squares, if their logarithms are normal.
    const double above = scales->log2_rms - scales->log2_mean;
    cell = scales->plan.kind == NumberKind::kE8m0 ? scales->scale_sd
                                                  : std::sqrt(std::max(0.0, above) / std::log(2.0));
    columns = static_cast<double>(scales->plan.scale_columns);
    rows = static_cast<double>(scales->counted) / columns;
  }
  if (!(cell > 0) || !(rows >= kFewLines) || !(columns >= kFewLines)) return std::nullopt;
  return Unevenness{scales->row_levels.spread / cell * std::sqrt(columns),
                    scales->column_levels.spread / cell * std::sqrt(rows)};
}

}  // namespace

Group trained_experts(const Group& experts) {
  constexpr size_t kFewExperts = 4;
  Group some;
  for (Member* m : experts) {
    if (!has_flat_rows(*m, experts)) some.push_back(m);
  }
  return some.size() >= kFewExperts && 2 * some.size() > experts.size() ? some : experts;
}

bool is_never_drawn(const Member& m, const Group& experts, double median) {
  constexpr double kFarthest = 2.5;
  if (m.log2_rms > median || m.log2_rms < median - kFarthest || m.figures->plan.k_outer) return false;
  return has_flat_rows(m, experts);
}

void lint_untrained(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  constexpr double kChance = 1.35, kUneven = 2;
  constexpr size_t kFewestTrained = 3;
  struct Kind {
    std::vector<Member*> even{};
    size_t uneven = 0, all = 0;
  };
  std::map<std::string, Kind> kinds;
  for (Member& m : members) {
    // Experts to which no token came are as they were initialized.
    if (!m.is_linear || m.at.layer < 0 || m.at.expert >= 0 || is_router(m.name)) continue;
    const auto uneven = unevenness_of(m);
    if (!uneven) continue;
    Kind& kind = kinds[m.at.kind];
    ++kind.all;
    kind.uneven += uneven->rows >= kUneven && uneven->columns >= kUneven;
    if (uneven->rows < kChance && uneven->columns < kChance) kind.even.push_back(&m);
  }
  for (const auto& [name, kind] : kinds) {
    if (kind.uneven < kFewestTrained || 4 * kind.uneven < 3 * kind.all) continue;
    for (Member* m : kind.even) {
      m->reported = true;
      reporter.add("odd-numbers", s.at(m->figures->tensor, m->name),
                   "expected rows and columns that differ in size (as in {} of {} like it), found them equal "
                   "but for chance, as of weights that were initialized and never loaded",
                   kind.uneven, kind.all);
    }
  }
}

}  // namespace twofour
