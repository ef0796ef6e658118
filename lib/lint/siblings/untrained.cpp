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
  const auto spread_of_rows = [](const Member& one) {
    return double{(one.scale_figures != nullptr ? one.scale_figures : one.figures)->row_levels.spread};
  };
  std::vector<double> spreads;
  for (const Member* other : experts) spreads.push_back(spread_of_rows(*other));
  const double spread = spread_of_rows(m);
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
  if (f.counted < kLeastCounted || f.plan.k_outer || !f.plan.is_rows || f.zero_share > 0.1)
    return std::nullopt;
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
    // For floats, the spread follows from the mean of squares, if their logarithms are normal.
    const double above = scales->log2_rms - scales->log2_mean;
    cell = scales->plan.kind == NumberKind::kE8m0 ? scales->scale_sd
                                                  : std::sqrt(std::max(0.0, above) / std::log(2.0));
    columns = static_cast<double>(scales->plan.scale_columns);
    rows = static_cast<double>(scales->counted) / columns;
  }
  if (!(cell > 0) || !(rows >= kFewLines) || !(columns >= kFewLines)) return std::nullopt;
  return Unevenness{double{scales->row_levels.spread} / cell * std::sqrt(columns),
                    double{scales->column_levels.spread} / cell * std::sqrt(rows)};
}

/// Returns the spread of float scales in octaves, which follows from the mean of squares if their logarithms
/// are normal, and that of the largest of n normal numbers, n being the numbers of a scale.
struct ScaleSpread {
  double own = 0, normal = 0;
};
std::optional<ScaleSpread> scale_spread_of(const Member& m) {
  constexpr double kLeastScales = 128, kLeastNumbers = 64, kPi = 3.14159265358979;
  const MatrixFigures* scales = m.scale_figures;
  if (scales == nullptr || scales->plan.kind == NumberKind::kE8m0 || m.figures->zero_share > 0.3) return {};
  const auto count = static_cast<double>(scales->counted), n = static_cast<double>(m.numbers) / count;
  if (count < kLeastScales || n < kLeastNumbers) return {};
  const double a = std::sqrt(2 * std::log(n)),
               mean = a - (std::log(std::log(n)) + std::log(4 * kPi)) / (2 * a);
  const double above = std::max(0.0, scales->log2_rms - scales->log2_mean);
  return ScaleSpread{std::sqrt(above / std::log(2.0)), 1.2825 / a / mean / std::log(2.0)};
}

/// Reports matrices whose scales differ by chance alone, if those of other layers differ far more.
void check_scale_spread(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  constexpr double kLeast = 0.5, kChance = 1.05, kMore = 1.7;
  constexpr size_t kFewestTrained = 3;
  std::map<std::string, std::vector<std::pair<Member*, ScaleSpread>>> kinds;
  for (Member& m : members) {
    if (!m.is_linear || m.reported || m.at.layer < 0 || m.at.expert >= 0) continue;
    if (const auto spread = scale_spread_of(m)) kinds[m.at.kind].push_back({&m, *spread});
  }
  for (auto& [name, all] : kinds) {
    for (const auto& [m, spread] : all) {
      if (spread.own < kLeast * spread.normal || spread.own > kChance * spread.normal) continue;
      const auto more = static_cast<size_t>(std::ranges::count_if(
          all, [own = spread.own](const auto& other) { return other.second.own >= kMore * own; }));
      if (more < kFewestTrained || 4 * more < 3 * (all.size() - 1)) continue;
      m->reported = true;
      reporter.add(
          "odd-numbers", s.at(m->figures->tensor, m->name),
          "expected scales that differ (as in {} of {} like it), found them equal but for chance, as "
          "of weights that were initialized and never loaded",
          more, all.size());
    }
  }
}

/// Reports a matrix of NVFP4 with many blocks whose largest code is not 6, if nearly no block of its siblings
/// is so: its codes and scales do not belong together.
void check_full_blocks(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  constexpr double kAll = 0.995, kFew = 0.95;
  constexpr double kEvenRows = 1;  // dead rows have scales too small to be exact
  constexpr size_t kFewestFull = 5;
  std::map<std::string, std::pair<size_t, std::vector<Member*>>> kinds;  // full ones, and others
  for (Member& m : members) {
    if (!m.is_linear || m.reported || m.figures->plan.scale_bytes == 0 || m.figures->zero_share > 0.3)
      continue;
    auto& [full, others] = kinds[m.at.kind];
    if (m.figures->full_blocks >= kAll) {
      ++full;
    } else {
      others.push_back(&m);
    }
  }
  for (const auto& [name, kind] : kinds) {
    const auto& [full, others] = kind;
    if (others.size() != 1 || full < kFewestFull || others[0]->figures->full_blocks >= kFew ||
        others[0]->figures->row_levels.spread > kEvenRows)
      continue;
    others[0]->reported = true;
    reporter.add(
        "odd-codes", s.at(others[0]->figures->tensor, others[0]->name),
        "expected a code of 6 in each block (as in {} like it), found it in {:.1f} %, as of codes that "
        "do not belong to their scales",
        full, 100 * others[0]->figures->full_blocks);
  }
}

/// Returns the mean logarithm of all block scales times the global scale. NaN if there are no block scales.
double mean_scale_of(const Member& m) {
  return m.figures->plan.scale_bytes > 0 ? m.figures->scale_mean + m.log2_scale : std::nan("");
}

}  // namespace

bool has_usual_scales(const Member& m, const Group& experts, double farthest) {
  std::vector<double> means;
  for (const Member* other : experts) means.push_back(mean_scale_of(*other));
  if (!std::ranges::all_of(means, [](double x) { return std::isfinite(x); })) return false;
  return std::fabs(mean_scale_of(m) - robust_spread(std::move(means)).median) < farthest;
}

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
  Kind every;  // all linears
  for (Member& m : members) {
    // Experts to which no token came are as they were initialized.
    if (!m.is_linear || m.at.layer < 0 || m.at.expert >= 0 || is_router(m.name)) continue;
    const auto uneven = unevenness_of(m);
    if (!uneven) continue;
    Kind& kind = kinds[m.at.kind];
    ++kind.all;
    const bool is_uneven = uneven->rows >= kUneven && uneven->columns >= kUneven;
    kind.uneven += is_uneven;
    ++every.all;
    every.uneven += is_uneven;
    if (uneven->rows < kChance && uneven->columns < kChance) kind.even.push_back(&m);
  }
  for (const auto& [name, kind] : kinds) {
    // In a model of few layers, other kinds show that it was trained, too.
    constexpr size_t kFewestLinears = 8;
    const bool is_small = every.uneven >= kFewestLinears && 8 * every.uneven >= 7 * every.all &&
                          kind.uneven > 0 && kind.uneven + 1 == kind.all;
    if (!is_small && (kind.uneven < kFewestTrained || 4 * kind.uneven < 3 * kind.all)) continue;
    for (Member* m : kind.even) {
      m->reported = true;
      reporter.add("odd-numbers", s.at(m->figures->tensor, m->name),
                   "expected rows and columns that differ in size (as in {} of {} like it), found them equal "
                   "but for chance, as of weights that were initialized and never loaded",
                   kind.uneven, kind.all);
    }
  }
  check_scale_spread(s, members, reporter);
  check_full_blocks(s, members, reporter);
}

}  // namespace twofour
