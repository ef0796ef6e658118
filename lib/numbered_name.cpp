#include "lib/names/natural.h"

#include <algorithm>

namespace twofour {

NumberedName split_numbers(const std::string& name) {
  NumberedName s;
  for (size_t i = 0; i <= name.size();) {
    const size_t dot = std::min(name.find('.', i), name.size());
    const std::string piece = name.substr(i, dot - i);
    const bool number = !piece.empty() && piece.size() < 10 && (piece.size() == 1 || piece[0] != '0') &&
                        std::all_of(piece.begin(), piece.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (number) s.numbers.push_back(std::stoll(piece));
    s.skeleton += (i == 0 ? "" : ".") + (number ? std::string(1, kNumberMark) : piece);
    i = dot + 1;
  }
  return s;
}

}  // namespace twofour
