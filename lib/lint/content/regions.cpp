#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "formats/module_kinds.h"
#include "formats/module_roles.h"
#include "lib/lint/content/checks.h"
#include "lib/lint/content/scaled_groups.h"

namespace twofour {
namespace {

/// A number this many octaves above the RMS of a row, and a row or column this many above the middle one.
/// README.md of lib/lint has the margins.
constexpr double kLone = 12, kPeak = 6.64, kBlockPeak = 5;
/// The smallest step between equal parts of rows or columns: a factor of 4, of heads 6, which training may
/// scale.
constexpr double kStep = 1.98, kHeadStep = 2.58;

bool has_part(const std::string& name, std::initializer_list<const char*> parts) {
  return std::ranges::any_of(parts, [&](const char* part) { return name.find(part) != name.npos; });
}

/// True for keys and values, whose heads may be repeated as a whole.
bool may_repeat_heads(const std::string& name) { return has_part(name, {"k_proj", "v_proj", "kv"}); }

class Regions {
 public:
  Regions(const LintInput& s, std::span<Member> members, LintReporter& reporter)
      : s_(s), members_(members), sink_(reporter) {}

  void run_values() {
    for (const Member& m : members_) {
      if (!m.figures->plan.is_rows || is_router_like(m) || m.figures->zero_lines == m.figures->plan.lines)
        continue;
      check_lone(m) || check_peak(m) || (m.is_linear && (check_values(m) || check_scales(m)));
    }
  }

  void run_regions() {
    for (const Member& m : members_) {
      if (m.is_linear && is_peaked(m)) ++peaked_[m.at.kind];
      if (m.is_linear) ++kinds_[m.at.kind];
    }
    for (const Member& m : members_) {
      const bool table = is_table_name(m.name) && m.figures->plan.is_rows;
      if (!m.is_linear && !table) continue;
      if (check_foreign(m) || check_region(m) || check_repeat(m) || check_dead(m) || !m.is_linear) continue;
      check_steps(m) || check_uniform(m) || check_full(m);
    }
  }

 private:
  template <class... Args>
  bool report(const Member& m, const char* rule, fmt::format_string<Args...> text, Args&&... args) {
    sink_.add(rule, s_.at(m.figures->tensor, m.name), text, std::forward<Args>(args)...);
    return true;
  }

  static bool is_router_like(const Member& m) { return is_router(m.name) || is_shared_expert_gate(m.name); }

  /// The figures of the scales by which rows and columns are compared: of NVFP4 and floats, those of the
  /// matrix.
  static const MatrixFigures& scaled(const Member& m) {
    return m.scale_figures != nullptr ? *m.scale_figures : *m.figures;
  }

  bool check_lone(const Member& m) {
    const MatrixFigures& f = *m.figures;
    if (f.lone < kLone || !std::isfinite(f.lone)) return false;
    return report(
        m, "outlier-weight", "expected numbers near {:.3g}, the RMS of a row, found {:.6g} in row {}",
        std::exp2(double{f.row_levels.median}), std::exp2(double{f.row_levels.median} + f.lone), f.lone_line);
  }

  /// True if float scales are for blocks, so that a line of them is for many rows or columns of weights.
  static bool is_of_blocks(const Member& m) {
    constexpr uint64_t kFewest = 8;
    return m.figures->plan.kind == NumberKind::kE4m3 && m.scale_figures != nullptr &&
           m.scale_figures->plan.kind != NumberKind::kE8m0 && m.scale_figures->plan.scale_columns >= kFewest;
  }

