#include <algorithm>

#include "kernels/device/check.h"
#include "kernels/quantize_isa.h"

namespace twofour {

const QuantizeOps* quantize_ops(Isa isa) {
  const std::span<const Isa> isas = available_isas();
  check(std::find(isas.begin(), isas.end(), isa) != isas.end(), "an instruction set that this processor has");
  switch (isa) {
    case Isa::portable:
    case Isa::neon:
      break;
    case Isa::avx2:
      return &kQuantizeAvx2;
    case Isa::avx512:
      return &kQuantizeAvx512;
  }
  return nullptr;
}

}  // namespace twofour
