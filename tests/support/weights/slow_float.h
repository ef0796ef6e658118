#pragma once
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace twofour {

/// A floating-point format by its numbers. Codes above `last` are infinities or NaN.
struct SlowFloat {
  int exponent_bits, mantissa_bits, bias;
  unsigned last;  ///< the largest finite magnitude

  unsigned sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }

  /// The value of a finite code, from the definition: powers of two and nothing else. The code above `last`
  /// decodes to what it would mean if it were finite: where rounding to `last` ends.
  double value(unsigned code) const {
    const unsigned magnitude = code & (sign_bit() - 1);
    const int mantissa = static_cast<int>(magnitude & ((1u << mantissa_bits) - 1));
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const double v = exponent == 0
                         ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                         : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
    return code & sign_bit() ? -v : v;
  }

  /// Nearest code of a finite x by looking at all of them, ties to even; above `last` it saturates.
  unsigned nearest(double x) const {
    unsigned best = std::abs(x) < value(last) ? 0 : last;
    for (unsigned code = 1; best != last && code <= last; ++code) {
      const double was = std::abs(std::abs(x) - value(best)), is = std::abs(std::abs(x) - value(code));
      if (is < was || (is == was && code % 2 == 0)) best = code;
    }
    return std::signbit(x) ? best | sign_bit() : best;
  }
};

inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

/// Both signs of every midpoint between neighbouring codes up to `end` go to the even one, and the floats
/// beside it to the nearer one. With `end` above `last`, code `last + 1` is where overflow goes.
template <class Encode>
void check_midpoints(const SlowFloat& format, unsigned end, Encode encode) {
  for (unsigned code = 0; code < end; ++code) {
    const double exact = (format.value(code) + format.value(code + 1)) / 2;
    const float tie = static_cast<float>(exact);
    REQUIRE(double{tie} == exact);
    const float below = std::nextafter(tie, 0.0f);
    const float above = std::nextafter(tie, std::numeric_limits<float>::infinity());
    CAPTURE(tie);
    CHECK(encode(tie) == (code % 2 == 0 ? code : code + 1));
    CHECK(encode(below) == code);
    CHECK(encode(above) == code + 1);
    CHECK(encode(-tie) == (format.sign_bit() | (code % 2 == 0 ? code : code + 1)));
    CHECK(encode(-below) == (format.sign_bit() | code));
    CHECK(encode(-above) == (format.sign_bit() | (code + 1)));
  }
}

}  // namespace twofour
