#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/half.h"
#include "formats/weight_dialect.h"
#include "lib/lint/content/checks.h"

// A scale is made from the largest weight of its block, or from the range of its group. Blocks with a large
// one have small codes elsewhere, so that scales and RMS of codes are correlated negatively: about -0.65 in
// NVFP4, -0.85 in MXFP4, -0.95 in FP8 blocks and -0.5 in FP8 rows. If scales are those of other blocks, the
// correlation is zero. Neighbours are compared, since rows and columns differ in size.

namespace twofour {
namespace {

constexpr int kPlaces = 4;

/// The correlation of some pairs of numbers.
class Correlation {
 public:
  void add(double x, double y) {
    ++count_;
    x_ += x;
    y_ += y;
    xx_ += x * x;
    yy_ += y * y;
    xy_ += x * y;
  }
  size_t count() const { return count_; }
  /// NaN: all scales are equal.
  double value() const {
    const auto n = static_cast<double>(count_);
    const double spread = (xx_ - x_ * x_ / n) * (yy_ - y_ * y_ / n);
    return spread > 0 ? (xy_ - x_ * y_ / n) / std::sqrt(spread) : std::nan("");
  }

 private:
  size_t count_ = 0;
  double x_ = 0, y_ = 0, xx_ = 0, yy_ = 0, xy_ = 0;
};

/// Blocks of one line: log2 of the scale, and log2 of the RMS of the codes. NaN: one of them is zero.
struct Block {
  double scale, codes;
};

void add_neighbours(const std::vector<Block>& blocks, Correlation& sums) {
  for (size_t i = 1; i < blocks.size(); ++i) {
    const double x = blocks[i].scale - blocks[i - 1].scale, y = blocks[i].codes - blocks[i - 1].codes;
    if (std::isfinite(x) && std::isfinite(y)) sums.add(x, y);
  }
}

double octaves_of(double energy) { return energy > 0 ? std::log2(energy) / 2 : std::nan(""); }

/// The numbers of all bytes of codes and scales, in tables because logarithms take time.
struct Tables {
  std::array<uint16_t, 256> e2m1{};   ///< sum of the squares of two codes, in halves
  std::array<float, 256> e4m3{};      ///< squares
  std::array<double, 256> octaves{};  ///< log2 of a block scale; NaN: it is too small to be exact
  std::vector<double> energies{};     ///< octaves_of() the energy of a block of E2M1
};
const Tables& tables() {
  static const Tables all = [] {
    constexpr uint8_t kTiny = 0x21;
    constexpr size_t kMostEnergy = 32 * 144;
    Tables t;
    for (unsigned b = 0; b < 256; ++b) {
      const int low = e2m1_halves(b & 7), high = e2m1_halves(b >> 4 & 7);
      t.e2m1[b] = static_cast<uint16_t>(low * low + high * high);
      const float x = (b & 0x7F) == kE4m3Nan ? 0 : e4m3_to_float(b & 0x7F);
      t.e4m3[b] = x * x;
      t.octaves[b] = b < kTiny || b >= kE4m3Nan ? std::nan("") : std::log2(double{e4m3_to_float(b)});
    }
    for (size_t energy = 0; energy <= kMostEnergy; ++energy)
      t.energies.push_back(octaves_of(static_cast<double>(energy)));
    return t;
  }();
  return all;
}

double octaves_of_e2m1(std::span<const uint8_t> bytes) {
  const Tables& t = tables();
  size_t energy = 0;
  for (const uint8_t b : bytes) energy += t.e2m1[b];
  return t.energies[energy];
}

/// Looks at some of the numbers.
double octaves_of_e4m3(std::span<const uint8_t> bytes, size_t most) {
  const Tables& t = tables();
  const auto some = bytes.first(std::min(most, bytes.size()));
  float energy = 0;
  for (const uint8_t b : some) energy += t.e4m3[b];
  return octaves_of(double{energy} / static_cast<double>(std::max<size_t>(1, some.size())));
}

/// Returns log2 of a number in BF16, F16 or F32; NaN if it is not positive.
double octaves_of_float(DType type, const uint8_t* bytes) {
  float x = 0;
  if (type == DType::kF32) {
    std::memcpy(&x, bytes, sizeof(x));
  } else {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes, sizeof(bits));
    x = type == DType::kBF16 ? bf16_to_float(bits) : fp16_to_float(bits);
  }
  return x > 0 && std::isfinite(x) ? std::log2(double{x}) : std::nan("");
}

/// How well the scales of one matrix fit its codes.
struct Fit {
  const char* format = nullptr;  ///< matrices of one format are compared
  double correlation = 0;        ///< the one nearest to zero of some places
  size_t pairs = 0;              ///< number of pairs behind it
  double unfit = 0.3;            ///< times the median: scales that do not fit are nearer to zero
};

class Fitter {
 public:
  Fitter(const LintInput& s, const Member& m) : s_(s), m_(m), plan_(m.figures->plan) {}

