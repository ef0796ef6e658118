#include "lib/lint/siblings/zero_partners.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "formats/module_names.h"

namespace twofour {
namespace {

/// One side of a matrix: its size, and where its zeros are.
struct Zeros {
  const ZeroPlaces& places;
  uint64_t size;
};

Zeros rows_of(const Member& m) { return {m.figures->zero_rows, m.figures->plan.lines}; }
Zeros columns_of(const Member& m) { return {m.figures->zero_places, m.figures->columns}; }

/// True if both sides have zeros at the same channels.
bool are_same(const Zeros& a, const Zeros& b) {
  return a.places.count > 0 && a.size == b.size && a.places.count == b.places.count &&
         a.places.all == b.places.all;
}

/// True if the zeros of columns are those of rows. Rows may be of two or three fused projections, one after
/// the other or in turn, and heads of keys and values are for several of queries.
bool are_rows(const Zeros& columns, const Zeros& rows) {
  const ZeroPlaces &c = columns.places, &r = rows.places;
  if (c.count == 0 || r.count == 0 || columns.size == 0) return false;
  if (are_same(columns, rows)) return true;
  if (rows.size == 2 * columns.size) {
    const auto is_all = [&](uint32_t sum) { return sum == c.all; };
    if (std::ranges::any_of(r.halves, is_all) || std::ranges::any_of(r.pairs, is_all)) return true;
  }
  const auto scaled = [&](uint64_t of_columns, uint64_t of_rows) {
    return of_columns * rows.size == of_rows * columns.size;
  };
  if (scaled(c.count, r.count) && scaled(c.first, r.first) && scaled(c.end, r.end)) return true;
  // In a fused projection, queries are the first rows.
  return rows.size > columns.size && r.count >= c.count && r.first == c.first;
}

}  // namespace

void find_zero_partners(std::span<Member> members) {
  std::map<std::pair<std::string, int64_t>, std::vector<Member*>> blocks;
  for (Member& m : members) {
    const MatrixFigures& f = *m.figures;
    const bool all = f.zero_lines == f.plan.lines;
    if (!m.is_linear || !f.plan.is_rows || f.plan.k_outer || all || f.zero_lines + f.zero_columns == 0)
      continue;
    blocks[{std::string(module_of(m.module)), m.at.expert}].push_back(&m);
  }
  for (auto& [name, block] : blocks) {
    for (Member* a : block) {
      for (Member* b : block) {
        if (a == b) continue;
        if (are_same(rows_of(*a), rows_of(*b))) a->shares_zero_rows = true;
        if (are_same(columns_of(*a), columns_of(*b))) a->shares_zero_columns = true;
        if (!are_rows(columns_of(*a), rows_of(*b))) continue;
        a->shares_zero_columns = true;
        b->shares_zero_rows = true;
      }
    }
  }
}

bool are_scattered(const ZeroPlaces& places, uint64_t longest, uint64_t size) {
  if (places.count == 0 || places.count >= size) return false;
  const auto n = static_cast<double>(size), count = static_cast<double>(places.count);
  // Runs of length k begin at n (1 - p) places with a chance of p^k.
  constexpr double kUnlikely = 9;  // the logarithm
  const double p = count / n, most = (std::log(n * (1 - p) + 1) + kUnlikely) / -std::log(p);
  if (static_cast<double>(longest) > most) return false;
  // Every second line, or every fourth, is no chance.
  constexpr uint64_t kFew = 16;
  const bool one_parity = places.pairs[0] == 0 || places.pairs[1] == 0;
  const uint32_t step = (places.end - places.first) / places.count + 1;
  return places.count < kFew || !one_parity || places.end - places.first != (places.count - 1) * step + 1;
}

}  // namespace twofour
