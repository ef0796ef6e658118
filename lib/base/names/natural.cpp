#include "lib/base/names/natural.h"

#include <algorithm>

namespace twofour {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Returns the digits at the front of `text`, without leading zeros, and cuts them off.
std::string_view take_number(std::string_view& text) {
  size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  std::string_view x = a, y = b;
  while (!x.empty() && !y.empty()) {
    if (is_digit(x[0]) && is_digit(y[0])) {
      const std::string_view m = take_number(x), n = take_number(y);
      if (m.size() != n.size()) return m.size() < n.size();
      if (m != n) return m < n;
    } else if (x[0] != y[0]) {
      return std::string_view::traits_type::lt(x[0], y[0]);  // unsigned on every processor
    } else {
      x.remove_prefix(1);
      y.remove_prefix(1);
    }
  }
  if (x.empty() != y.empty()) return x.empty();
  return a < b;  // the names are equal except for leading zeros
}

NumberedName split_numbers(const std::string& name) {
  NumberedName s;
  for (size_t i = 0; i <= name.size();) {
    const size_t dot = std::min(name.find('.', i), name.size());
    const std::string piece = name.substr(i, dot - i);
    const bool number = !piece.empty() && piece.size() < 10 && (piece.size() == 1 || piece[0] != '0') &&
                        std::all_of(piece.begin(), piece.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (number) s.numbers.push_back(std::stoll(piece));
    s.name_template += (i == 0 ? "" : ".") + (number ? std::string(1, kNumberMark) : piece);
    i = dot + 1;
  }
  return s;
}

}  // namespace twofour
