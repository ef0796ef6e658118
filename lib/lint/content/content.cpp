#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "formats/module_roles.h"
#include "lib/lint/content/checks.h"
#include "lib/lint/content/odd_values.h"
#include "lib/lint/content/scaled_groups.h"
#include "lib/lint/content/zeros_by_design.h"
#include "lib/lint/siblings/zero_partners.h"

namespace twofour {
namespace {

/// True for an embedding, whose rows are looked up. Its zeros and numbers are checked like those of linears.
bool is_embedding(const Member& m) {
  return m.figures->plan.is_rows && m.figures->plan.lines > 1 && m.name.find("embed_tokens") != m.name.npos;
}

class Content {
 public:
  Content(const LintInput& s, std::span<Member> members, LintReporter& reporter)
      : s_(s), members_(members), sink_(reporter), by_design_(s, members) {}

  void run() {
    for (const Member& m : members_) {
      Zeros& zeros = zeros_[m.at.kind];
      ++zeros.members;
      zeros.with_lines += m.figures->zero_lines > 0;
      zeros.with_columns += m.figures->zero_columns > 0;
      zeros.with_many += has_many_zeros(*m.figures);
      scaled_ += has_float_scales(m);
      flat_ += has_float_scales(m) && is_flat(*m.scale_figures);
    }
    for (const Member& m : members_) {
      const bool integers = m.figures->plan.kind == NumberKind::kInt4;
      if ((!integers && m.figures->plan.kind != NumberKind::kE2m1) || !m.is_linear) continue;
      if (m.figures->counted < kFewNumbers) continue;
      ++codes_;
      noisy_ += (integers ? odd_integers(*m.figures) : odd_codes(*m.figures)) == kNoise;
    }
    for (const Member& m : members_) {
      if (!has_bits(m)) continue;
      ++with_bits_[3];
      for (unsigned bit = 0; bit < 3; ++bit) with_bits_[bit] += m.figures->bits >> bit & 1;
    }
    for (Member& m : members_) {
      if (!std::isfinite(m.figures->log2_rms)) {
        check_zero_matrix(m);
        continue;
      }
      // If one check finds something, its findings explain the others.
      if (check_zero_rows(m) || check_zeros(m) || check_rows(m) || check_numbers(m) ||
          check_block_scales(m) || check_float_scales(m))
        continue;
      check_order(m);
    }
  }

 private:
  template <class... Args>
  bool report(const Member& m, const char* rule, fmt::format_string<Args...> text, Args&&... args) {
    sink_.add(rule, s_.at(m.figures->tensor, m.name), text, std::forward<Args>(args)...);
    return true;
  }

  /// Reports a matrix of zeros, unless it is by design.
  void check_zero_matrix(Member& m) {
    const MatrixFigures& f = *m.figures;
    if (f.zero_lines != f.plan.lines || f.plan.lines == 0) return;
    if (by_design_.covers(m)) {
      m.reported = true;
      return;
    }
    const TensorInfo& t = s_.tensors[f.tensor];
    const NumberKind kind = f.plan.kind;
    if (f.module != MatrixFigures::kNone && f.expert < 0) {
      sink_.add("zero-weights", s_.at(f.tensor), "expected a code other than zero, found none in {} blocks",
                f.plan.lines * f.plan.scale_bytes);
    } else if (m.is_linear && (f.expert >= 0 || kind == NumberKind::kInt8 || kind == NumberKind::kInt4 ||
                               kind == NumberKind::kE2m1 || kind == NumberKind::kE2m3)) {
      report(m, "zero-weights", "expected a weight other than zero, found none");
    } else if (f.expert < 0 && t.shape.size() >= 2 && t.name.ends_with("weight") &&
               (kind == NumberKind::kBf16 || kind == NumberKind::kF16 || kind == NumberKind::kE4m3)) {
      sink_.add("zero-weights", s_.at(f.tensor), "expected a number other than zero, found none");
    }
  }

