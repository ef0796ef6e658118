#include "lib/write/transform/finite_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "kernels/device/isa.h"
#include "kernels/numbers/casts.h"

namespace twofour {

void refuse_beyond_bf16(const std::string& where, std::span<const float> rows, int64_t row, int64_t k) {
  if (largest_magnitude(rows, best_isa()) < kBeyondBf16) return;
  const auto at =
      std::find_if(rows.begin(), rows.end(), [](float x) { return !(std::fabs(x) < kBeyondBf16); });
  const int64_t place = at - rows.begin();
  throw Error(fmt::format("{}: expected finite weights within BF16, found {} at row {}, k {}", where, *at,
                          row + place / k, place % k));
}

}  // namespace twofour
