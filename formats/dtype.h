#pragma once
#include <cstdint>
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
};  // clang-format keeps one line for each class of width above

/// The name of a type in the header of a file, for example "F8_E4M3".
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

/// True for F32, BF16 and F16, the types of unquantized weights.
constexpr bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

/// The number of bits of an element: 4 for F4, 6 for the F6 types, and a multiple of 8 for others.
int dtype_bits(DType dtype);

}  // namespace twofour
