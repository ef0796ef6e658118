#include "lib/jobs/compress/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace twofour {

uint64_t machine_memory() {
  const auto all =
      static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  uint64_t limit = all;
  std::ifstream("/sys/fs/cgroup/memory.max") >> limit;  // "max" is no number, and leaves 0
  return limit > 0 ? std::min(all, limit) : all;
}

}  // namespace twofour
