#include "lib/repair/input_member.h"

#include <fmt/format.h>

#include <cmath>

#include "formats/naming.h"
#include "lib/base/names/natural.h"
#include "lib/repair/repair.h"

namespace twofour {

float multiplier_of(float stored, bool divides) {
  const float multiplier = divides ? 1 / stored : stored;
  const bool is_valid = std::isfinite(stored) && stored > 0 && std::isfinite(multiplier) && multiplier > 0;
  return is_valid ? multiplier : 0;
}

std::string projection_of(const InputMember& m) {
  const auto parsed = parse_module_name(m.module);
  if (!parsed || parsed->kind != BlockKind::kRoutedExperts) return m.module;
  return fmt::format("{} {}", parsed->block,
                     parsed->projection == Projection::kDown ? "down" : "gate and up");
}

std::string fused_name(const InputMember& m) {
  const auto fused = fused_group(m.module);
  // Experts of a stack are not fused.
  return fused ? fmt::format("{} {}", fused->first, fused->second) : fmt::format("{} {}", m.module, m.place);
}

bool is_gate_or_up(const InputMember& m) {
  const auto parsed = parse_module_name(m.module);
  return parsed && parsed->projection != Projection::kDown;
}

std::string kind_over_layers(const InputMember& m) { return kind_of(projection_of(m)); }

int64_t layer_of(const InputMember& m) {
  const NumberedName name = split_numbers(m.module);
  return name.numbers.empty() ? 0 : name.numbers[0];
}

}  // namespace twofour