  bool check_peak(const Member& m) {
    const MatrixFigures& f = scaled(m);
    // The rows of an embedding are as large as their tokens are frequent.
    const bool bias = m.name.find("bias") != m.name.npos;
    if (!m.is_linear && !bias) return false;
    // Rows of zeros may have any scale.
    if (m.scale_figures != nullptr && (m.figures->zero_lines > 0 || m.figures->zero_columns > 0))
      return false;
    // The few rows of a small matrix do not show how much they vary.
    constexpr uint64_t kFewLines = 16;
    if ((m.figures->plan.lines < kFewLines && !bias) || m.figures->plan.k_outer) return false;
    const double peak = bias ? kLone : is_of_blocks(m) ? kBlockPeak : kPeak;
    const char* what = m.scale_figures != nullptr || f.plan.scale_bytes > 0 ? "scales" : "weights";
    constexpr double kFar = 4;  // octaves
    for (const Levels* levels : {&f.row_levels, &f.column_levels}) {
      if (double{levels->above} < peak || (levels == &f.column_levels && f.columns == 0)) continue;
      if (m.scale_figures != nullptr && has_unused_scales(s_, m, kFar)) return false;
      return report(m, "outlier-weight",
                    "expected {} of one size, found those of {} {} {:.3g} times as large as the median", what,
                    levels == &f.row_levels ? "row" : "column", levels->largest,
                    std::exp2(double{levels->above}));
    }
    return false;
  }

  /// Reports zeros within a row of a matrix that has hardly any others. For integers, zero is the lowest
  /// code.
  bool check_zero_bytes(const Member& m) {
    const MatrixFigures& f = *m.figures;
    constexpr uint64_t kLeast = 384;
    constexpr double kHardlyAny = 0.05;
    const bool integers = f.plan.kind == NumberKind::kInt4;
    if (!m.is_linear || f.zero_bytes.bytes < kLeast) return false;
    if (integers ? means_zero(m, 0) : f.zero_share > kHardlyAny || width_of(f.plan.kind) == 1) return false;
    const uint64_t line = std::max<uint64_t>(1, f.plan.line_bytes);
    // Rows and columns of zeros have rules of their own.
    const auto width = static_cast<uint64_t>(width_of(f.plan.kind));
    if (!integers &&
        (f.zero_bytes.bytes >= line || f.zero_bytes.bytes <= f.longest_zero_columns * width + kLeast / 4))
      return false;
    return report(m, "zero-regions",
                  "expected weights other than zero, found {} bytes of zeros from row {} on",
                  f.zero_bytes.bytes, f.zero_bytes.at / line);
  }

  /// Reports text, and one pattern again and again. Integers that mean zero may be as many as they like.
  bool check_foreign(const Member& m) {
    const MatrixFigures& f = *m.figures;
    const ForeignBytes& scales = f.foreign_scales;
    // Noise ends at a border of pages. A single sector may be that of rows of zeros.
    constexpr double kPruned = 0.8;
    if (scales.bytes > 0 && (scales.is_text || (scales.bytes > Looks::kSector && f.zero_share < kPruned))) {
      sink_.add("odd-region", s_.at(s_.modules[f.module].block_scale),
                "expected block scales, found {} from row {} on that are {}", scales.bytes,
                scales.at / f.plan.scale_bytes,
                scales.is_text ? "text" : "unlike their neighbours, as of noise");
      return true;
    }
    if (check_zero_bytes(m)) return true;
    const ForeignBytes& found = f.foreign;
    if (found.bytes == 0) return false;
    const uint64_t row = found.at / std::max<uint64_t>(1, f.plan.line_bytes);
    if (found.is_text)
      return report(m, "odd-region", "expected weights, found {} bytes of text from row {} on", found.bytes,
                    row);
    if (f.plan.kind == NumberKind::kInt4 && means_zero(m, found.pattern)) return false;
    return report(m, "odd-region",
                  "expected weights that differ, found {} bytes that repeat {:04X} from row {} on",
                  found.bytes, found.pattern, row);
  }

  /// True if all four codes of a pattern may be zero points, or codes of groups whose scale is zero.
  static bool means_zero(const Member& m, uint16_t pattern) {
    constexpr unsigned kLeast = 4, kMost = 11;
    if (m.scale_figures != nullptr && m.scale_figures->zero_share > 0) return true;
    for (int shift = 0; shift < 16; shift += 4) {
      const unsigned code = pattern >> shift & 15u;
      if (code < kLeast || code > kMost) return false;
    }
    return true;
  }

