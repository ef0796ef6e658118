#pragma once
#include "kernels/device/isa.h"
#include "kernels/numbers/quantize_ops.h"

namespace twofour {

/// The vectors for `isa`, which must be available; none for the portable one and NEON.
const QuantizeOps* quantize_ops(Isa isa);

}  // namespace twofour
