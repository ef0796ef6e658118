#include "lib/global_scale.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace twofour {

SourceScale read_global_scale(const Checkpoint& c, const Nvfp4Module& m, int64_t expert, Problems& problems) {
  const uint64_t count = c.tensors()[m.global_scale].bytes() / sizeof(float);
  uint8_t bytes[sizeof(float)];
  c.read(m.global_scale, count == 1 ? 0 : static_cast<uint64_t>(expert) * sizeof(float), bytes);
  float stored = 0;
  std::memcpy(&stored, bytes, sizeof(stored));
  const float own = global_scale_multiplier(*m.dialect, stored);
  if (!std::isfinite(stored) || stored <= 0 || !std::isfinite(own) || own <= 0) {
    problems.add(fmt::format("{}: expected a positive finite global scale, found {}", c.where(m.global_scale),
                             stored));
  }
  return {std::bit_cast<uint32_t>(stored), own};
}

}  // namespace twofour