  bool check_region(const Member& m) {
    const OddRegion& r = m.figures->region;
    if (m.figures->unsigned_columns > 0 && m.is_linear) {
      const uint32_t codes = m.figures->plan.kind == NumberKind::kE2m1 ? 2 : 1;
      return report(m, "odd-region",
                    "expected negative numbers, found none in {} columns from {} on, in rows from {} on",
                    codes * m.figures->unsigned_columns, codes * m.figures->first_unsigned,
                    m.figures->unsigned_line);
    }
    // In a toy model, few numbers of several matrices may look alike.
    switch (r.kind) {
      case RegionKind::kNone:
        return false;
      case RegionKind::kNoise:
        return report(m, "odd-region",
                      "expected codes of weights, found every code equally often, as of noise, in {} rows "
                      "from {} on",
                      r.lines, r.first_line);
      case RegionKind::kSigns:
        return report(m, "odd-region",
                      "expected {:.0f} % negative numbers, as in other rows, found {:.0f} % in {} rows from "
                      "{} on",
                      100 * r.usual, 100 * r.found, r.lines, r.first_line);
      case RegionKind::kCodes:
        return report(m, "odd-region",
                      "expected codes as in other rows, found different ones in {} rows from {} on, as of "
                      "text or another format",
                      r.lines, r.first_line);
      case RegionKind::kBits:
        return report(
            m, "odd-region",
            "expected numbers that differ in bit {}, as in other rows, found it the same in all of {} rows "
            "from {} on",
            r.bit, r.lines, r.first_line);
      case RegionKind::kBlocks:
        return report(m, "odd-region",
                      "expected a code of 6 in {:.0f} % of blocks, as in other rows, found it in {:.0f} % in "
                      "{} rows from {} on: codes and scales that do not belong together",
                      100 * r.usual, 100 * r.found, r.lines, r.first_line);
    }
    return false;
  }

  /// True if bytes that seem to be twice in a matrix are, and are not padding. Rows of a table that no token
  /// uses may all be one row, or the last ones may be those of other tokens.
  bool is_copied(const Member& m) const {
    constexpr uint64_t kMost = 1u << 16, kFewNumbers = 64;
    const Pieces::Repeat& r = m.figures->repeat;
    const MatrixPlan& plan = m.figures->plan;
    const uint64_t all = plan.lines * plan.line_bytes,
                   begin = static_cast<uint64_t>(std::max<int64_t>(m.figures->expert, 0)) * all;
    const uint64_t count = std::min({kMost, r.bytes, all - std::min(all, r.at)});
    std::vector<uint8_t> here(count), there(count);
    s_.read(m.figures->tensor, begin + r.at, here);
    s_.read(m.figures->tensor, begin + r.from, there);
    // The last piece may have been cut.
    const uint64_t sure = count > Pieces::kPiece ? count - Pieces::kPiece : count;
    if (!std::equal(here.begin(), here.begin() + static_cast<std::ptrdiff_t>(sure), there.begin()))
      return false;
    if (static_cast<uint64_t>(std::ranges::count_if(here, [](uint8_t b) { return (b & 0x7F) != 0; })) <
        kFewNumbers)
      return false;
    const uint64_t line = std::max<uint64_t>(1, plan.line_bytes);
    if ((!is_table_name(m.name) && !is_head(m.name)) || (r.at - r.from) % line != 0) return true;
    if (r.at + r.bytes + line >= all) return false;
    return count < 2 * line || !std::equal(here.begin(), here.begin() + static_cast<std::ptrdiff_t>(line),
                                           here.begin() + static_cast<std::ptrdiff_t>(line));
  }