  /// Returns nullopt if the format has no such scales, or the matrix has too few.
  std::optional<Fit> fit() {
    constexpr double kMostZeros = 0.4;
    if (m_.figures->zero_share > kMostZeros || !plan_.is_rows || plan_.k_outer || plan_.lines < kFewLines)
      return {};
    if (m_.figures->module != MatrixFigures::kNone) {
      const Nvfp4Linear& module = s_.modules[m_.figures->module];
      return of_blocks("NVFP4", module.block_scale, plan_.scale_bytes, 8);
    }
    if (m_.scale_figures == nullptr) return {};
    const TensorInfo& scales = s_.tensors[m_.scale];
    const bool e8m0 = m_.scale_figures->plan.kind == NumberKind::kE8m0;
    if (e8m0) {
      if (plan_.kind == NumberKind::kE2m3) return {};
      const uint64_t all = scales.bytes() / std::max<uint64_t>(1, plan_.matrices), each = all / plan_.lines;
      const uint64_t bytes = plan_.kind == NumberKind::kE2m1 ? 16 : 32;
      if (each * plan_.lines != all || each * bytes != plan_.line_bytes) return {};
      return of_blocks(plan_.kind == NumberKind::kE2m1 ? "MXFP4" : "MXFP8", m_.scale, each, bytes);
    }
    if (m_.figures->expert >= 0 || !is_float(scales.dtype)) return {};
    if (plan_.kind == NumberKind::kE4m3) return of_fp8(scales);
    return plan_.kind == NumberKind::kInt4 ? of_int4(scales) : std::nullopt;
  }

 private:
  static constexpr uint64_t kFewLines = 64;
  static constexpr size_t kFewPairs = 48;

  std::vector<uint8_t> read(size_t tensor, uint64_t offset, uint64_t count) const {
    std::vector<uint8_t> bytes(count);
    s_.read(tensor, offset, bytes);
    return bytes;
  }
  uint64_t matrix() const { return static_cast<uint64_t>(std::max<int64_t>(m_.figures->expert, 0)); }
  static uint64_t line_of(int place, uint64_t lines, uint64_t count) {
    return std::min(lines - count, lines * (2 * static_cast<uint64_t>(place) + 1) / (2 * kPlaces));
  }

  /// Blocks along a row, with scales of one byte.
  std::optional<Fit> of_blocks(const char* format, size_t scales, uint64_t each, uint64_t bytes) const {
    constexpr uint64_t kRows = 2, kMostBlocks = 192;
    const uint64_t count = std::min(each, kMostBlocks);
    double worst = -1;
    size_t pairs = 0;
    std::vector<uint8_t> codes(count * bytes), factors(count);
    std::vector<Block> blocks(count);
    for (int place = 0; place < kPlaces; ++place) {
      const uint64_t first = matrix() * plan_.lines + line_of(place, plan_.lines, kRows);
      Correlation sums;
      for (uint64_t row = first; row < first + kRows; ++row) {
        s_.read(m_.figures->tensor, row * plan_.line_bytes, codes);
        s_.read(scales, row * each, factors);
        for (uint64_t b = 0; b < count; ++b) {
          const auto some = std::span<const uint8_t>(codes).subspan(b * bytes, bytes);
          blocks[b].scale = plan_.scale_bytes > 0 ? tables().octaves[factors[b]]
                            : factors[b] > 0      ? static_cast<double>(factors[b])
                                                  : std::nan("");
          blocks[b].codes =
              plan_.kind == NumberKind::kE2m1 ? octaves_of_e2m1(some) : octaves_of_e4m3(some, bytes);
        }
        add_neighbours(blocks, sums);
      }
      if (sums.count() < kFewPairs || !std::isfinite(sums.value())) return {};
      worst = std::max(worst, sums.value());
      pairs = sums.count();
    }
    return Fit{format, worst, pairs};
  }