  bool check_numbers(const Member& m) {
    const MatrixFigures& f = *m.figures;
    if ((!m.is_linear && !is_embedding(m)) || f.counted < kFewNumbers) return false;
    const bool integers = f.plan.kind == NumberKind::kInt4;
    const bool codes = f.plan.kind == NumberKind::kE2m1 || integers;
    constexpr size_t kFewest = 4;
    for (unsigned bit = 0; has_bits(m) && bit < 3; ++bit) {
      if ((f.bits >> bit & 1) != 0 || with_bits_[bit] < kFewest || 4 * with_bits_[bit] < 3 * with_bits_[3])
        continue;
      return report(m, "odd-numbers",
                    "expected numbers with bit {} set (as in {} of {} matrices), found none", bit,
                    with_bits_[bit], with_bits_[3]);
    }
    const std::string found = integers ? odd_integers(f)
                              : codes  ? odd_codes(f)
                                       : odd_numbers(f, f.plan.is_rows);
    if (found.empty()) return false;
    // In a toy model all matrices look like noise. In a sound model no matrix does.
    if (found == kNoise && f.counted < 16 * kFewNumbers && 2 * noisy_ > codes_) return false;
    return report(m, codes ? "odd-codes" : "odd-numbers", "expected {} of trained weights, found {}",
                  integers ? "INT4 codes"
                  : codes  ? "E2M1 codes"
                           : "numbers",
                  found);
  }

  /// True for FP8 if it is known which bits are set anywhere.
  static bool has_bits(const Member& m) {
    return m.is_linear && m.figures->plan.kind == NumberKind::kE4m3 && m.figures->counted >= 4 * kFewNumbers;
  }

  static bool is_seldom(size_t some, size_t all) { return some <= 1 || 4 * some <= all; }

  /// Reports zero rows in a router. In an embedding, reports zero rows if they are more than padding has.
  bool check_zero_rows(const Member& m) {
    const MatrixFigures& f = *m.figures;
    if (!f.plan.is_rows || f.zero_lines == 0 || f.zero_lines == f.plan.lines) return false;
    const bool router = m.is_linear && is_router(m.name);
    if (router && by_design_.padding_rows(m) >= f.zero_lines) return false;
    if (!router && !(is_embedding(m) && f.plan.lines >= 1024 && 10 * f.longest_zero_lines >= f.plan.lines))
      return false;
    return report(m, "zero-regions", "expected a row for each {}, found zeros in {} of {}, from {} on",
                  router ? "expert" : "token", f.zero_lines, f.plan.lines, f.first_zero_line);
  }

  /// True if rows or columns of zeros follow from pruning: most numbers elsewhere are zero, too, or most
  /// matrices of the kind have as many such rows and columns.
  bool is_pruned(const Member& m) const {
    const MatrixFigures& f = *m.figures;
    constexpr double kMany = 0.6;
    const auto lines = static_cast<double>(f.plan.lines), columns = static_cast<double>(f.columns),
               zero_lines = static_cast<double>(f.zero_lines),
               zero_columns = static_cast<double>(f.zero_columns), numbers = static_cast<double>(f.counted);
    const double used = lines * columns > 0 ? (1 - zero_lines / lines) * (1 - zero_columns / columns) : 0;
    const double elsewhere = used > 0 ? 1 - (1 - f.zero_share) / used : 0;
    if (numbers > 0 && elsewhere > kMany && 4 * f.longest_zero_lines < f.plan.lines) return true;
    const Zeros& kind = zeros_.at(m.at.kind);
    constexpr size_t kFewMembers = 4;
    return kind.members >= kFewMembers && 4 * kind.with_many >= 3 * kind.members && has_many_zeros(f);
  }
  /// True if a fifth of all rows or columns is zero.
  static bool has_many_zeros(const MatrixFigures& f) {
    return 5 * f.zero_lines >= f.plan.lines || (f.columns >= 16 && 5 * f.zero_columns >= f.columns);
  }

  /// True if lines of zeros were removed on purpose: they are at random places, or another matrix lacks the
  /// same channels, or the block scales of all of them are those of zeros.
  static bool are_rows_removed(const Member& m) {
    const MatrixFigures& f = *m.figures;
    // Lines that were never written have codes of 0, which are no zeros.
    if (f.plan.kind == NumberKind::kInt4) return true;
    if (m.shares_zero_rows || are_scattered(f.zero_rows, f.longest_zero_lines, f.plan.lines)) return true;
    return f.plan.scale_bytes > 0 && f.live_zero_lines == 0;
  }
  static bool are_columns_removed(const Member& m) {
    const MatrixFigures& f = *m.figures;
    return m.shares_zero_columns || are_scattered(f.zero_places, f.longest_zero_columns, f.columns);
  }

