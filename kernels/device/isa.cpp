#include "kernels/device/isa.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "formats/error.h"

namespace twofour {

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return "portable";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::neon:
      return "neon";
  }
  return "unknown";
}

Isa best_isa() {
  const std::span<const Isa> isas = available_isas();
  const char* forced = std::getenv("TWOFOUR_ISA");
  if (forced == nullptr || *forced == '\0') return isas.back();
  std::string names;
  for (const Isa isa : isas) {
    if (isa_name(isa) == forced) return isa;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", isa_name(isa));
  }
  throw Error(fmt::format("TWOFOUR_ISA: expected what runs here ({}), found \"{}\"", names, forced));
}

}  // namespace twofour
