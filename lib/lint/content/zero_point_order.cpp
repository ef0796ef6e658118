#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "formats/weight_dialect.h"
#include "lib/lint/content/checks.h"

// Codes of INT4 lie around the zero point of their column and group. If the columns of codes and of zero
// points are packed in different orders, codes lie around the zero points of other columns.

namespace twofour {
namespace {

constexpr size_t kPack = kInt4Pack;

/// Returns the nibbles of words, [words, 8].
std::vector<uint8_t> nibbles_of(const LintInput& s, size_t tensor, uint64_t offset, size_t words) {
  std::vector<uint8_t> bytes(4 * words), nibbles(kPack * words);
  s.read(tensor, offset, bytes);
  for (size_t i = 0; i < nibbles.size(); ++i)
    nibbles[i] = static_cast<uint8_t>(bytes[i / 2] >> (4 * (i % 2)) & 15);
  return nibbles;
}

/// Returns the sum of the eight codes of a word.
uint32_t sum_of_nibbles(const uint8_t* bytes) {
  constexpr uint32_t kLow = 0x0F0F0F0Fu, kOnes = 0x01010101u;
  uint32_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return ((word & kLow) + (word >> 4 & kLow)) * kOnes >> 24;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  double sum_a = 0, sum_b = 0, ab = 0, aa = 0, bb = 0;
  const auto n = static_cast<double>(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    sum_a += a[i];
    sum_b += b[i];
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  const double spread = (aa - sum_a * sum_a / n) * (bb - sum_b * sum_b / n);
  return spread > 0 ? (ab - sum_a * sum_b / n) / std::sqrt(spread) : 0;
}

/// Columns of codes, by word and nibble: the sum of codes of the first group, and its zero point.
struct Columns {
  std::vector<double> codes{}, zeros{};
  int64_t rows = 0;     ///< number of codes in a sum
  bool differ = false;  ///< zero points differ
  /// Returns the mean code minus the mean zero point.
  double offset() const {
    double sum = 0, zero = 0;
    for (const double x : codes) sum += x;
    for (const double x : zeros) zero += x;
    return (sum / static_cast<double>(rows) - zero) / static_cast<double>(zeros.size());
  }
};

/// Reads some rows of a module of AWQ or GPTQ. Returns nullopt if it has no zero points.
std::optional<Columns> read_columns(const LintInput& s, const Member& m) {
  constexpr int64_t kRows = 64, kFewest = 32;
  const size_t tensor = m.figures->tensor;
  const TensorInfo& codes = s.tensors[tensor];
  const auto zeros = s.find(m.module + ".qzeros");
  if (!codes.name.ends_with(".qweight") || codes.shape.size() != 2 || !zeros || !s.whole[*zeros]) return {};
  const TensorInfo& points = s.tensors[*zeros];
  if (points.dtype != DType::kI32 || points.shape.size() != 2 || points.shape[0] < 1) return {};
  const int64_t words = points.shape[1];
  const bool along_n = codes.shape[1] == words;
  if (words < kFewest || (!along_n && codes.shape[1] != words * kInt4Pack)) return {};
  const int64_t k = codes.shape[0] * (along_n ? 1 : kInt4Pack), group = k / points.shape[0];
  const int64_t rows = std::min(kRows, group);
  if (rows < kFewest) return {};
  Columns columns;
  const auto count = static_cast<size_t>(words) * kPack;
  const std::vector<uint8_t> stored = nibbles_of(s, *zeros, 0, static_cast<size_t>(words));
  columns.zeros.assign(stored.begin(), stored.end());
  columns.differ = std::ranges::adjacent_find(stored, std::not_equal_to<>()) != stored.end();
  columns.rows = rows;
  const auto lines = static_cast<size_t>(along_n ? rows : rows / kInt4Pack);
  const auto line = static_cast<size_t>(codes.shape[1]);
  std::vector<uint8_t> bytes(lines * line * 4);
  s.read(tensor, 0, bytes);
  std::vector<uint16_t> sums(count);  // of at most kRows codes below 16
  for (size_t at = 0; at < bytes.size(); at += 4 * line) {
    const uint8_t* const from = &bytes[at];
    if (along_n) {
      for (size_t i = 0; i < 4 * line; ++i) {
        sums[2 * i] = static_cast<uint16_t>(sums[2 * i] + (from[i] & 15));
        sums[2 * i + 1] = static_cast<uint16_t>(sums[2 * i + 1] + (from[i] >> 4));
      }
    } else {
      for (size_t i = 0; i < line; ++i)
        sums[i] = static_cast<uint16_t>(sums[i] + sum_of_nibbles(from + 4 * i));
    }
  }
  columns.codes.assign(sums.begin(), sums.end());
  return columns;
}

/// Returns the correlation of codes with zero points in the best other order of eight columns.
double best_order(const Columns& columns) {
  // Nibble i of a word of AWQ holds this one of eight columns. Source: AutoAWQ, awq/modules/linear/gemm.py.
  constexpr std::array<size_t, kPack> kOrder = {0, 2, 4, 6, 1, 3, 5, 7};
  double best = 0;
  for (const bool inverse : {false, true}) {
    std::vector<double> zeros(columns.zeros.size());
    for (size_t i = 0; i < zeros.size(); ++i) {
      const size_t word = i / kPack * kPack, place = word + kOrder[i % kPack];
      (inverse ? zeros[place] : zeros[i]) = columns.zeros[inverse ? i : place];
    }
    best = std::max(best, correlation(columns.codes, zeros));
  }
  return best;
}

}  // namespace

void lint_zero_point_order(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  constexpr double kFew = 0.3, kMore = 0.25, kUsual = 0.7, kFarOff = 1.5;
  constexpr size_t kFewest = 4;
  struct Found {
    Member* m;
    double offset, own, best;  // own: a correlation; NaN: zero points are all equal
  };
  std::vector<Found> all;
  std::vector<double> offsets, owns;
  for (Member& m : members) {
    if (!m.is_linear || m.figures->plan.kind != NumberKind::kInt4 || m.figures->zero_lines > 0) continue;
    const auto columns = read_columns(s, m);
    if (!columns) continue;
    const double own = columns->differ ? correlation(columns->codes, columns->zeros) : std::nan("");
    all.push_back({&m, columns->offset(), own, own <= kFew ? best_order(*columns) : 0});
    offsets.push_back(all.back().offset);
    if (columns->differ) owns.push_back(own);
  }
  const bool usual = owns.size() >= kFewest && robust_spread(owns).median > kUsual;
  const double middle = robust_spread(offsets).median;
  for (const Found& x : all) {
    const LintPlace at = s.at(x.m->figures->tensor, x.m->name);
    if (x.own <= kFew && x.best >= x.own + kMore) {
      reporter.add("odd-codes", at,
                   "expected codes around the zero points of their columns, found that they follow those of "
                   "another order of eight columns (a correlation of {:.2f}, not {:.2f})",
                   x.best, x.own);
    } else if (usual && x.own <= kFew) {
      reporter.add(
          "odd-codes", at,
          "expected codes around the zero points of their columns (a correlation above {:.1f} in most "
          "matrices), found {:.2f}: codes and zero points that do not belong together",
          kUsual, x.own);
    } else if (all.size() >= kFewest && std::fabs(x.offset - middle) > kFarOff) {
      reporter.add(
          "odd-codes", at,
          "expected a mean code {:+.1f} from the zero points, as in most of {} matrices, found {:+.1f}: "
          "zero points that do not belong to the codes",
          middle, all.size(), x.offset);
    } else {
      continue;
    }
    x.m->reported = true;
  }
}

}  // namespace twofour