  /// Reports zeros that begin or end within lines. Zeros that pad columns make every line torn, and pruning
  /// of blocks leaves many zeros elsewhere.
  bool check_torn(const Member& m) {
    const MatrixFigures& f = *m.figures;
    constexpr double kPruned = 0.3;
    if (f.torn_lines > 0 && 2 * f.torn_lines < f.plan.lines)
      return report(m, "zero-regions",
                    "expected weights, found zeros that begin or end within {} of {} rows, as if a part was "
                    "never written",
                    f.torn_lines, f.plan.lines);
    const bool one = f.block_lines > 0 && f.end_block_line - f.first_block_line == f.block_lines;
    if (!one || 2 * f.block_lines >= f.plan.lines || f.zero_share > kPruned) return false;
    return report(m, "zero-regions", "expected weights, found a tile of zeros in {} rows from {} on",
                  f.block_lines, f.first_block_line);
  }

  /// Reports large regions of zeros. Padding and dead channels are zeros, too, but less than a quarter of a
  /// matrix.
  bool check_zeros(const Member& m) {
    const MatrixFigures& f = *m.figures;
    if ((!m.is_linear && !is_embedding(m)) || !f.plan.is_rows) return false;
    if (is_router(m.name) && f.zero_lines > 0 && by_design_.padding_rows(m) >= f.zero_lines) return false;
    if (check_torn(m)) return true;
    if (is_pruned(m)) return false;
    const bool has_rows = f.zero_lines > 0 && !are_rows_removed(m),
               has_columns = f.zero_columns > 0 && !are_columns_removed(m);
    const char* line = f.plan.k_outer ? "groups of sixteen columns" : "rows";
    const char* column = f.plan.k_outer ? "rows" : "columns";
    if (has_rows && f.plan.lines >= 8 && 5 * f.zero_lines >= f.plan.lines) {
      return report(m, "zero-regions",
                    "expected weights, found zeros in {} of {} {}, from {} on {} consecutive ones",
                    f.zero_lines, f.plan.lines, line, f.first_zero_line, f.longest_zero_lines);
    } else if (has_columns && f.columns >= 16 && 5 * f.zero_columns >= f.columns) {
      return report(m, "zero-regions", "expected weights, found zeros in {} of {} {}", f.zero_columns,
                    f.columns, column);
    }
    // Smaller regions are reported if siblings have none.
    const Zeros& kind = zeros_[m.at.kind];
    const bool alone = kind.members >= 3 && is_seldom(kind.with_lines, kind.members) &&
                       is_seldom(kind.with_columns, kind.members);
    if (!m.is_linear || !alone) return false;
    constexpr uint64_t kFewLines = 16, kFewLastLines = 4, kFewLastBytes = 4096;
    // Lines that were never written are at the end.
    const bool last = f.first_zero_line + f.longest_zero_lines == f.plan.lines &&
                      f.longest_zero_lines >= kFewLastLines &&
                      f.longest_zero_lines * f.plan.line_bytes >= kFewLastBytes;
    if (has_rows && (last || f.longest_zero_lines >= std::max(kFewLines, f.plan.lines / 64))) {
      return report(m, "zero-regions",
                    "expected weights, as {} of {} like it have in all {}, found zeros in {} of {}, from {} "
                    "on {} consecutive ones",
                    kind.members - kind.with_lines, kind.members, line, f.zero_lines, f.plan.lines,
                    f.first_zero_line, f.longest_zero_lines);
    }
    if (has_columns && f.zero_columns >= std::max(kFewLines, f.columns / 32)) {
      return report(m, "zero-regions",
                    "expected weights, as {} of {} like it have in all {}, found zeros in {} of {}",
                    kind.members - kind.with_columns, kind.members, column, f.zero_columns, f.columns);
    }
    return false;
  }

