#include "kernels/device/check.h"
#include "kernels/moe/moe_strips.h"
#include "kernels/pack/prune_pack_driver.h"
#include "kernels/pack/prune_words.h"

namespace twofour {

const PrunePackOps& prune_pack_ops(Isa isa) {
  check(isa == Isa::portable, "an instruction set that this processor has");
  return kPrunePackPortable;
}

const MoeStrips& moe_strips(Isa) { return kMoeStripsPortable; }

PruneWords* wide_prune_words(Isa) { return nullptr; }

}  // namespace twofour
