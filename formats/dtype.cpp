#include "formats/dtype.h"

#include <iterator>

namespace twofour {
namespace {

struct Row {
  std::string_view name;
  int bits;
};

// Each enumerator has one row, in the order of the enumerators.
constexpr Row kRows[] = {
    {"U64", 64},        {"I64", 64},    {"F64", 64},    {"C64", 64},    {"F32", 32}, {"U32", 32},
    {"I32", 32},        {"BF16", 16},   {"F16", 16},    {"U16", 16},    {"I16", 16}, {"F8_E5M2FNUZ", 8},
    {"F8_E4M3FNUZ", 8}, {"F8_E8M0", 8}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"I8", 8},   {"U8", 8},
    {"F6_E3M2", 6},     {"F6_E2M3", 6}, {"F4", 4},      {"BOOL", 8},
};
static_assert(std::size(kRows) == static_cast<size_t>(DType::kBool) + 1);

}  // namespace

std::string_view dtype_name(DType dtype) { return kRows[static_cast<size_t>(dtype)].name; }

int dtype_bits(DType dtype) { return kRows[static_cast<size_t>(dtype)].bits; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (kRows[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace twofour
