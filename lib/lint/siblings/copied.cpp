#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <vector>

#include "formats/naming.h"
#include "lib/lint/bytes/checks.h"
#include "lib/lint/siblings/checks.h"

namespace twofour {
namespace {

/// The largest numbers for which the scales of a matrix are made. In NVFP4 it is 6 * 448, 6 * 256 with
/// four-over-six, and 448 if activations are FP8. In FP8 it is 448. Numbers above 432 / 448 of it are rounded
/// to it.
constexpr double kFullNvfp4[] = {2688, 1536, 448}, kFullE4m3 = 448, kRounded = 432.0 / 448;
constexpr size_t kFewest = 4;
constexpr uint64_t kFewWeights = 2048;  ///< with fewer weights, the largest one may be anything
constexpr uint64_t kFewScales = 4;
/// Numbers of bytes of scales that two matrices do not share by chance.
constexpr uint64_t kFewE4m3 = 64, kFewExponents = 256, kFewFloats = 16;

bool is_nvfp4(const Member& m) { return m.figures->module != MatrixFigures::kNone; }

/// True if the largest number of a matrix is the full scale of its single scale, as if the scale were made
/// for it.
bool is_full(const Member& m) {
  // If all weights are near their maximum, as in a uniform distribution, matrices have equal scales without a
  // copy.
  constexpr double kPeaked = 1.3;
  if (m.figures->log2_amax - m.figures->log2_rms <= kPeaked) return false;
  const double amax = std::exp2(m.figures->log2_amax);
  const auto reaches = [&](double full) { return amax >= full * kRounded && amax <= full; };
  return is_nvfp4(m) ? std::ranges::any_of(kFullNvfp4, reaches) : reaches(kFullE4m3);
}

class CopiedScales {
 public:
  CopiedScales(const LintInput& s, std::span<Member> members, LintReporter& reporter)
      : s_(s), members_(members), sink_(reporter) {}

  void run() {
    check_single();
    check_blocks();
    check_lines();
    check_constant();
  }

 private:
  template <class... Args>
  void report(size_t tensor, fmt::format_string<Args...> text, Args&&... args) {
    sink_.add("copied-scale", s_.at(tensor), text, std::forward<Args>(args)...);
  }

  uint64_t count_of(size_t tensor) const {
    uint64_t count = 1;
    for (const int64_t n : s_.tensors[tensor].shape) count *= static_cast<uint64_t>(std::max<int64_t>(n, 0));
    return count;
  }

  bool has_single_scale(const Member& m) const {
    if (m.scale == MatrixFigures::kNone || !std::isfinite(m.log2_rms) || m.numbers < kFewWeights)
      return false;
    if (is_nvfp4(m)) return true;
    return m.figures->plan.kind == NumberKind::kE4m3 && count_of(m.scale) == 1;
  }

  /// Returns the unit of a matrix. Linears that engines fuse share a scale, so they are one unit. A unit
  /// reaches full scale if one of its members does.
  static std::string unit_of(const Member& m) {
    const auto group = fused_group(m.module);
    return group ? fmt::format("{} {}", group->first, group->second) : m.name;
  }

