#include "kernels/device/isa.h"

namespace twofour {

// For processors that have no file of their own yet.
std::span<const Isa> available_isas() {
  static constexpr Isa kIsas[] = {Isa::portable};
  return kIsas;
}

}  // namespace twofour
