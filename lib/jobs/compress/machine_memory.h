#pragma once
#include <cstdint>

namespace twofour {

/// Bytes of memory of this machine, or of the process's control group if it has a smaller limit.
uint64_t machine_memory();

}  // namespace twofour
