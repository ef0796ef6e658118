#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "formats/error.h"
#include "kernels/solve/hessian.h"
#include "lib/recipe/statistics/statistics.h"

namespace twofour {
namespace {

/// The index, in a tensor of sums, of element i of the diagonal of a matrix of order k.
uint64_t diagonal_at(std::span<const int64_t> shape, StatisticsKind kind, uint64_t k, uint64_t i) {
  if (kind == StatisticsKind::kDiagonal) return i;
  if (shape.size() == 1) return i * k - i * (i - 1) / 2;
  const uint64_t block = shape.size() == 3 ? static_cast<uint64_t>(shape[1]) : k;
  return i / block * block * block + i % block * (block + 1);
}

}  // namespace

void Statistics::read(size_t tensor, uint64_t first, std::span<float> out) const {
  const TensorInfo& t = tensors()[tensor];
  file_->read(data_begin_ + t.begin + first * sizeof(float),
              {reinterpret_cast<uint8_t*>(out.data()), out.size_bytes()});
  for (size_t i = 0; i < out.size(); ++i) {
    if (!std::isfinite(out[i]))
      throw Error(fmt::format("{}: element {}: expected a finite number, found {}", where(tensor), first + i,
                              out[i]));
  }
}

std::vector<float> Statistics::read_square(size_t tensor, int64_t k, int64_t count) const {
  const TensorInfo& t = tensors()[tensor];
  const auto n = static_cast<size_t>(k);
  const double tokens = static_cast<double>(std::max<int64_t>(count, 1));
  std::vector<float> square(n * n), row(n);
  const auto mean = [&](float sum) { return static_cast<float>(double{sum} / tokens); };
  uint64_t at = 0;
  const auto block = t.shape.size() == 3 ? static_cast<size_t>(t.shape[1]) : n;
  for (size_t i = 0; i < n; ++i) {
    const size_t begin = i / block * block, end = begin + block;
    const size_t from = t.shape.size() == 1 ? i : begin;
    const std::span own = std::span(row).first(end - from);
    read(tensor, at, own);
    at += own.size();
    for (size_t j = std::max(from, i); j < end; ++j) square[i * n + j] = mean(own[j - from]);
    if (square[i * n + i] < 0)
      throw Error(fmt::format("{}: diagonal {}: expected a sum of squares, found {}", where(tensor), i,
                              own[i - from]));
  }
  check_products(square, tensor, k);
  mirror_upper(square, k);
  return square;
}

void Statistics::check_products(const std::vector<float>& square, size_t tensor, int64_t k) const {
  // The growth of float32 sums by rounding, and the largest square that vanishes in them.
  constexpr double kRounding = 1.125, kVanished = 0x1p-126;
  const auto n = static_cast<size_t>(k);
  std::vector<double> roots;
  for (size_t i = 0; i < n; ++i)
    roots.push_back(std::sqrt(kRounding * (double{square[i * n + i]} + kVanished)));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) {
      const double product = square[i * n + j];
      if (std::fabs(product) <= roots[i] * roots[j]) continue;
      throw Error(fmt::format(
          "{}: inputs {} and {}: expected a sum of products up to the root of those of squares, found "
          "{:.4g} beside {:.4g} and {:.4g}, a token",
          where(tensor), i, j, product, square[i * n + i], square[j * n + j]));
    }
  }
}

std::vector<float> Statistics::read_hessian(const StatisticsEntry& entry) const {
  return read_square(entry.sums, entry.k, entry.count);
}

std::vector<float> Statistics::read_fisher(const StatisticsEntry& entry) const {
  return read_square(entry.fisher.value(), entry.k, entry.count);
}

std::vector<float> Statistics::read_diagonal(const StatisticsEntry& entry) const {
  const TensorInfo& t = tensors()[entry.sums];
  const auto n = static_cast<size_t>(entry.k);
  const double tokens = static_cast<double>(std::max<int64_t>(entry.count, 1));
  std::vector<float> diagonal(n);
  if (entry.kind == StatisticsKind::kDiagonal) {
    read(entry.sums, 0, diagonal);
  } else {
    for (size_t i = 0; i < n; ++i)
      read(entry.sums, diagonal_at(t.shape, entry.kind, n, i), std::span(diagonal).subspan(i, 1));
  }
  for (size_t i = 0; i < n; ++i) {
    if (diagonal[i] < 0)
      throw Error(fmt::format("{}: diagonal {}: expected a sum of squares, found {}", where(entry.sums), i,
                              diagonal[i]));
    diagonal[i] = static_cast<float>(double{diagonal[i]} / tokens);
  }
  return diagonal;
}

bool Statistics::is_zero(const StatisticsEntry& entry) const {
  if (metadata("format") == kUnfinishedStatistics) return false;
  const TensorInfo& t = tensors()[entry.sums];
  const auto n = static_cast<uint64_t>(entry.k);
  for (uint64_t i = 0; i < n; ++i) {
    std::array<uint8_t, sizeof(float)> bytes{};
    file_->read(data_begin_ + t.begin + diagonal_at(t.shape, entry.kind, n, i) * sizeof(float), bytes);
    float number = 0;
    std::memcpy(&number, bytes.data(), bytes.size());
    if (number != 0) return false;  // true also for NaN, which is refused when weights are chosen
  }
  return true;
}

std::optional<size_t> Statistics::target_offset(std::string_view linear) const {
  const auto at = target_offsets_.find(linear);
  return at == target_offsets_.end() ? std::nullopt : std::optional(at->second);
}

void Statistics::read_target_offset(size_t tensor, const StatisticsEntry& entry, int64_t first,
                                    std::span<float> out) const {
  read(tensor, static_cast<uint64_t>(first * entry.k), out);
  const double tokens = static_cast<double>(std::max<int64_t>(entry.count, 1));
  for (float& c : out) c = static_cast<float>(double{c} / tokens);
}

}  // namespace twofour
