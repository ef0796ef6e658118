#include <algorithm>

#include "kernels/device/check.h"
#include "kernels/quantize_isa.h"

namespace twofour {

/// No vectors are written for this processor, whatever others it runs.
const QuantizeOps* quantize_ops(Isa isa) {
  const std::span<const Isa> isas = available_isas();
  check(std::find(isas.begin(), isas.end(), isa) != isas.end(), "an instruction set that this processor has");
  return nullptr;
}

}  // namespace twofour
