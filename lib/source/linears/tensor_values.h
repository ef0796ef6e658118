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

/// True if float32 represents every value of the type. These are F32, BF16, F16, E4M3 and E8M0.
bool has_float_values(DType dtype);

/// Converts `out.size()` elements to float32, exactly. The type must be one of has_float_values().
void to_floats(DType dtype, const uint8_t* bytes, std::span<float> out);

/// The unit of comparison, in bytes: the size of an element or, if several elements share a byte, one byte.
int64_t element_bytes(DType dtype);

/// A value of an element: an integer or a floating-point number.
using ElementValue = std::variant<int64_t, uint64_t, double>;

/// A type of elements, and the C++ type that holds its numbers.
template <DType kType, class T>
struct NumberType {
  static constexpr DType dtype = kType;
  using Type = T;
};
/// The element types F64 and all integer types.
using NumberTypes = std::tuple<NumberType<DType::kF64, double>, NumberType<DType::kI64, int64_t>,
                               NumberType<DType::kI32, int32_t>, NumberType<DType::kI16, int16_t>,
                               NumberType<DType::kI8, int8_t>, NumberType<DType::kU64, uint64_t>,
                               NumberType<DType::kU32, uint32_t>, NumberType<DType::kU16, uint16_t>,
                               NumberType<DType::kU8, uint8_t>, NumberType<DType::kBool, uint8_t>>;

/// Calls `f.template operator()<T>()` with the C++ type T of `dtype`. Returns false if `dtype` is not in
/// NumberTypes.
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

/// Reads one element of any type, exactly. The result is the value of a float or an integer; for other types
/// it is the element's bytes as an unsigned number.
ElementValue element_value(DType dtype, const uint8_t* bytes);

/// Reads one element as a double. 64-bit integers are rounded.
double element_number(DType dtype, const uint8_t* bytes);

/// Reads out.size() bytes of a tensor, from `offset` on.
using ReadBytes = std::function<void(uint64_t offset, std::span<uint8_t> out)>;
/// Reads the integers of a tensor that should have only a few. Empty: it has none or too many.
std::vector<int64_t> read_few_integers(const TensorInfo& tensor, const ReadBytes& read);
/// True if all numbers of a tensor are 0 or -0.
bool is_all_zero(const TensorInfo& tensor, const ReadBytes& read);
/// True if the tensor assigns inputs 0, 1, 2, ... to groups 0, 0, ..., 1, 1, ... of equal size, which is also
/// their order without this tensor. Also true if all numbers are -1, which compressed-tensors writes for
/// groups in order.
bool is_in_order(const TensorInfo& tensor, const ReadBytes& read);

}  // namespace twofour
