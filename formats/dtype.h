#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

namespace twofour {

/// The element types of a safetensors file, in the order in which the reference writer sorts tensors
/// (descending). So comparing enumerators compares write positions. Source: huggingface/safetensors,
/// tensor.rs.
enum class DType : uint8_t {
  kU64,
  kI64,
  kF64,
  kC64,
  kF32,
  kU32,
  kI32,
  kBF16,
  kF16,
  kU16,
  kI16,
  kF8E5M2FNUZ,
  kF8E4M3FNUZ,
  kF8E8M0,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kU8,
  kF6E3M2,
  kF6E2M3,
  kF4,
  kBool,
};

/// The name of a type in the header of a file, and the number of bits of an element: 4 for F4, 6 for the F6
/// types, and a multiple of 8 for others.
struct DTypeRow {
  std::string_view name;
  int bits;
};
/// Each enumerator has one row, in the order of the enumerators.
inline constexpr DTypeRow kDTypes[] = {
    {"U64", 64},        {"I64", 64},    {"F64", 64},    {"C64", 64},    {"F32", 32}, {"U32", 32},
    {"I32", 32},        {"BF16", 16},   {"F16", 16},    {"U16", 16},    {"I16", 16}, {"F8_E5M2FNUZ", 8},
    {"F8_E4M3FNUZ", 8}, {"F8_E8M0", 8}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"I8", 8},   {"U8", 8},
    {"F6_E3M2", 6},     {"F6_E2M3", 6}, {"F4", 4},      {"BOOL", 8},
};
static_assert(std::size(kDTypes) == static_cast<size_t>(DType::kBool) + 1);

/// The name of a type in the header of a file, for example "F8_E4M3".
constexpr std::string_view dtype_name(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

/// The type with a name. Empty if no type has it.
constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

constexpr int dtype_bits(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bits; }

/// True for F32, BF16 and F16, the types of unquantized weights.
constexpr bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

}  // namespace twofour
