#include "kernels/device/check.h"
#include "kernels/moe/moe_strips.h"
#include "kernels/pack/prune_pack_driver.h"
#include "kernels/pack/prune_words.h"

namespace twofour {

const PrunePackOps& prune_pack_ops(Isa isa) {
  const std::span<const Isa> isas = available_isas();
  check(std::find(isas.begin(), isas.end(), isa) != isas.end(), "an instruction set that this processor has");
  switch (isa) {
    case Isa::portable:
    case Isa::neon:
      break;
    case Isa::avx2:
      return kPrunePackAvx2;
    case Isa::avx512:
      return kPrunePackAvx512;
  }
  return kPrunePackPortable;
}

const MoeStrips& moe_strips(Isa isa) { return isa == Isa::portable ? kMoeStripsPortable : kMoeStripsAvx2; }

PruneWords* wide_prune_words(Isa isa) { return isa == Isa::portable ? nullptr : prune_words_avx2; }

}  // namespace twofour