  /// Checks units that share a scale. Only the unit with the largest weight reaches full scale, and few
  /// others come near. If all units do, the scale was made for one of them and copied to the others.
  void check_single() {
    struct Scaled {
      Member* member;
      std::string unit;
    };
    std::vector<Scaled> scaled;
    for (Member& m : members_) {
      if (has_single_scale(m)) scaled.push_back({&m, unit_of(m)});
    }
    std::map<std::tuple<bool, int64_t, std::string>, std::vector<const Scaled*>> groups;
    for (const Scaled& x : scaled) {
      constexpr int64_t kAllLayers = -1;
      const SiblingName& at = x.member->at;
      const bool nvfp4 = is_nvfp4(*x.member);
      groups[{nvfp4, kAllLayers, ""}].push_back(&x);
      groups[{nvfp4, kAllLayers, at.kind}].push_back(&x);
      if (at.expert < 0) continue;
      groups[{nvfp4, at.layer, at.kind.substr(0, at.kind.find("experts"))}].push_back(&x);
      groups[{nvfp4, at.layer, at.kind}].push_back(&x);
    }
    for (const auto& [key, group] : groups) {
      std::map<double, std::vector<const Scaled*>> by_scale;
      for (const Scaled* x : group) by_scale[x->member->log2_scale].push_back(x);
      for (const auto& [scale, same] : by_scale) {
        if (2 * same.size() <= group.size()) continue;
        std::map<std::string_view, bool> units;
        std::set<uint64_t> contents;  // equal matrices have equal scales
        std::set<size_t> tensors;     // a stack may hold only one scale
        bool is_known = true;
        for (const Scaled* x : same) {
          const Member* m = x->member;
          bool& full = units[x->unit];
          full = full || is_full(*m);
          contents.insert(m->figures->ordered);
          tensors.insert(m->scale);
          is_known = is_known && m->reported;
        }
        const auto full =
            static_cast<size_t>(std::ranges::count_if(units, [](const auto& unit) { return unit.second; }));
        if (is_known || 20 * full < 19 * units.size()) continue;
        if (std::min({full, contents.size(), tensors.size()}) < kFewest) continue;
        for (const Scaled* x : same) x->member->reported = true;
        report(same[0]->member->scale,
               "expected a separate scale for each of {} matrices, found the same for {} that differ and "
               "fill its range",
               group.size(), same.size());
      }
    }
  }

  /// True if float scales are powers of two. A few powers of two may be equal by chance.
  bool are_powers_of_two(size_t tensor) const {
    const std::vector<float> values = read_scales(s_, tensor);
    return !values.empty() && values.size() < kFewExponents && std::ranges::all_of(values, [](float x) {
      int exponent = 0;
      return std::frexp(x, &exponent) == 0.5f;
    });
  }

  /// Reports block scales that two matrices share although their codes differ.
  void check_blocks() {
    std::map<std::pair<uint64_t, uint64_t>, std::vector<Member*>> equal;
    for (Member& m : members_) {
      const MatrixFigures* scales = is_nvfp4(m) ? m.figures : m.scale_figures;
      if (m.reported || !m.is_linear || scales == nullptr) continue;
      const MatrixPlan& plan = scales->plan;
      const uint64_t bytes = plan.lines * (is_nvfp4(m) ? plan.scale_bytes : plan.line_bytes);
      // Scales with few different values, such as powers of two, may be equal by chance.
      const bool varied = is_nvfp4(m) || plan.kind == NumberKind::kE8m0
                              ? scales->scale_values >= 4 && scales->scale_sd > 0.25
                              : scales->log2_amax - scales->log2_rms > 0.01;
      const uint64_t least = is_nvfp4(m)                      ? kFewE4m3
                             : plan.kind == NumberKind::kE8m0 ? kFewExponents
                                                              : kFewFloats;
      const uint64_t stored =
          is_nvfp4(m) ? bytes : std::min(bytes, s_.tensors[m.scale].bytes() / plan.matrices);
      if (!varied || stored < least) continue;
      equal[{is_nvfp4(m) ? m.figures->scales : scales->ordered, stored}].push_back(&m);
    }
    for (const auto& [key, same] : equal) {
      for (size_t i = 1; i < same.size(); ++i) {
        const Member &first = *same[0], &m = *same[i];
        const bool own = is_nvfp4(m) ? m.figures->codes != first.figures->codes
                                     : m.figures->ordered != first.figures->ordered && m.scale != first.scale;
        if (!own || (!is_nvfp4(m) && are_powers_of_two(m.scale))) continue;
        same[0]->reported = same[i]->reported = true;  // either may have lost its own
        const size_t tensor = is_nvfp4(m) ? s_.modules[m.figures->module].block_scale : m.scale;
        report(tensor, "expected other scales, found those of {} above other weights", first.name);
      }
    }
  }

