#include "kernels/check.h"
#include "kernels/quantize_isa.h"

namespace twofour {

const QuantizeOps* quantize_ops(Isa isa) {
  check(isa == Isa::portable, "an instruction set that this processor has");
  return nullptr;
}

}  // namespace twofour