  bool check_rows(const Member& m) {
    const MatrixFigures& f = *m.figures;
    if (!f.plan.is_rows) return false;
    // Tokens that were never trained may all have one row, or that of the token before.
    const uint64_t once = f.repeated_lines - f.doubled_lines;
    if (is_embedding(m) && 4 * once >= f.plan.lines) {
      return report(m, "repeated-rows",
                    "expected a different row for each token, found {} of {} equal to an earlier one",
                    f.repeated_lines, f.plan.lines);
    }
    if (!m.is_linear) return false;
    if (f.repeated_lines > 0 && f.plan.lines > 1 && is_router(m.name)) {
      return report(m, "repeated-rows",
                    "expected a different row for each expert, found {} of {} equal to an earlier one",
                    f.repeated_lines, f.plan.lines);
    }
    if (f.plan.lines < 8) return false;
    if (4 * f.echo_lines > 3 * f.plan.lines) {
      return report(m, "repeated-rows",
                    "expected columns that differ, found one half, or every second column, equal to the "
                    "others in {} of {} compared rows",
                    f.echo_lines, f.plan.lines);
    }
    // For tensor parallelism, heads of keys and values are repeated. Each head is repeated as a whole.
    const bool kv = m.name.find(".k_proj") != m.name.npos || m.name.find(".v_proj") != m.name.npos;
    const uint64_t repeated = kv && f.repeated_lines < f.plan.lines ? f.doubled_lines : f.repeated_lines;
    if (16 * repeated < f.plan.lines) return false;
    return report(m, "repeated-rows", "expected rows that differ, found {} of {} equal to an earlier one",
                  repeated, f.plan.lines);
  }

  void check_order(const Member& m) {
    const MatrixFigures& f = *m.figures;
    if (f.plan.scale_bytes == 0) return;
    // In the written order, rows and columns explain most of the variance. In another order, a row is a
    // mixture of parts of several rows.
    const auto gain = [](const MatrixFigures::Order& o) {
      constexpr double kMore = 0.05, kErrors = 7;  // error of the difference between the two shares
      return double{o.otherwise} - std::max(0.0, double{o.as_stored}) -
             std::max(kMore, kErrors * double{o.error});
    };
    const bool swizzled = gain(f.swizzled) >= gain(f.transposed);
    const MatrixFigures::Order& order = swizzled ? f.swizzled : f.transposed;
    if (gain(order) < 0) return;
    sink_.add("scale-order", s_.at(s_.modules[f.module].block_scale),
              "expected block scales in the order of rows, which explains {:.0f} % of their "
              "variance, found an order that explains {:.0f} %: {}",
              100 * std::max(0.0, double{order.as_stored}), 100 * double{order.otherwise},
              swizzled ? "the 128x4 order of a kernel" : "transposed");
  }

  /// Checks float scales of rows, blocks or groups. Reports a single scale for all of them if other matrices
  /// have several scales. Also reports a scale that is hundreds of times larger than the others.
  bool check_float_scales(const Member& m) {
    constexpr uint64_t kSomeScales = 8;
    if (!m.is_linear || m.scale_figures == nullptr || m.scale_figures->counted < kSomeScales) return false;
    constexpr double kFarthest = 7;  // octaves
    const MatrixFigures& scales = *m.scale_figures;
    // Rows of zeros may have any scale.
    if (m.figures->zero_lines + m.figures->zero_columns == 0 &&
        scales.log2_amax - scales.log2_mean > kFarthest && std::isfinite(scales.log2_mean) &&
        !has_unused_scales(s_, m, kFarthest)) {
      return report(m, "suspicious-scale",
                    "expected scales of one order of magnitude, found {:.3g}, while their mean is {:.3g}",
                    std::exp2(scales.log2_amax), std::exp2(scales.log2_mean));
    }
    constexpr double kFarBelow = 10;  // octaves
    if (const size_t lost = count_lost_scales(s_, m, kFarBelow); lost > 0)
      return report(
          m, "suspicious-scale",
          "expected scales of one order of magnitude, found {} of {} below {:.3g}, while their mean is "
          "{:.3g} and their blocks have large codes",
          lost, scales.counted, std::exp2(scales.log2_mean - kFarBelow), std::exp2(scales.log2_mean));
    if (const size_t zeros = count_zero_scales(s_, m); zeros > 0)
      return report(m, "zero-scale", "expected scales other than 0 above codes that differ, found {} of {} 0",
                    zeros, scales.counted);
    // Where the sign of a scale carries that of the largest weight, half of them are negative.
    constexpr double kAll = 0.98;
    if (has_float_scales(m) && scales.negative_share > kAll)
      return report(m, "suspicious-scale", "expected positive scales, found {:.0f} % negative ones",
                    100 * scales.negative_share);
    if (!has_float_scales(m) || !is_flat(scales) || 8 * flat_ > scaled_) return false;
    // In FP8, all rows may have the scale of the whole matrix, by which its largest number is 448.
    constexpr double kSmall = 4;  // log2
    if (m.figures->plan.kind == NumberKind::kE4m3 && std::fabs(scales.log2_amax) < 1e-6 &&
        m.figures->log2_amax < kSmall)
      return report(m, "odd-numbers",
                    "expected numbers up to 448 under scales that fit them, found none above {:.3g} and a "
                    "scale of 1 for all, as of weights that were cast",
                    std::exp2(m.figures->log2_amax));
    if (m.figures->plan.kind != NumberKind::kInt4) return false;
    return report(m, "odd-codes",
                  "expected scales that differ (as in {} of {} matrices), found {:.3g} for all",
                  scaled_ - flat_, scaled_, std::exp2(scales.log2_amax));
  }
  static bool has_float_scales(const Member& m) {
    constexpr uint64_t kFewScales = 16;
    return m.is_linear && m.scale_figures != nullptr && m.scale_figures->plan.kind != NumberKind::kE8m0 &&
           m.scale_figures->counted >= kFewScales;
  }
  static bool is_flat(const MatrixFigures& scales) {
    return std::fabs(scales.log2_amax - scales.log2_rms) < 1e-6;
  }

