#include <vector>

#include "kernels/device/isa.h"

namespace twofour {
namespace {

bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
}

// Every flag that the AVX-512 file is compiled with. Ice Lake and Zen 4 were the first to have them all.
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512ifma") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("gfni");
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

}  // namespace twofour
