#include "kernels/check.h"
#include "kernels/prune_pack_driver.h"

namespace twofour {

const PrunePackOps& prune_pack_ops(Isa isa) {
  check(isa == Isa::portable, "an instruction set that this processor has");
  return kPrunePackPortable;
}

}  // namespace twofour
