#include "lib/tensor_values.h"

#include <algorithm>
#include <cstring>

#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "kernels/widen.h"

namespace twofour {
namespace {

/// Stored as T, told as the widest type of its kind.
template <class T, class Wide>
Wide number(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

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
  switch (dtype) {
    case DType::kF64:
      return number<double, double>(bytes);
    case DType::kI64:
      return number<int64_t, int64_t>(bytes);
    case DType::kI32:
      return number<int32_t, int64_t>(bytes);
    case DType::kI16:
      return number<int16_t, int64_t>(bytes);
    case DType::kI8:
      return number<int8_t, int64_t>(bytes);
    default:
      break;
  }
  switch (element_bytes(dtype)) {
    case 8:
      return number<uint64_t, uint64_t>(bytes);
    case 4:
      return number<uint32_t, uint64_t>(bytes);
    case 2:
      return number<uint16_t, uint64_t>(bytes);
    default:
      return uint64_t{*bytes};
  }
}

double element_number(DType dtype, const uint8_t* bytes) {
  return std::visit([](auto value) { return static_cast<double>(value); }, element_value(dtype, bytes));
}

}  // namespace twofour
