#include "kernels/device/isa.h"

namespace twofour {

// NEON is part of the architecture.
std::span<const Isa> available_isas() {
  static constexpr Isa kIsas[] = {Isa::portable, Isa::neon};
  return kIsas;
}

}  // namespace twofour
