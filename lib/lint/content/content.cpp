#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "formats/module_roles.h"
#include "lib/lint/content/checks.h"

namespace twofour {
namespace {

constexpr uint64_t kFewNumbers = 2048;  ///< with fewer numbers, shares are meaningless

constexpr const char* kNoise = "every code equally often, as of noise";

/// True if the middle one of three successive magnitudes is missing. Rounding skips no magnitude, whatever
/// the density of weights is. Weights that were rounded to integers before have none of 0.5 and few of 1.
bool skips_magnitude(const std::array<float, 16>& h) {
  const auto share = [&](size_t c) { return double{h[c]} + h[c + 8]; };
  constexpr double kFrequent = 0.02, kMissing = 1.0 / 40;
  for (size_t c = 3; c < 7; ++c) {
    const double least = std::min(share(c - 1), share(c + 1));
    if (share(2) > kFrequent && share(1) > kFrequent && least > kFrequent && share(c) < kMissing * least)
      return true;
  }
  return false;
}

/// Describes four-bit codes that cannot be E2M1 codes of weights. Empty: they may be.
std::string odd_codes(const MatrixFigures& f) {
  const auto& h = f.code_shares;
  const double negative = f.negative_share, non_zero = 1 - f.zero_share;
  if (f.constant_share > 0.95 && f.zero_share < 0.95) return "one code almost throughout";
  if (h[7] + h[15] > 0.95) return "one magnitude almost throughout";
  if (non_zero * static_cast<double>(f.counted) < kFewNumbers / 2) return "";
  if (negative < 0.1 || negative > 0.9)
    return fmt::format("{:.1f} % negative codes, as of unsigned numbers", 100 * negative);
  // E2M1 has a sign and a magnitude, so the codes c and c + 8 have similar shares. In two's complement, and
  // with a zero point of 8, the codes c and 16 - c have similar shares.
  double signs = 0, complement = 0, uneven = 0;
  for (size_t c = 1; c < 8; ++c) {
    signs += std::fabs(double{h[c]} - double{h[c + 8]});
    complement += std::fabs(double{h[c]} - double{h[16 - c]});
  }
  for (const float share : h) uneven += 16 * (share - 1.0 / 16) * (share - 1.0 / 16);
  if (signs > 0.1 && complement < 0.35 * signs)
    return h[0] > h[8] ? "codes as of INT4 in two's complement" : "codes as of INT4 with a zero point of 8";
  // The limit of Pearson's statistic for noise, which has fifteen degrees of freedom: 4 standard deviations
  // above its mean. For weights the statistic is a fourteenth of their number.
  constexpr double kMostOfNoise = 37;
  if (uneven * static_cast<double>(f.counted) < kMostOfNoise) return kNoise;
  if (skips_magnitude(h)) return "a magnitude that no weight has, although those beside it are frequent";
  // If a block's largest weight becomes 6, the steps of E2M1 double from 0.5 over 1.5 to 3.0. The share of
  // 3.0 is then twice as large as with equal steps, for the density of weights. The effect is smaller for
  // scales that are powers of two, and for blocks whose largest code is 4. Pruned weights do not have this
  // density.
  if (f.full_blocks < 0.9 || f.zero_share > 0.3) return "";
  const auto count = static_cast<double>(f.counted);
  const double a = double{h[1]} + h[9], b = double{h[3]} + h[11], c = double{h[5]} + h[13];
  if (a <= 0 || b <= 0 || c <= 0 || a < b) return "";
  const double error = std::sqrt((1 / a + 1 / c + 4 / b) / count);
  if (c * a * (1 + 4 * error) < 1.2 * b * b)
    return "shares of codes as of integers with a sign, whose steps are equal";
  return "";
}

/// Describes INT4 codes that cannot be codes of weights. Weights are rounded to steps of the largest weight
/// of a group, so the zero point is the most frequent code. It is 8. If a group has its own zero point, that
/// is seldom far from 8.
std::string odd_integers(const MatrixFigures& f) {
  const auto& h = f.code_shares;
  if (f.constant_share > 0.95) return fmt::format("one code in {:.1f} %", 100 * f.constant_share);
  double uneven = 0;
  for (const float share : h) uneven += 16 * (share - 1.0 / 16) * (share - 1.0 / 16);
  constexpr double kMostOfNoise = 37;
  if (uneven * static_cast<double>(f.counted) < kMostOfNoise) return kNoise;
  const double middle = double{h[6]} + h[7] + h[8] + h[9], ends = double{h[0]} + h[1] + h[14] + h[15];
  if (ends > middle) return "codes most frequent at 0 and 15, as of INT4 in two's complement";
  return "";
}

/// Describes floats or FP8 numbers that cannot be weights.
std::string odd_numbers(const MatrixFigures& f, bool rows) {
  if (f.counted < kFewNumbers || !rows) return "";
  const double non_zero = 1 - f.zero_share;
  if (f.plan.kind == NumberKind::kInt8) {
    if (f.unevenness < 0.1) return "every integer equally often, as of noise";
    constexpr int kTernary = 3, kFewIntegers = 16;
    if (f.integers > kTernary && f.integers <= kFewIntegers)
      return fmt::format("{} different integers, as of fewer bits", f.integers);
  }
  if (f.constant_share > 0.999 && f.zero_share < 0.5 && f.log2_amax - f.log2_rms < 1e-6)
    return "one number throughout";
  if (non_zero * static_cast<double>(f.counted) < kFewNumbers) return "";
  if (f.negative_share < 0.02) return "no negative numbers, as of unsigned integers or magnitudes";
  const bool fp8 = f.plan.kind == NumberKind::kE4m3;
  // If the density of weights is flat near zero, a twentieth of the weights is below a sixteenth of the RMS.
  // Of weights that were quantized before, an eighth is zero.
  if (!fp8 && f.zero_share + non_zero * f.small_share < 0.002)
    return "no numbers near zero, as where a file's type is not that of its bytes";
  if (f.small_share > 0.75)
    return "most numbers far below the RMS, as where bytes are exchanged or a type is not that of its bytes";
  // Of four-bit weights a tenth is zero. In FP8 such weights have no density.
  if (fp8 && f.zero_share < 0.005 && f.octaves > 1.55) return "a density as of E5M2";
  if (fp8 && f.unevenness < 0.1) return "every byte equally often, as of noise";
  return "";
}

/// True for an embedding, whose rows are looked up. Its zeros and numbers are checked like those of linears.
bool is_embedding(const Member& m) {
  return m.figures->plan.is_rows && m.figures->plan.lines > 1 && m.name.find("embed_tokens") != m.name.npos;
}

class Content {
 public:
  Content(const LintInput& s, std::span<Member> members, LintReporter& reporter)
      : s_(s), members_(members), sink_(reporter) {}

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
      if (!std::isfinite(m.figures->log2_rms)) {
        check_zero_expert(m);
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

  void check_zero_expert(const Member& m) {
    const MatrixFigures& f = *m.figures;
    // Single tensors are reported with their bytes. INT4 is an exception, since its zeros are not zero bytes.
    const NumberKind kind = f.plan.kind;
    const bool is_own =
        f.expert >= 0 || kind == NumberKind::kInt8 || kind == NumberKind::kInt4 || kind == NumberKind::kE2m1;
    if (m.is_linear && is_own && f.zero_lines == f.plan.lines)
      report(m, "zero-weights", "expected some weight other than zero, found none");
  }

  bool check_numbers(const Member& m) {
    const MatrixFigures& f = *m.figures;
    if ((!m.is_linear && !is_embedding(m)) || f.counted < kFewNumbers) return false;
    const bool integers = f.plan.kind == NumberKind::kInt4;
    const bool codes = f.plan.kind == NumberKind::kE2m1 || integers;
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

  static bool is_seldom(size_t some, size_t all) { return some <= 1 || 4 * some <= all; }

  /// Reports zero rows in a router. In an embedding, reports zero rows if they are more than padding has.
  bool check_zero_rows(const Member& m) {
    const MatrixFigures& f = *m.figures;
    if (!f.plan.is_rows || f.zero_lines == 0 || f.zero_lines == f.plan.lines) return false;
    const bool router = m.is_linear && is_router(m.name);
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

  /// Reports large regions of zeros. Padding and a few dead channels are zeros as well, but neither is as
  /// large as a quarter.
  bool check_zeros(const Member& m) {
    const MatrixFigures& f = *m.figures;
    if ((!m.is_linear && !is_embedding(m)) || !f.plan.is_rows) return false;
    // Zeros that pad columns make every line torn.
    if (f.torn_lines > 0 && 2 * f.torn_lines < f.plan.lines) {
      return report(m, "zero-regions",
                    "expected weights, found zeros that begin or end within {} of {} rows, as where "
                    "a part was never written",
                    f.torn_lines, f.plan.lines);
    }
    if (is_pruned(m)) return false;
    const char* line = f.plan.k_outer ? "groups of sixteen columns" : "rows";
    const char* column = f.plan.k_outer ? "rows" : "columns";
    if (f.plan.lines >= 8 && 5 * f.zero_lines >= f.plan.lines) {
      return report(m, "zero-regions",
                    "expected weights, found zeros in {} of {} {}, from {} on {} one after the other",
                    f.zero_lines, f.plan.lines, line, f.first_zero_line, f.longest_zero_lines);
    } else if (f.columns >= 16 && 5 * f.zero_columns >= f.columns) {
      return report(m, "zero-regions", "expected weights, found zeros in {} of {} {}", f.zero_columns,
                    f.columns, column);
    }
    // Smaller regions are reported if siblings have none.
    const Zeros& kind = zeros_[m.at.kind];
    const bool alone = kind.members >= 3 && is_seldom(kind.with_lines, kind.members) &&
                       is_seldom(kind.with_columns, kind.members);
    if (!m.is_linear || !alone) return false;
    constexpr uint64_t kFewLines = 16, kFewLastLines = 4, kFewLastBytes = 4096;
    // What was never written is at the end.
    const bool last = f.first_zero_line + f.longest_zero_lines == f.plan.lines &&
                      f.longest_zero_lines >= kFewLastLines &&
                      f.longest_zero_lines * f.plan.line_bytes >= kFewLastBytes;
    if (last || f.longest_zero_lines >= std::max(kFewLines, f.plan.lines / 64)) {
      return report(m, "zero-regions",
                    "expected weights, as {} of {} like it have in all {}, found zeros in {} of {}, from "
                    "{} on {} one after the other",
                    kind.members - kind.with_lines, kind.members, line, f.zero_lines, f.plan.lines,
                    f.first_zero_line, f.longest_zero_lines);
    }
    if (f.zero_columns >= std::max(kFewLines, f.columns / 32)) {
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
      return report(m, "repeated-rows", "expected a row a token, found {} of {} equal to an earlier one",
                    f.repeated_lines, f.plan.lines);
    }
    if (!m.is_linear) return false;
    if (f.repeated_lines > 0 && f.plan.lines > 1 && is_router(m.name)) {
      return report(m, "repeated-rows", "expected a row an expert, found {} of {} equal to an earlier one",
                    f.repeated_lines, f.plan.lines);
    }
    if (f.plan.lines < 8) return false;
    if (4 * f.echo_lines > 3 * f.plan.lines) {
      return report(m, "repeated-rows",
                    "expected columns that differ, found one half, or every second column, equal to "
                    "the others in {} of {} rows that were looked at",
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
      return o.otherwise - std::max(0.0, o.as_stored) - std::max(kMore, kErrors * o.error);
    };
    const bool swizzled = gain(f.swizzled) >= gain(f.transposed);
    const MatrixFigures::Order& order = swizzled ? f.swizzled : f.transposed;
    if (gain(order) < 0) return;
    sink_.add("scale-order", s_.at(s_.modules[f.module].block_scale),
              "expected block scales in the order of rows, which explains {:.0f} % of their "
              "variance, found an order that explains {:.0f} %: {}",
              100 * std::max(0.0, order.as_stored), 100 * order.otherwise,
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
        scales.log2_amax - scales.log2_mean > kFarthest && std::isfinite(scales.log2_mean)) {
      return report(m, "suspicious-scale",
                    "expected scales of one order of magnitude, found {:.3g} beside {:.3g}, their mean",
                    std::exp2(scales.log2_amax), std::exp2(scales.log2_mean));
    }
    // In other formats, all rows may have the scale of the whole matrix.
    if (!has_float_scales(m) || m.figures->plan.kind != NumberKind::kInt4 || !is_flat(scales) ||
        8 * flat_ > scaled_)
      return false;
    return report(m, "odd-codes",
                  "expected scales that differ, as {} of {} matrices have, found {:.3g} for all",
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
  /// For one kind of matrix, the number of matrices in all layers and experts, and the number of those with
  /// zero rows or columns, and with many.
  struct Zeros {
    size_t members = 0, with_lines = 0, with_columns = 0, with_many = 0;
  };
  std::map<std::string, Zeros> zeros_;
  /// Number of matrices with float scales; of these, number with only one scale.
  size_t scaled_ = 0, flat_ = 0;
  size_t codes_ = 0, noisy_ = 0;  ///< number of matrices of codes; of these, number that look like noise
};

}  // namespace

void lint_content(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  Content(s, members, reporter).run();
}

}  // namespace twofour
