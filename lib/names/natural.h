#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace twofour {

/// Stands for a number in a skeleton. No byte of UTF-8, so no name has it.
inline constexpr char kNumberMark = '\xFF';

/// A name cut at its dots, the pieces that are numbers apart: "layers.3.norm" is "layers.\xFF.norm" and 3.
/// Numbers with leading zeros or of ten digits and more stay text, so that the name can be put together
/// again.
struct NumberedName {
  std::string skeleton;  ///< numbers replaced by kNumberMark
  std::vector<int64_t> numbers;
};

NumberedName split_numbers(const std::string& name);

}  // namespace twofour
