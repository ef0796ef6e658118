#pragma once
#include "formats/hd.h"

namespace twofour {

/// How many pieces of `b` hold `a`: a / b, rounded up. `a` is 0 or more, `b` above 0.
template <class A, class B>
TWOFOUR_HD constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

}  // namespace twofour
