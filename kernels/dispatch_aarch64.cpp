// Selects the kernels for processors of this kind.
#include <algorithm>
#include <vector>

#include "kernels/counts/count_ops.h"
#include "kernels/device/check.h"
#include "kernels/device/isa.h"
#include "kernels/floats/float_ops.h"
#include "kernels/moe/moe_strips.h"
#include "kernels/numbers/quantize_ops.h"
#include "kernels/pack/prune_pack_driver.h"
#include "kernels/pack/prune_words.h"
#include "kernels/solve/solve_ops.h"

namespace twofour {
// NEON is part of the architecture, so it is always available.
std::span<const Isa> available_isas() {
  static constexpr Isa kIsas[] = {Isa::portable, Isa::neon};
  return kIsas;
}

const PrunePackOps& prune_pack_ops(Isa isa) {
  check(isa == Isa::portable || isa == Isa::neon, "an instruction set that this processor has");
  return isa == Isa::neon ? kPrunePackNeon : kPrunePackPortable;
}

const MoeStrips& moe_strips(Isa) { return kMoeStripsPortable; }

PruneWords* wide_prune_words(Isa isa) { return isa == Isa::neon ? prune_words_neon : nullptr; }

/// Quantization has no vector kernels for this processor.
const QuantizeOps* quantize_ops(Isa isa) {
  const std::span<const Isa> isas = available_isas();
  check(std::find(isas.begin(), isas.end(), isa) != isas.end(), "an instruction set that this processor has");
  return nullptr;
}

const SolveOps& solve_ops(Isa) { return kSolvePortable; }

const FloatOps& float_ops(Isa) { return kFloatOpsPortable; }

const CountOps& count_ops(Isa) { return kCountPortable; }

}  // namespace twofour
