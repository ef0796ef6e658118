#pragma once
#include <cstdint>

// Files that are compiled for one instruction set include this file; see quantize_ops.h.

namespace twofour {

/// Returns e4m3_to_float of scales that are neither NaN nor negative.
template <class V>
[[gnu::always_inline]] inline typename V::F value_of(typename V::I byte) {
  const typename V::F subnormal = V::as_float((byte << 20) + (121 << 23)) - V::all(0x1p-6f);
  return V::select(V::greater(V::all(8), byte), subnormal, V::as_float((byte << 20) + (120 << 23)));
}

/// Rounds a ratio to a value of E2M1, like nearest_e2m1 in quantize.cpp. The ratio must be below 7 and not
/// negative.
template <class V>
[[gnu::always_inline]] inline typename V::F nearest_below_7(typename V::F ratio) {
  const auto magic = V::by_low_exponent(ratio, 0x1.8p22f, 0x1.8p23f, 0x1.8p24f);
  return (ratio + magic) - magic;
}

/// Rounds any ratio that is not negative to a value of E2M1. NaN stays NaN.
template <class V>
[[gnu::always_inline]] inline typename V::F nearest_e2m1(typename V::F ratio) {
  return V::min(V::all(6.0f), nearest_below_7<V>(ratio));
}

/// The squared error of the block in each lane, added in the order of nvfp4_choices.h.
template <class V>
[[gnu::always_inline]] inline typename V::F squared_error(const typename V::F (&x)[16], typename V::F step) {
  using F = typename V::F;
  const auto square = [&](int i) __attribute__((always_inline)) {
    const F size = V::as_float(V::as_int(x[i]) & INT32_MAX);
    const F error = size - nearest_e2m1<V>(size / step) * step;
    return error * error;
  };
  F pair[8];
  for (int j = 0; j < 8; ++j) pair[j] = square(j) + square(j + 8);
  return ((pair[0] + pair[1]) + (pair[2] + pair[3])) + ((pair[4] + pair[5]) + (pair[6] + pair[7]));
}

// The sweep finds the block scale with the least squared error E, as squared_error computes it, the smallest
// of equal ones. It computes E for few. It estimates E for the others and skips scales that cannot win.
//
// Let s be a step, m a magnitude, a the largest one of the block, g the distance of m / s to the nearest
// value of E2M1 and G the sum of (s g)^2. Let u = 2^-24, the rounding of a float, and h = 2^-20 a. Steps are
// E4M3 times a number, rounded three times at most; t, E4M3 times steps[126] / 448, is within 6.1 u of s.
//
// 1. |A - G| <= 2^-13 G + 2^-21 a^2 for the estimate A = t^2 sum (r - v)^2, where r = m * (1 / t) and v is
//    the value nearest to r. For r is off by 8.2 u m / s, g moves no faster than its argument, and r - v is
//    rounded once, so s |r - v| is within 9.3 u m < h of s g. Its square is then within
//    2 h s g + h^2 <= 2^-14 (s g)^2 + (2^14 + 1) h^2 of (s g)^2; sixteen of the latter are below 2^-21.9 a^2.
//    t^2 for s^2 and rounding the sum add less than 40 u. Underflow adds less than 2^-140, nothing to a^2.
// 2. |E - G| <= 2^-13 G + 2^-21 a^2. The quotient is off by u, so the value v that it chooses is no further
//    than s g + 2 u m from m; v s, at most 2.01 m, and the difference are rounded once each: the error is
//    within 5.2 u m < h of s g. The rest as before.
// 3. So E < least (1 + 2^-11) + 2^-19 a^2 for the step with the least A. An A above
//    limit = least (1 + 2^-10) + 2^-18 a^2, with any A for `least`, has an E above that: it loses. So has one
//    with a sum over some of its terms above the limit.
// 4. A step s' >= s moves m / s further below 1/2, if it is there, so that s' g' >= s g: m is between 0 and
//    s / 2, and the latter only goes away. A sum of (r - v)^2 over only those r bounds G' from below as A
//    bounds G, and if it is above the limit, s' loses. (An m / s above 1/2 with its r below has
//    t |r - v| < h, which 1. has room for.)
// 5. If 6 s < a, g of the largest magnitude is a / s - 6, and smaller steps cut off more: if
//    (a - 6 t)^2 is above the limit, they lose. It is within h of s g before it is squared, as in 1.
// 6. If a <= s / 4, all codes are zero, and they stay zero: larger steps have the same E.
//
// This needs a within 2^-40 .. 2^40, s within 2^-60 .. 2^60, and a / s below 2^40, so that nothing overflows.

/// The lanes whose largest magnitude is in the range for which the sweep is valid.
template <class V>
[[gnu::always_inline]] inline typename V::M sweepable(typename V::F amax, const float* steps) {
  // The smallest step is 2^-18 of the largest step.
  const float most = steps[126] * 0x1p20f;
  return V::both(V::less(V::all(0x1p-40f), amax), V::less(amax, V::all(most < 0x1p40f ? most : 0x1p40f)));
}

/// Sums of (r - v)^2 over some of the sixteen weights of a block.
template <class V>
struct Estimate {
  typename V::F all;    ///< sum over all r
  typename V::F below;  ///< sum over r < 1/2
};

enum class Ratios { any, below_7 };

template <class V, Ratios ratios, bool with_below, int first = 0, int end = 16>
[[gnu::always_inline]] inline Estimate<V> estimate(const typename V::F (&size)[16], typename V::F inverse) {
  using F = typename V::F;
  const F zero = V::all(0.0f);
  F all[2] = {zero, zero}, below[2] = {zero, zero};
  for (int i = first; i < end; ++i) {
    const F ratio = size[i] * inverse;
    const F off = ratio - (ratios == Ratios::any ? nearest_e2m1<V>(ratio) : nearest_below_7<V>(ratio));
    all[i % 2] = V::add_square(all[i % 2], off);
    if (with_below) {
      below[i % 2] = V::add_square_if(V::less(ratio, V::all(0.5f)), below[i % 2], off);
    }
  }
  return {all[0] + all[1], below[0] + below[1]};
}

/// The block scale with the least squared error, for the lanes in `lanes`. If errors are equal, the smallest
/// scale is chosen. The search begins at `near`, 1 .. 126.
template <class V>
[[gnu::always_inline]] inline typename V::I sweep(const typename V::F (&x)[16], typename V::F amax,
                                                  typename V::I near, const float* steps,
                                                  typename V::M lanes) {
  using F = typename V::F;
  using I = typename V::I;
  using M = typename V::M;
  constexpr int kLast = 126;
  // Only speed depends on these constants. kFar: at this distance above `near`, half of the terms of most
  // estimates exceed the limit. kFirstAsked: the step after which the sweep first tests whether larger steps
  // can win. kAskEvery: the number of steps between two tests.
  constexpr int kFar = 6, kFirstAsked = 8, kAskEvery = 3;
  const F endless = V::all(0x1.FFFFFEp127f);
  const F slack = amax * amax * V::all(0x1p-18f);
  const auto limit_of = [&](F least) __attribute__((always_inline)) {
    return least * V::all(1.0f + 0x1p-10f) + slack;
  };
  const auto in_range = [&](I byte) __attribute__((always_inline)) {
    return V::both(V::greater(byte, V::all(0)), V::greater(V::all(kLast + 1), byte));
  };
  const F scale_unit = V::all(steps[kLast] / 448.0f);
  const auto near_step_of = [&](I byte) __attribute__((always_inline)) {
    return value_of<V>(V::max(V::min(byte, V::all(kLast)), V::all(1))) * scale_unit;
  };
  const F one = V::all(1.0f);
  near = V::select(lanes, near, V::all(1));
  F size[16];
  for (int i = 0; i < 16; ++i) size[i] = V::as_float(V::as_int(x[i]) & INT32_MAX);

  // Estimate
  F errors[2 * kLast + 1];  // the error of near + i is at kLast + i
  const auto of_any = [&](F step) __attribute__((always_inline)) {
    return estimate<V, Ratios::any, false>(size, one / step).all * (step * step);
  };
  const F start = near_step_of(near);
  F least = of_any(start);
  errors[kLast] = least;
  int first = kLast, last = kLast;
  M active = lanes;
  for (I byte = near - 1;; byte -= 1) {
    const F step = near_step_of(byte), cut = V::max(V::all(0.0f), amax - V::all(6.0f) * step);
    active = V::both(V::both(active, in_range(byte)), V::less_equal(cut * cut, limit_of(least)));
    if (!V::any(active)) break;
    errors[--first] = V::select(active, of_any(step), endless);
    least = V::min(least, errors[first]);
  }
  active = lanes;
  F smaller = start;
  int up = 1;
  for (I byte = near + 1;; byte += 1, ++up) {
    active = V::both(active, V::both(in_range(byte), V::less(V::all(0.249f) * smaller, amax)));
    if (!V::any(active)) break;
    const F step = near_step_of(byte), inverse = one / step, unit = step * step, limit = limit_of(least);
    smaller = step;
    M goes_on = active;
    F error;
    if (V::any(V::both(active, V::less(V::all(6.5f) * step, amax)))) {
      error = of_any(step);
    } else if (up >= kFirstAsked && (up - kFirstAsked) % kAskEvery == 0) {
      const Estimate<V> found = estimate<V, Ratios::below_7, true>(size, inverse);
      error = found.all * unit;
      goes_on = V::both(active, V::less_equal(found.below * unit, limit));
    } else {
      error = estimate<V, Ratios::below_7, false, 0, 8>(size, inverse).all * unit;
      if (up < kFar || V::any(V::both(active, V::less_equal(error, limit)))) {
        error += estimate<V, Ratios::below_7, false, 8, 16>(size, inverse).all * unit;
      }
    }
    errors[++last] = V::select(active, error, endless);
    least = V::min(least, errors[last]);
    active = goes_on;
  }

  // Compute the remaining errors, from the smallest scale on. Often only one remains in each lane.
  const F limit = limit_of(least);
  const I none = V::all(0);
  F least_error = endless;
  I best = V::all(1), next = none;
  const auto compute = [&]() __attribute__((always_inline)) {
    const F error = squared_error<V>(x, V::gather(steps, V::max(next, V::all(1))));
    const M better = V::both(V::greater(next, none), V::less(error, least_error));
    least_error = V::select(better, error, least_error);
    best = V::select(better, next, best);
    next = none;
  };
  for (int i = first; i <= last + 1; ++i) {
    const M hit = i > last ? lanes : V::less_equal(errors[i], limit);
    if (V::any(V::both(hit, V::greater(next, none)))) compute();
    next = V::select(hit, near + (i - kLast), next);
  }
  return V::select(lanes, best, V::all(1));
}

}  // namespace twofour