  /// Reports matrices in which all rows have the block scales of one row, or all blocks of a row have one
  /// scale.
  void check_lines() {
    constexpr uint64_t kFewLines = 16, kFewColumns = 8;
    constexpr int kFewValues = 8;  // with as few values, scales such as powers of two repeat by chance
    for (Member& m : members_) {
      const MatrixFigures& f = *m.figures;
      if (m.reported || !m.is_linear || f.plan.scale_bytes < kFewColumns || f.plan.lines < kFewLines)
        continue;
      const bool all = f.same_scale_lines + 1 == f.plan.lines && f.scale_values > 2;
      const bool same = all || (2 * f.same_scale_lines > f.plan.lines && f.scale_values >= kFewValues);
      // If the largest code of each block is 6, neighbouring blocks have equal scales only by chance.
      const auto between =
          static_cast<double>(1 - f.code_shares[0] - f.code_shares[7] - f.code_shares[8] - f.code_shares[15]);
      const bool flat = 2 * f.flat_scale_lines > f.plan.lines && f.full_blocks > 0.9 && between > 0.05;
      if (!same && !flat) continue;
      m.reported = true;
      report(s_.modules[f.module].block_scale, "{}",
             same
                 ? fmt::format("expected rows of scales that differ, found {} of {} equal to the one before",
                               f.same_scale_lines, f.plan.lines)
                 : fmt::format("expected a scale for each block, found one for all of a row in {} of {} rows",
                               f.flat_scale_lines, f.plan.lines));
    }
  }

  /// True if nearly every row has the number 448, and few of it. A row's own scale gives it one or two. If
  /// one scale for all rows cuts weights off, rows have many or none: of a mean of 2.5, one in twelve has
  /// none by chance.
  bool does_each_row_reach_end(const Member& m) const {
    constexpr uint64_t kMostRows = 512;
    constexpr double kNearlyAll = 0.95, kFewOfRow = 2.5;
    const MatrixPlan& plan = m.figures->plan;
    const uint64_t rows = std::min(kMostRows, plan.lines),
                   begin = static_cast<uint64_t>(std::max<int64_t>(m.figures->expert, 0)) * plan.lines;
    std::vector<uint8_t> row(plan.line_bytes);
    uint64_t reaching = 0, ends = 0;
    for (uint64_t i = 0; i < rows; ++i) {
      s_.read(m.figures->tensor, (begin + i * plan.lines / rows) * plan.line_bytes, row);
      const auto count =
          static_cast<uint64_t>(std::ranges::count_if(row, [](uint8_t b) { return (b & 0x7F) == 0x7E; }));
      reaching += count > 0;
      ends += count;
    }
    return static_cast<double>(reaching) >= kNearlyAll * static_cast<double>(rows) &&
           static_cast<double>(ends) <= kFewOfRow * static_cast<double>(rows);
  }

  /// Reports FP8 in which all blocks or rows have one scale, although the largest number of each is 448, as
  /// with a scale of its own.
  void check_constant() {
    for (Member& m : members_) {
      if (m.reported || !m.is_linear || m.figures->plan.kind != NumberKind::kE4m3) continue;
      if (m.scale_figures == nullptr || m.figures->counted < kFewWeights) continue;
      const auto scales = static_cast<double>(count_of(m.scale) / m.scale_figures->plan.matrices);
      const double full = m.figures->full_share * static_cast<double>(m.numbers);
      // The RMS of thousands of equal scales is inexact. Neighbouring numbers in half precision differ by
      // more.
      constexpr double kSame = 1e-4;
      const bool constant = m.scale_figures->log2_amax - m.scale_figures->log2_rms < kSame;
      const bool some = m.figures->full_share * static_cast<double>(m.figures->counted) >= 3;
      if (scales < kFewScales || !constant || !some || full < 0.75 * scales) continue;
      const MatrixPlan& plan = m.figures->plan;
      const bool of_rows = plan.is_rows && !plan.k_outer && static_cast<uint64_t>(scales) == plan.lines;
      if (of_rows && !does_each_row_reach_end(m)) continue;
      m.reported = true;
      report(m.scale,
             "expected scales of rows or blocks that differ, found {:.4g} for all {}, and weights "
             "at 448 in most",
             std::exp2(m.log2_scale), scales);
    }
  }

  const LintInput& s_;
  std::span<Member> members_;
  LintReporter& sink_;
};

}  // namespace

void lint_copied_scales(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  CopiedScales(s, members, reporter).run();
}

}  // namespace twofour