  std::optional<Fit> of_fp8(const TensorInfo& scales) const {
    if (scales.shape.empty() || scales.shape.size() > 2) return {};
    const auto rows = static_cast<uint64_t>(scales.shape[0]),
               columns = scales.shape.size() == 2 ? static_cast<uint64_t>(scales.shape[1]) : 1;
    const uint64_t width = is_wide(scales.dtype) ? 4 : 2;
    if (columns == 1 && rows == plan_.lines) return of_rows(scales.dtype, width);
    constexpr uint64_t kFewBlocks = 4, kMostLines = 16, kBlock = 32, kMost = 64;
    if (rows == 0 || columns < kFewBlocks) return {};
    const uint64_t high = (plan_.lines + rows - 1) / rows, wide = (plan_.line_bytes + columns - 1) / columns;
    if (wide < kBlock || high < kBlock) return {};
    Correlation sums;
    std::vector<Block> blocks(columns);
    for (uint64_t i = 0; i < std::min(rows, kMostLines); ++i) {
      const uint64_t row = i * rows / std::min(rows, kMostLines);
      const uint64_t line = std::min(plan_.lines - 1, row * high + high / 2);
      const std::vector<uint8_t> codes = read(m_.figures->tensor, line * plan_.line_bytes, plan_.line_bytes),
                                 factors = read(m_.scale, row * columns * width, columns * width);
      for (uint64_t b = 0; b < columns; ++b) {
        const uint64_t count = std::min(wide, plan_.line_bytes - std::min(plan_.line_bytes, b * wide));
        blocks[b].scale = octaves_of_float(scales.dtype, &factors[b * width]);
        blocks[b].codes =
            octaves_of_e4m3(std::span(codes).subspan(std::min(plan_.line_bytes, b * wide), count), kMost);
      }
      add_neighbours(blocks, sums);
    }
    if (sums.count() < kFewPairs) return {};
    return Fit{"FP8 in blocks", sums.value(), sums.count()};
  }
  static bool is_wide(DType type) { return type == DType::kF32; }

  std::optional<Fit> of_rows(DType type, uint64_t width) const {
    constexpr uint64_t kRows = 64, kMost = 512;
    if (plan_.lines < kPlaces * kRows) return {};
    Correlation sums;
    std::vector<Block> blocks(kRows);
    for (int place = 0; place < kPlaces; ++place) {
      const uint64_t first = line_of(place, plan_.lines, kRows);
      const std::vector<uint8_t> codes = read(m_.figures->tensor, first * plan_.line_bytes,
                                              kRows * plan_.line_bytes),
                                 factors = read(m_.scale, first * width, kRows * width);
      for (uint64_t i = 0; i < kRows; ++i) {
        blocks[i].scale = octaves_of_float(type, &factors[i * width]);
        blocks[i].codes =
            octaves_of_e4m3(std::span(codes).subspan(i * plan_.line_bytes, plan_.line_bytes), kMost);
      }
      add_neighbours(blocks, sums);
    }
    // Heads of trained models differ in this. SmolLM2's are up to -0.2, with a median of -0.73.
    constexpr double kUnfitRow = 0.1;
    return Fit{"FP8 in rows", sums.value(), sums.count(), kUnfitRow};
  }

