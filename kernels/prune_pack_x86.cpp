#include "kernels/check.h"
#include "kernels/prune_pack_driver.h"

namespace twofour {

const PrunePackOps& prune_pack_ops(Isa isa) {
  const std::span<const Isa> isas = available_isas();
  check(std::find(isas.begin(), isas.end(), isa) != isas.end(), "an instruction set that this processor has");
  switch (isa) {
    case Isa::portable:
      break;
    case Isa::avx2:
      return kPrunePackAvx2;
    case Isa::avx512:
      return kPrunePackAvx512;
  }
  return kPrunePackPortable;
}

}  // namespace twofour
