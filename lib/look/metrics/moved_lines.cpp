#include "lib/look/metrics/moved_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/base/io/hash.h"

namespace twofour {

double dot(const float* a, const float* b, int64_t count) {
  std::array<float, 8> sums{};
  const int64_t whole = count - count % 8;
  for (int64_t i = 0; i < whole; i += 8) {
    for (size_t j = 0; j < sums.size(); ++j)
      sums[j] += a[i + static_cast<int64_t>(j)] * b[i + static_cast<int64_t>(j)];
  }
  double sum = 0;
  for (const float x : sums) sum += double{x};
  for (int64_t i = whole; i < count; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

/// NaN if one row is zero.
double cosine(const float* a, const float* b, int64_t count) {
  const double aa = dot(a, a, count), bb = dot(b, b, count);
  return aa > 0 && bb > 0 ? dot(a, b, count) / std::sqrt(aa * bb) : std::nan("");
}

std::vector<int64_t> choose_rows(int64_t n, int64_t k, bool together, int64_t extra) {
  std::vector<int64_t> rows;
  const uint64_t key = hash_text(fmt::format("{} {}", n, k)).low;
  const int64_t count = std::min(n, kLookedAt);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = i * n / count, end = (i + 1) * n / count;
    const auto offset = static_cast<int64_t>((key >> (3 * i % 48)) % static_cast<uint64_t>(end - begin));
    rows.push_back(together ? static_cast<int64_t>(key % static_cast<uint64_t>(n - count + 1)) + i
                            : begin + offset);
  }
  if (extra >= 0 && extra < n && std::ranges::find(rows, extra) == rows.end()) rows.push_back(extra);
  return rows;
}

Rows read_rows(const Matrices& m, WeightReader& reader, const Located& p, const std::vector<int64_t>& rows) {
  const auto width = static_cast<size_t>(p.k);
  Rows values(rows.size() * width);
  for (size_t i = 0, end = 0; i < rows.size(); i = end) {
    for (end = i + 1; end < rows.size() && rows[end] == rows[end - 1] + 1;) ++end;
    m.read(reader, *p.matrix, rows[i], rows[end - 1] + 1,
           std::span(values).subspan(i * width, (end - i) * width));
  }
  return values;
}

namespace {

constexpr int64_t kAllRows = 1024;  ///< up to this many rows, every row is searched
constexpr int64_t kWidth = 128, kMostLines = 1 << 16, kMostSquare = 1 << 14;

/// Finds the lines of `x` among the lines of `y`, which are both [count, width]. Empty unless nearly all
/// lines are found and some of them are in another place.
std::optional<MovedMatrix> find_lines(Moved how, const Rows& x, const std::vector<int64_t>& lines,
                                      const Rows& y, int64_t count, int64_t width) {
  MovedMatrix moved{.how = how, .count = count};
  std::vector<double> norms(static_cast<size_t>(count));
  for (int64_t j = 0; j < count; ++j)
    norms[static_cast<size_t>(j)] = std::sqrt(dot(y.data() + j * width, y.data() + j * width, width));
  size_t known = 0, elsewhere = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const float* line = x.data() + static_cast<int64_t>(i) * width;
    const double norm = std::sqrt(dot(line, line, width));
    if (norm == 0) continue;
    ++known;
    double best = kLike;
    int64_t place = -1;
    for (int64_t j = 0; j < count; ++j) {
      const double own = norms[static_cast<size_t>(j)];
      if (own == 0) continue;
      const double c = dot(line, y.data() + j * width, width) / (norm * own);
      // Among equal lines of `y`, the line in the same place wins.
      if (c > best + 1e-6 || (j == lines[i] && c >= best - 1e-6)) best = c, place = j;
    }
    if (place < 0) continue;
    moved.lines.push_back(lines[i]);
    moved.places.push_back(place);
    elsewhere += place != lines[i];
  }
  if (elsewhere == 0 || 10 * moved.lines.size() < 9 * known) return std::nullopt;
  return moved;
}

/// Reads the given rows and takes `width` columns of each, spread over all columns.
Rows narrow(const Matrices& m, WeightReader& reader, const Located& p, const std::vector<int64_t>& rows,
            int64_t width) {
  Rows out, row(static_cast<size_t>(p.k));
  for (const int64_t r : rows) {
    m.read(reader, *p.matrix, r, r + 1, row);
    for (int64_t c = 0; c < width; ++c) out.push_back(row[static_cast<size_t>(c * p.k / width)]);
  }
  return out;
}
Rows narrow(const Matrices& m, WeightReader& reader, const Located& p, int64_t n, int64_t width) {
  Rows out, block;
  const int64_t step = std::max<int64_t>(1, (1 << 20) / p.k);
  for (int64_t r = 0; r < n; r += step) {
    const int64_t end = std::min(n, r + step);
    block.resize(static_cast<size_t>((end - r) * p.k));
    m.read(reader, *p.matrix, r, end, block);
    for (int64_t i = 0; i < end - r; ++i) {
      for (int64_t c = 0; c < width; ++c)
        out.push_back(block[static_cast<size_t>(i * p.k + c * p.k / width)]);
    }
  }
  return out;
}

/// Finds whether `own` has the rows of `other` in another order.
std::optional<MovedMatrix> find_rows(const Located& own, const Located& other, std::vector<int64_t> rows,
                                     LineSource a, LineSource b) {
  if (own.n < 2 || own.n > kMostLines) return std::nullopt;
  const bool all = own.n <= kAllRows;
  if (all) {
    rows.resize(static_cast<size_t>(own.n));
    for (int64_t r = 0; r < own.n; ++r) rows[static_cast<size_t>(r)] = r;
  }
  const int64_t width = std::min(kWidth, own.k);
  const Rows x =
      all ? narrow(a.matrices, a.reader, own, own.n, width) : narrow(a.matrices, a.reader, own, rows, width);
  return find_lines(Moved::kRows, x, rows, narrow(b.matrices, b.reader, other, own.n, width), own.n, width);
}

/// The numbers of some rows, evenly spread over all rows.
std::vector<int64_t> spread_rows(const Located& own) {
  std::vector<int64_t> rows(static_cast<size_t>(std::min(own.n, kWidth)));
  for (size_t r = 0; r < rows.size(); ++r)
    rows[r] = static_cast<int64_t>(r) * own.n / static_cast<int64_t>(rows.size());
  return rows;
}

/// Finds whether `own` has the columns of `other` in another order.
std::optional<MovedMatrix> find_columns(const Located& own, const Located& other, LineSource a,
                                        LineSource b) {
  constexpr int64_t kSomeColumns = 32;
  if (own.k > kMostLines || own.n < kFewColumns) return std::nullopt;
  const std::vector<int64_t> rows = spread_rows(own);
  const auto height = static_cast<int64_t>(rows.size());
  const Rows x = read_rows(a.matrices, a.reader, own, rows), y = read_rows(b.matrices, b.reader, other, rows);
  const std::vector<int64_t> columns = choose_rows(own.k, own.n, false, -1);
  std::vector<int64_t> some;
  for (int64_t c = 0; c < std::min(own.k, kSomeColumns); ++c)
    some.push_back(c * own.k / std::min(own.k, kSomeColumns));
  some.insert(some.end(), columns.begin(), columns.end());
  std::ranges::sort(some);
  some.erase(std::unique(some.begin(), some.end()), some.end());
  Rows from(some.size() * rows.size()), to(static_cast<size_t>(own.k) * rows.size());
  for (int64_t r = 0; r < height; ++r) {
    for (size_t c = 0; c < some.size(); ++c)
      from[c * rows.size() + static_cast<size_t>(r)] = x[static_cast<size_t>(r * own.k + some[c])];
    for (int64_t c = 0; c < own.k; ++c)
      to[static_cast<size_t>(c * height + r)] = y[static_cast<size_t>(r * own.k + c)];
  }
  return find_lines(Moved::kColumns, from, some, to, own.k, height);
}

/// Finds whether the rows of `own`, a square matrix, are the columns of `other`.
std::optional<MovedMatrix> find_transposed(const Located& own, const Located& other,
                                           const std::vector<int64_t>& rows, LineSource a, LineSource b) {
  if (own.n != own.k || own.n > kMostSquare) return std::nullopt;
  const Rows x = read_rows(a.matrices, a.reader, own, rows);
  Rows columns(x.size()), block;
  const int64_t step = std::max<int64_t>(1, (1 << 20) / own.k);
  for (int64_t begin = 0; begin < own.n; begin += step) {
    const int64_t end = std::min(own.n, begin + step);
    block.resize(static_cast<size_t>((end - begin) * own.k));
    b.matrices.read(b.reader, *other.matrix, begin, end, block);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int64_t i = begin; i < end; ++i) {
        columns[r * static_cast<size_t>(own.k) + static_cast<size_t>(i)] =
            block[static_cast<size_t>((i - begin) * own.k + rows[r])];
      }
    }
  }
  size_t known = 0, like = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const size_t at = r * static_cast<size_t>(own.k);
    const double c = cosine(&x[at], &columns[at], own.k);
    known += !std::isnan(c);
    like += c >= kLike;
  }
  if (like == 0 || 10 * like < 9 * known) return std::nullopt;
  return MovedMatrix{.how = Moved::kTransposed, .count = own.n};
}

}  // namespace

std::optional<MovedMatrix> find_order(const Located& own, const Located& other,
                                      const std::vector<int64_t>& rows, LineSource a, LineSource b) {
  if (auto moved = find_rows(own, other, rows, a, b)) return moved;
  if (auto moved = find_columns(own, other, a, b)) return moved;
  return find_transposed(own, other, rows, a, b);
}

}  // namespace twofour
