#include "lib/checkpoint/tensor_values.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "kernels/numbers/casts.h"

namespace twofour {
namespace {

/// The widest type of T's kind.
template <class T>
using Widest = std::conditional_t<std::is_floating_point_v<T>, double,
                                  std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;

}  // namespace

bool has_float_values(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF8E4M3 ||
         dtype == DType::kF8E8M0;
}

void to_floats(DType dtype, const uint8_t* bytes, std::span<float> out) {
  if (dtype == DType::kF8E4M3) {
    std::transform(bytes, bytes + out.size(), out.begin(), [](uint8_t b) { return e4m3_to_float(b); });
  } else if (dtype == DType::kF8E8M0) {
    std::transform(bytes, bytes + out.size(), out.begin(), [](uint8_t b) { return e8m0_to_float(b); });
  } else {
    widen(dtype, bytes, out);
  }
}

int64_t element_bytes(DType dtype) {
  const int bits = dtype_bits(dtype);
  return bits % 8 == 0 ? bits / 8 : 1;
}

ElementValue element_value(DType dtype, const uint8_t* bytes) {
  if (has_float_values(dtype)) {
    float value = 0;
    to_floats(dtype, bytes, {&value, 1});
    return double{value};
  }
  ElementValue value;
  const bool is_number = with_number_type(dtype, [&]<class T>() {
    T stored;
    std::memcpy(&stored, bytes, sizeof(stored));
    value = Widest<T>{stored};
  });
  if (is_number) return value;
  uint64_t number = 0;
  std::memcpy(&number, bytes, static_cast<size_t>(element_bytes(dtype)));
  return number;
}

double element_number(DType dtype, const uint8_t* bytes) {
  return std::visit([](auto value) { return static_cast<double>(value); }, element_value(dtype, bytes));
}

}  // namespace twofour