  /// Reports bytes that are twice in a matrix. Single rows may be equal.
  bool check_repeat(const Member& m) {
    constexpr uint64_t kFewBytes = 4096, kFewRows = 2, kPage = 3072;
    const MatrixFigures& f = *m.figures;
    // Bytes at another place of a row are no repeated row. GPTQ has eight columns in a line.
    const uint64_t line = std::max<uint64_t>(1, f.plan.line_bytes), apart = f.repeat.at - f.repeat.from;
    const bool integers = f.plan.kind == NumberKind::kInt4, across = apart % line != 0 || integers;
    const uint64_t least = across ? kPage : std::max(kFewBytes, kFewRows * line + Pieces::kPiece);
    if (!m.is_linear && !is_table_name(m.name)) return false;
    if (f.repeat.bytes < least || (may_repeat_heads(m.name) && (integers || !across))) return false;
    if (!is_copied(m)) return false;
    return report(
        m, "odd-region",
        "expected bytes that differ, found {} from row {} on equal to those from row {} on, as of a "
        "page that was written twice",
        f.repeat.bytes, f.repeat.at / f.plan.line_bytes, f.repeat.from / f.plan.line_bytes);
  }

  bool check_dead(const Member& m) {
    const MatrixFigures& f = *m.figures;
    if (f.dead_run == 0) return false;
    // Rows of zeros may be channels that other matrices lack, too.
    const uint64_t row = f.plan.scale_bytes;
    if (f.dead_first % row == 0 && f.dead_run % row == 0 && m.shares_zero_rows) return false;
    return report(m, "zero-regions",
                  "expected codes other than zero under scales as large as those of other blocks, found {} "
                  "consecutive blocks of zeros from row {} on",
                  f.dead_run, f.dead_first / f.plan.scale_bytes);
  }

  /// Compares halves, quarters and eighths. Rows of fused projections differ by nature.
  bool check_steps(const Member& m) {
    if (is_router_like(m) || m.figures->plan.k_outer) return false;
    const bool fused = has_part(m.name, {"qkv", "query_key_value", "in_proj", "c_attn", "gate_up", "kv_a",
                                         "w13", "x_proj", "dt_proj", "conv", "fc1", "_ba"});
    if (fused) return false;
    constexpr double kFar = 4;  // octaves
    const bool heads = has_part(m.name, {"attn", "attention", "q_proj", "k_proj", "v_proj", "o_proj"});
    const MatrixFigures& f = scaled(m);
    for (const Levels* levels : {&f.row_levels, &f.column_levels}) {
      if (std::fabs(double{levels->step}) < (heads ? kHeadStep : kStep)) continue;
      if (m.scale_figures != nullptr && has_unused_scales(s_, m, kFar)) return false;
      const char* of = m.scale_figures != nullptr || f.plan.scale_bytes > 0 ? "scales of " : "";
      const char* line = levels == &f.row_levels ? "rows" : "columns";
      return report(m, "uneven-parts",
                    "expected {}{} of one size, found those from {}/{} of them on {:.3g} times as large as "
                    "those before",
                    of, line, levels->part, levels->parts, std::exp2(double{levels->step}));
    }
    return false;
  }

  /// True if a few weights are far larger than the others, as in trained models and in normal distributions.
  static bool is_peaked(const Member& m) {
    constexpr double kPeaked = 1.15;
    return m.figures->log2_amax - m.figures->log2_rms > kPeaked;
  }

  /// Reports values that no training gives.
  bool check_values(const Member& m) {
    const MatrixFigures& f = *m.figures;
    if (f.counted < kFewWeights) return false;
    if (f.is_grid && f.log2_amax >= 1)
      return report(
          m, "odd-numbers",
          "expected weights, found only numbers that four-bit codes have, up to {:g}, without a scale",
          std::exp2(f.log2_amax));
    const auto used =
        static_cast<uint64_t>(std::llround((1 - f.zero_share) * static_cast<double>(f.counted)));
    if (f.plan.lines == f.columns && used == f.plan.lines && f.zero_lines == 0 && f.zero_columns == 0)
      return report(m, "odd-numbers",
                    "expected weights, found one number in each row and column, as of an identity matrix");
    return false;
  }

