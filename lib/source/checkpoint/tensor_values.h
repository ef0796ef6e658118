#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <tuple>
#include <variant>
#include <vector>

#include "formats/dtype.h"
#include "formats/safetensors.h"

namespace twofour {

/// True if float32 represents every value of a type: F32, BF16, F16, E4M3 and E8M0.
bool has_float_values(DType dtype);

/// `out.size()` elements of such a type as float32, exactly.
void to_floats(DType dtype, const uint8_t* bytes, std::span<float> out);

/// The unit of comparison in bytes: the size of an element, or one byte if elements share a byte.
int64_t element_bytes(DType dtype);

/// An integer or a number in floating point.
using ElementValue = std::variant<int64_t, uint64_t, double>;

/// The C++ type of an element type's numbers.
template <DType kType, class T>
struct NumberType {
  static constexpr DType dtype = kType;
  using Type = T;
};
/// F64 and the integer types.
using NumberTypes = std::tuple<NumberType<DType::kF64, double>, NumberType<DType::kI64, int64_t>,
                               NumberType<DType::kI32, int32_t>, NumberType<DType::kI16, int16_t>,
                               NumberType<DType::kI8, int8_t>, NumberType<DType::kU64, uint64_t>,
                               NumberType<DType::kU32, uint32_t>, NumberType<DType::kU16, uint16_t>,
                               NumberType<DType::kU8, uint8_t>, NumberType<DType::kBool, uint8_t>>;

/// Calls `f.template operator()<T>()` for the C++ type of one of NumberTypes; false for any other.
template <class F>
bool with_number_type(DType dtype, F&& f) {
  return std::apply(
      [&](auto... type) {
        return ((decltype(type)::dtype == dtype
                     ? (f.template operator()<typename decltype(type)::Type>(), true)
                     : false) ||
                ...);
      },
      NumberTypes{});
}

/// One element of any type, exactly: the value of a float or integer, otherwise its bytes as an unsigned
/// number.
ElementValue element_value(DType dtype, const uint8_t* bytes);

/// The same as a double, 64-bit integers rounded.
double element_number(DType dtype, const uint8_t* bytes);

/// Reads bytes of a tensor.
using ReadBytes = std::function<void(uint64_t offset, std::span<uint8_t> out)>;
/// Integers of a tensor that should have a few; empty if it has none or too many.
std::vector<int64_t> read_few_integers(const TensorInfo& tensor, const ReadBytes& read);
/// True if all numbers of a tensor are 0 or -0.
bool is_all_zero(const TensorInfo& tensor, const ReadBytes& read);
/// True if inputs 0, 1, 2, ... belong to groups 0, 0, ..., 1, 1, ... of one size, as they do without the
/// tensor. Also true if all are -1, which compressed-tensors writes for groups in order.
bool is_in_order(const TensorInfo& tensor, const ReadBytes& read);

}  // namespace twofour
