#pragma once
#include <cstdint>
#include <span>
#include <variant>

#include "formats/dtype.h"

namespace twofour {

/// Whether every value of a type is a float32: F32, BF16, F16, E4M3 and E8M0.
bool has_float_values(DType dtype);

/// `out.size()` elements of such a type as float32, exactly.
void to_floats(DType dtype, const uint8_t* bytes, std::span<float> out);

/// Bytes that elements are compared by: those of one, or one byte where several share some.
int64_t element_bytes(DType dtype);

/// An integer or a number in floating point.
using ElementValue = std::variant<int64_t, uint64_t, double>;

/// One element of any type, exactly: float and integer types by value, others as the unsigned number of their
/// bytes.
ElementValue element_value(DType dtype, const uint8_t* bytes);

/// The same as a double, 64-bit integers rounded.
double element_number(DType dtype, const uint8_t* bytes);

}  // namespace twofour
