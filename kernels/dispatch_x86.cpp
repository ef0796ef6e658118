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
namespace {

bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
}

// True if the processor has all features for which the AVX-512 files are compiled. Ice Lake and Zen 4 were
// the first to have them all.
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512ifma") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vpopcntdq") &&
         __builtin_cpu_supports("gfni");
}

}  // namespace

std::span<const Isa> available_isas() {
  static const std::vector<Isa> isas = [] {
    std::vector<Isa> found{Isa::portable};
    if (has_avx2()) found.push_back(Isa::avx2);
    if (has_avx2() && has_avx512()) found.push_back(Isa::avx512);
    return found;
  }();
  return isas;
}

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

const FloatOps& float_ops(Isa isa) {
  static const bool has_fma = __builtin_cpu_supports("fma");
  if (isa == Isa::portable || !has_fma) return kFloatOpsPortable;
  return isa == Isa::avx512 ? kFloatOpsAvx512 : kFloatOpsAvx2;
}

PruneWords* wide_prune_words(Isa isa) { return isa == Isa::portable ? nullptr : prune_words_avx2; }

const QuantizeOps* quantize_ops(Isa isa) {
  const std::span<const Isa> isas = available_isas();
  check(std::find(isas.begin(), isas.end(), isa) != isas.end(), "an instruction set that this processor has");
  switch (isa) {
    case Isa::portable:
    case Isa::neon:
      break;
    case Isa::avx2:
      return &kQuantizeAvx2;
    case Isa::avx512:
      return &kQuantizeAvx512;
  }
  return nullptr;
}

const SolveOps& solve_ops(Isa isa) {
  const std::span<const Isa> isas = available_isas();
  check(std::find(isas.begin(), isas.end(), isa) != isas.end(), "an instruction set that this processor has");
  switch (isa) {
    case Isa::portable:
    case Isa::neon:
      break;
    case Isa::avx2:
      return kSolveAvx2;
    case Isa::avx512:
      return kSolveAvx512;
  }
  return kSolvePortable;
}

const CountOps& count_ops(Isa isa) {
  switch (isa) {
    case Isa::portable:
    case Isa::neon:
      break;
    case Isa::avx2:
      return kCountAvx2;
    case Isa::avx512:
      return kCountAvx512;
  }
  return kCountPortable;
}

}  // namespace twofour