  bool check_block_scales(const Member& m) {
    const MatrixFigures& f = *m.figures;
    const bool is_mx8 = m.scale_figures != nullptr && m.scale_figures->plan.kind == NumberKind::kE8m0;
    if ((f.plan.kind != NumberKind::kE2m1 && !is_mx8) || f.counted < 4 * kFewNumbers) return false;
    const MatrixFigures* scales = f.plan.scale_bytes > 0 ? &f : m.scale_figures;
    if (scales == nullptr) return false;
    constexpr double kWidest = 3;  // standard deviation in octaves; trained weights have less than 1
    if (f.plan.scale_bytes > 0 && scales->scale_sd > kWidest) {
      return report(m, "odd-codes",
                    "expected block scales within a few octaves, found a standard deviation of {:.1f}, "
                    "as of noise",
                    scales->scale_sd);
    }
    // Blocks of zeros have the smallest E8M0 scale, 2^-127.
    constexpr double kFew = 0.02;
    if (scales->plan.kind == NumberKind::kE8m0 && scales->zero_share > f.zero_share + kFew) {
      return report(m, "zero-scale",
                    "expected no scale of 2^-127 above codes other than zero, found it in {:.0f} % of "
                    "blocks, with {:.0f} % zero codes",
                    100 * scales->zero_share, 100 * f.zero_share);
    }
    // If all weights have one magnitude, they have one scale, and no code is between 0 and 6.
    const auto between =
        static_cast<double>(1 - f.code_shares[0] - f.code_shares[7] - f.code_shares[8] - f.code_shares[15]);
    if (f.plan.kind == NumberKind::kE2m1 && scales->scale_values == 1 && between > 0.05)
      return report(m, "odd-codes", "expected a scale for each block, found the same for all");
    return false;
  }

  const LintInput& s_;
  std::span<Member> members_;
  LintReporter& sink_;
  const ZerosByDesign by_design_;
  /// For one kind of matrix, the number of matrices in all layers and experts, and the number of those with
  /// zero rows or columns, and with many.
  struct Zeros {
    size_t members = 0, with_lines = 0, with_columns = 0, with_many = 0;
  };
  std::map<std::string, Zeros> zeros_;
  /// Number of matrices with float scales; of these, number with only one scale.
  size_t scaled_ = 0, flat_ = 0;
  std::array<size_t, 4> with_bits_{};  ///< number of FP8 matrices that have bit 0, 1 or 2 set; number of all
  size_t codes_ = 0, noisy_ = 0;       ///< number of matrices of codes; of these, number that look like noise
};

}  // namespace

void lint_content(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  Content(s, members, reporter).run();
}

}  // namespace twofour
