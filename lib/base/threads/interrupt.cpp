#include "lib/base/threads/interrupt.h"

#include <atomic>

#include "formats/error.h"

namespace twofour {
namespace {
std::atomic<bool> asked{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may touch it");
}  // namespace

void request_interrupt() noexcept { asked.store(true, std::memory_order_relaxed); }

void clear_interrupt() noexcept { asked.store(false, std::memory_order_relaxed); }

void check_interrupt() {
  if (asked.load(std::memory_order_relaxed)) throw Interrupted();
}

}  // namespace twofour