  /// Reports weights as layers are initialized with, if others of the kind were trained.
  bool check_uniform(const Member& m) {
    const MatrixFigures& f = *m.figures;
    // Experts that no token came to are as they were initialized.
    if (f.counted < kFewWeights || is_router_like(m) || m.at.expert >= 0) return false;
    // The largest number of a uniform distribution is sqrt(3) times the RMS.
    constexpr double kUniform = 0.7925, kNear = 0.05;
    constexpr size_t kFewSiblings = 3;
    const size_t peaked = peaked_[m.at.kind], all = kinds_[m.at.kind];
    if (peaked >= kFewSiblings && 4 * peaked >= 3 * all &&
        std::fabs(f.log2_amax - f.log2_rms - kUniform) < kNear)
      return report(m, "odd-numbers",
                    "expected few large weights (as in {} of {} like it), found a uniform distribution, as "
                    "of weights that were never loaded",
                    peaked, all);
    return false;
  }

  /// Reports FP8 that was cut off. The largest weight of a scale becomes 448, seldom several.
  bool check_full(const Member& m) {
    const MatrixFigures& f = *m.figures;
    constexpr double kFew = 0.01, kTimes = 3, kOfScale = 8;
    if (f.plan.kind != NumberKind::kE4m3 || f.full_share < kFew || f.full_share < kTimes * f.next_share)
      return false;
    const auto scales = static_cast<double>(m.scale_figures != nullptr ? m.scale_figures->counted : 1);
    if (f.full_share * static_cast<double>(f.counted) < kOfScale * scales) return false;
    return report(m, "cut-off-weights", "expected few numbers of 448, found {:.1f} %, beside {:.1f} % of 416",
                  100 * f.full_share, 100 * f.next_share);
  }

  bool check_scales(const Member& m) {
    const MatrixFigures& f = *m.figures;
    constexpr int kFewValues = 8;
    constexpr double kWide = 0.25, kAll = 0.98, kFew = 0.6, kMany = 0.25;
    constexpr uint64_t kFewPairs = 64;
    if (f.plan.scale_bytes == 0 || f.scale_values < kFewValues || f.scale_sd < kWide) return false;
    const auto pairs = static_cast<double>(f.scale_pairs);
    const LintPlace at = s_.at(s_.modules[f.module].block_scale);
    if (f.scale_pairs >= kFewPairs && static_cast<double>(f.equal_pairs) > kAll * pairs &&
        static_cast<double>(f.equal_between) < kFew * pairs) {
      sink_.add("copied-scale", at,
                "expected a scale for each block of 16, found pairs of equal scales, as of blocks of 32");
      return true;
    }
    if (may_repeat_heads(m.name)) return false;
    constexpr uint64_t kFewBytes = 2048, kFewRows = 2;
    if (f.scale_repeat.bytes >= std::max(kFewBytes, (kFewRows + 1) * f.plan.scale_bytes)) {
      sink_.add("copied-scale", at,
                "expected scales that differ, found {} from row {} on equal to those from row {} on",
                f.scale_repeat.bytes, f.scale_repeat.at / f.plan.scale_bytes,
                f.scale_repeat.from / f.plan.scale_bytes);
      return true;
    }
    if (f.repeated_scales < kMany) return false;
    sink_.add("copied-scale", at,
              "expected scales that differ, found {:.0f} % equal to earlier ones in pieces of 256",
              100 * f.repeated_scales);
    return true;
  }

  const LintInput& s_;
  std::span<Member> members_;
  LintReporter& sink_;
  static constexpr uint64_t kFewWeights = 1u << 14;
  std::map<std::string, size_t> kinds_, peaked_;  ///< number of matrices of each kind; of these, peaked ones
};

}  // namespace

void lint_values(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  Regions(s, members, reporter).run_values();
}

void lint_regions(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  Regions(s, members, reporter).run_regions();
}

}  // namespace twofour
