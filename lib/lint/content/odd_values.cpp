#include "lib/lint/content/odd_values.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace twofour {
namespace {

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

}  // namespace

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

std::string odd_integers(const MatrixFigures& f) {
  const auto& h = f.code_shares;
  // Pruned weights are codes near the zero point.
  const double pruned = double{h[7]} + h[8];
  if (f.constant_share > (pruned > f.constant_share - 0.01 ? 0.99 : 0.95))
    return fmt::format("one code in {:.1f} %", 100 * f.constant_share);
  double uneven = 0;
  for (const float share : h) uneven += 16 * (share - 1.0 / 16) * (share - 1.0 / 16);
  constexpr double kMostOfNoise = 37;
  if (uneven * static_cast<double>(f.counted) < kMostOfNoise) return kNoise;
  const double middle = double{h[6]} + h[7] + h[8] + h[9], ends = double{h[0]} + h[1] + h[14] + h[15];
  if (ends > middle) return "codes most frequent at 0 and 15, as of INT4 in two's complement";
  return "";
}

std::string odd_numbers(const MatrixFigures& f, bool rows) {
  if (f.counted < kFewNumbers || !rows) return "";
  const double non_zero = 1 - f.zero_share;
  if (f.plan.kind == NumberKind::kInt8) {
    if (f.unevenness < 0.1) return "every integer equally often, as of noise";
    constexpr int kTernary = 3, kFewIntegers = 16;
    if (f.integers > kTernary && f.integers <= kFewIntegers)
      return fmt::format("{} different integers, as of fewer bits", f.integers);
  }
  if (f.plan.kind == NumberKind::kE2m3) {
    constexpr double kMostOfNoise = 37;  // as for E2M1
    double uneven = 0;
    for (const float share : f.code_shares) uneven += 16 * (share - 1.0 / 16) * (share - 1.0 / 16);
    if (uneven * static_cast<double>(f.counted) < kMostOfNoise) return kNoise;
  }
  if (f.constant_share > 0.999 && f.zero_share < 0.5 && f.log2_amax - f.log2_rms < 1e-6)
    return "one number throughout";
  if (non_zero * static_cast<double>(f.counted) < kFewNumbers) return "";
  if (f.negative_share < 0.02) return "no negative numbers, as of unsigned integers or magnitudes";
  const bool fp8 = f.plan.kind == NumberKind::kE4m3;
  // If the density of weights is flat near zero, a twentieth of the weights is below a sixteenth of the RMS.
  // If weights were quantized before, an eighth is zero.
  if (!fp8 && f.zero_share + non_zero * f.small_share < 0.002)
    return "no numbers near zero, as if the file stated a wrong type";
  if (f.small_share > 0.75)
    return "most numbers far below the RMS, as if bytes were exchanged or the file stated a wrong type";
  // A tenth of four-bit weights is zero. In FP8 such weights have no density.
  if (fp8 && f.zero_share < 0.005 && f.octaves > 1.55) return "a density as of E5M2";
  if (fp8 && f.unevenness < 0.1) return "every byte equally often, as of noise";
  return "";
}

}  // namespace twofour
