#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// Orders names so that runs of digits compare as numbers: layer 2 is before layer 10. The order is total.
bool natural_less(std::string_view a, std::string_view b);

/// Stands for a number in a name_template. UTF-8 has no such byte, so no name contains it.
inline constexpr char kNumberMark = '\xFF';

/// A name cut at its dots, with its numbers split off: "layers.3.norm" is "layers.\xFF.norm" and 3. Numbers
/// with leading zeros or with ten digits and more stay text, so that the name can be put together again.
struct NumberedName {
  std::string name_template;  ///< numbers replaced by kNumberMark
  std::vector<int64_t> numbers;
};

NumberedName split_numbers(const std::string& name);

}  // namespace twofour
