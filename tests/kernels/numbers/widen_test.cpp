#include "kernels/numbers/casts.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "formats/half.h"
#include "tests/support/weights/slow_float.h"

namespace widen_test {

using namespace twofour;

namespace {

/// All 2^16 numbers of a type, from the byte after an aligned one.
std::vector<uint8_t> all_halves() {
  std::vector<uint8_t> bytes(1 + 2 * 0x10000);
  for (unsigned i = 0; i < 0x10000; ++i) {
    bytes[1 + 2 * i] = static_cast<uint8_t>(i);
    bytes[2 + 2 * i] = static_cast<uint8_t>(i >> 8);
  }
  return bytes;
}

}  // namespace

TEST_CASE("every BF16 and FP16 number widens to the same value, NaN to the same bits") {
  const std::vector<uint8_t> bytes = all_halves();
  const SlowFloat bf16{8, 7, 127, 0x7F7F}, fp16{5, 10, 15, 0x7BFF};
  for (const Isa isa : available_isas()) {
    for (const DType type : {DType::kBF16, DType::kF16}) {
      const SlowFloat& format = type == DType::kBF16 ? bf16 : fp16;
      std::vector<float> found(0x10000);
      widen(type, bytes.data() + 1, found, isa);
      for (unsigned i = 0; i < 0x10000; ++i) {
        const auto half = static_cast<uint16_t>(i);
        REQUIRE(bits_of(found[i]) ==
                bits_of(type == DType::kBF16 ? bf16_to_float(half) : fp16_to_float(half)));
        if ((i & 0x7FFF) <= format.last) REQUIRE(double{found[i]} == format.value(i));
        if ((i & 0x7FFF) > format.last + 1) REQUIRE(std::isnan(found[i]));
      }
    }
  }
}

TEST_CASE("any number of numbers widens, and nothing after them changes") {
  const std::vector<uint8_t> bytes = all_halves();
  for (const Isa isa : available_isas()) {
    for (const DType type : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (size_t count = 0; count < 70; ++count) {
        std::vector<float> found(count + 1, -1.0f);
        widen(type, bytes.data() + 0x7001, {found.data(), count}, isa);
        CHECK(found[count] == -1.0f);
        for (size_t i = 0; i < count; ++i) {
          uint32_t bits = 0;
          std::memcpy(&bits, bytes.data() + 0x7001 + i * (type == DType::kF32 ? 4 : 2), 4);
          const auto half = static_cast<uint16_t>(bits);
          const float expected = type == DType::kF32    ? std::bit_cast<float>(bits)
                                 : type == DType::kBF16 ? bf16_to_float(half)
                                                        : fp16_to_float(half);
          REQUIRE(bits_of(found[i]) == bits_of(expected));
        }
      }
    }
  }
}

}  // namespace widen_test
