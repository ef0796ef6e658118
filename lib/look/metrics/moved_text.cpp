#include "lib/look/metrics/moved_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "lib/base/findings/and_more.h"

namespace twofour {
namespace {

constexpr size_t kListed = 8;  ///< experts or layers that a text lists

std::string plural(const char* what, const std::set<int64_t>& numbers) {
  return numbers.size() == 1 ? fmt::format("{} {}", what, *numbers.begin())
                             : fmt::format("{}s {}, which are alike", what, fmt::join(numbers, " and "));
}

/// Describes the rule that moved lines (rows or columns) follow, or lists some of them.
std::string describe_lines(const char* what, const MovedMatrix& m, const std::string& b) {
  const int64_t n = m.count;
  const auto follows = [&](auto place) {
    for (size_t i = 0; i < m.lines.size(); ++i) {
      if (place(m.lines[i]) != m.places[i]) return false;
    }
    return true;
  };
  const int64_t shift = m.lines.empty() ? 0 : (m.places[0] - m.lines[0] + n) % n;
  if (n % 2 == 0 && follows([&](int64_t i) { return (i + n / 2) % n; }))
    return fmt::format("the halves of its {} {} are exchanged", n, what);
  if (follows([&](int64_t i) { return (i + shift) % n; }))
    return fmt::format("its {} {} are rotated by {}", n, what, shift);
  if (follows([&](int64_t i) { return n - 1 - i; }))
    return fmt::format("its {} {} are in reverse order", n, what);
  if (follows([](int64_t i) { return i ^ 1; }))
    return fmt::format("neighbours among its {} {} are exchanged", n, what);
  // Rotary embeddings pair the rows of the two halves of each head, or of all rows. The halves may be
  // consecutive or interleaved.
  std::set<int64_t> sizes = {n};
  for (const int64_t head : {32, 64, 80, 96, 128, 192, 256}) sizes.insert(head);
  for (const int64_t size : sizes) {
    if (size > n || n % size != 0 || size % 2 != 0) continue;
    const auto in_turn = [&](int64_t i) { return i / size * size + i % 2 * (size / 2) + i % size / 2; };
    const auto apart = [&](int64_t i) {
      return i / size * size + (i % size < size / 2 ? 2 * (i % size) : 2 * (i % size - size / 2) + 1);
    };
    const std::string whole = size == n ? "" : fmt::format(" of each {}", size);
    if (follows(in_turn)) return fmt::format("its {} {} have the halves{} in turn", n, what, whole);
    if (follows(apart)) return fmt::format("its {} {} have even and odd ones{} apart", n, what, whole);
  }
  std::vector<std::string> parts;
  for (size_t i = 0; i < m.lines.size() && parts.size() < 4; ++i) {
    if (m.lines[i] != m.places[i]) parts.push_back(fmt::format("{} is {} of {}", m.lines[i], m.places[i], b));
  }
  return fmt::format("its {} {} are in another order: {}", n, what, fmt::join(parts, ", "));
}

}  // namespace

std::map<int64_t, int64_t> choose_numbers(const MovedNumbers& numbers) {
  std::map<int64_t, int64_t> chosen;
  std::set<int64_t> taken;
  for (const auto& [own, others] : numbers) {
    const auto free = std::ranges::find_if(others, [&](int64_t n) { return !taken.contains(n); });
    chosen[own] = free != others.end() ? *free : *others.begin();
    taken.insert(chosen[own]);
  }
  return chosen;
}

std::string describe_numbers(const char* what, const MovedNumbers& numbers, int64_t count,
                             const std::string& b) {
  const auto chosen = choose_numbers(numbers);
  if (static_cast<int64_t>(chosen.size()) == count && count > 2) {
    const int64_t shift = (chosen.at(0) + count) % count;
    const auto all = [&](auto place) {
      return std::ranges::all_of(chosen, [&](const auto& pair) { return pair.second == place(pair.first); });
    };
    if (all([&](int64_t n) { return count - 1 - n; }))
      return fmt::format("all {} {}s are in reverse order: {} 0 equals {} {} of {}, {} {} equals {} 0", count,
                         what, what, what, count - 1, b, what, count - 1, what);
    if (all([&](int64_t n) { return (n + shift) % count; }))
      return fmt::format("all {} {}s are rotated by {}: {} 0 equals {} {} of {}, and so on", count, what,
                         shift, what, what, shift, b);
  }
  std::vector<std::string> parts;
  for (const auto& [own, others] : numbers) {
    if (parts.size() == kListed) break;
    parts.push_back(fmt::format("{} {} equals {} of {}", what, own, plural(what, others), b));
  }
  std::string text = fmt::format("{}", fmt::join(parts, ", "));
  return text + and_more(numbers.size(), ", and {} more", parts.size());
}

std::string describe_matrix(const MovedMatrix& m, const std::string& b) {
  switch (m.how) {
    case Moved::kRows:
      return describe_lines("rows", m, b);
    case Moved::kColumns:
      return describe_lines("columns", m, b);
    case Moved::kNibbles:
      return "the two codes of each byte are exchanged";
    case Moved::kScales:
      return "the signs are equal, the magnitudes of blocks are not: scales in another order, or of another "
             "matrix";
    case Moved::kFactor:
      return fmt::format("its numbers are {:.4g} times those of {}", m.factor, b);
    case Moved::kTransposed:
      return fmt::format("its rows are the columns of {}", b);
    case Moved::kSigns:
      return m.lines.size() == m.places.size() ? fmt::format("signs of all {} rows are reversed", m.count)
                                               : fmt::format("signs are reversed in {} of {} compared rows",
                                                             m.lines.size(), m.places.size());
    default:
      return fmt::format("equals {} of {}", fmt::join(m.equals, ", and "), b);
  }
}

}  // namespace twofour