  /// Codes of AWQ and GPTQ, [K, N] in words along N or K, whose scales [K / group, N] are in order of the
  /// inputs.
  std::optional<Fit> of_int4(const TensorInfo& scales) const {
    constexpr uint64_t kInputs = 64, kPack = kInt4Pack;
    constexpr std::array<uint64_t, kPack> kAwq = {0, 2, 4, 6, 1, 3, 5, 7};
    const TensorInfo& codes = s_.tensors[m_.figures->tensor];
    if (!codes.name.ends_with(".qweight") || codes.shape.size() != 2 || scales.shape.size() != 2) return {};
    const auto n = static_cast<uint64_t>(scales.shape[1]), words = static_cast<uint64_t>(codes.shape[1]),
               groups = static_cast<uint64_t>(scales.shape[0]);
    const bool along_n = words * kPack == n;
    const uint64_t inputs = static_cast<uint64_t>(codes.shape[0]) * (along_n ? 1 : kPack);
    if (groups == 0 || n < kFewPairs || (!along_n && words != n) || inputs % groups != 0) return {};
    const uint64_t group = inputs / groups, width = is_wide(scales.dtype) ? 4 : 2;
    if (group < kInputs || (s_.find(m_.module + ".g_idx") && !is_in_order(inputs, group))) return {};
    const uint64_t g = groups / 2, lines = along_n ? kInputs : kInputs / kPack, line = words * 4;
    const std::vector<uint8_t> some = read(m_.figures->tensor, g * group / (along_n ? 1 : kPack) * line,
                                           lines * line),
                               factors = read(m_.scale, g * n * width, n * width);
    std::vector<uint32_t> sums_of(n), squares_of(n);
    for (uint64_t at = 0; at < some.size(); at += line) {
      const uint8_t* const from = &some[at];
      for (uint64_t byte = 0; byte < line; ++byte) {
        const unsigned low = from[byte] & 15u, high = from[byte] >> 4u;
        if (along_n) {
          const uint64_t first = byte / 4 * kPack, i = byte % 4 * 2;
          const uint64_t a = first + kAwq[i], b = first + kAwq[i + 1];
          sums_of[a] += low, squares_of[a] += low * low;
          sums_of[b] += high, squares_of[b] += high * high;
        } else {
          sums_of[byte / 4] += low + high;
          squares_of[byte / 4] += low * low + high * high;
        }
      }
    }
    const std::vector<double> sum(sums_of.begin(), sums_of.end()),
        squares(squares_of.begin(), squares_of.end());
    Correlation sums;
    std::vector<Block> blocks(n);
    for (uint64_t i = 0; i < n; ++i)
      blocks[i] = {octaves_of_float(scales.dtype, &factors[i * width]),
                   octaves_of(squares[i] - sum[i] * sum[i] / kInputs)};
    add_neighbours(blocks, sums);
    if (sums.count() < kFewPairs) return {};
    return Fit{along_n ? "INT4 of AWQ" : "INT4 of GPTQ", sums.value(), sums.count()};
  }
  /// True if g_idx, the groups of inputs, is in their order.
  bool is_in_order(uint64_t inputs, uint64_t group) const {
    const auto tensor = s_.find(m_.module + ".g_idx");
    if (!tensor || !s_.whole[*tensor] || s_.tensors[*tensor].bytes() != 4 * inputs) return false;
    const std::vector<uint8_t> bytes = read(*tensor, 0, 4 * inputs);
    for (uint64_t k = 0; k < inputs; ++k) {
      uint32_t at = 0;
      std::memcpy(&at, &bytes[4 * k], sizeof(at));
      if (at != k / group) return false;
    }
    return true;
  }

  const LintInput& s_;
  const Member& m_;
  const MatrixPlan& plan_;
};

}  // namespace

void lint_scale_fit(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  constexpr double kFits = -0.3, kSame = 0.6, kErrors = 4;
  constexpr size_t kFewest = 4;
  std::map<std::string, std::vector<std::pair<Member*, Fit>>> formats;
  for (Member& m : members) {
    if (!m.is_linear || m.reported) continue;
    const auto fit = Fitter(s, m).fit();
    if (fit && std::isfinite(fit->correlation)) formats[fit->format].push_back({&m, *fit});
  }
  for (const auto& [format, all] : formats) {
    if (all.size() < kFewest) continue;
    std::vector<double> values;
    for (const auto& [m, fit] : all) values.push_back(fit.correlation);
    const double median = robust_spread(values).median;
    const auto fitting = std::ranges::count_if(values, [&](double x) { return x < kSame * median; });
    if (median > kFits || 4 * fitting < 3 * std::ssize(all)) continue;
    for (const auto& [m, fit] : all) {
      // A correlation of n pairs has a standard error of 1 / sqrt(n).
      const double error = 1 / std::sqrt(static_cast<double>(fit.pairs));
      if (fit.correlation < std::max(fit.unfit * median, kSame * median + kErrors * error)) continue;
      m->reported = true;
      reporter.add(
          "odd-codes", s.at(m->figures->tensor, m->name),
          "expected scales that follow the codes of their blocks (a correlation of {:.2f}, as of {} of {} "
          "matrices), found {:.2f}: codes and scales that do not belong together",
          median, fitting, all.size(), fit.correlation);
    }
  }
}

}  // namespace twofour
