#include "kernels/device/check.h"
#include "kernels/moe/moe_strips.h"
#include "kernels/pack/prune_pack_driver.h"
#include "kernels/pack/prune_words.h"

namespace twofour {

const PrunePackOps& prune_pack_ops(Isa isa) {
  check(isa == Isa::portable || isa == Isa::neon, "an instruction set that this processor has");
  return isa == Isa::neon ? kPrunePackNeon : kPrunePackPortable;
}

const MoeStrips& moe_strips(Isa) { return kMoeStripsPortable; }

PruneWords* wide_prune_words(Isa isa) { return isa == Isa::neon ? prune_words_neon : nullptr; }

}  // namespace twofour
