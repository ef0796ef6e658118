#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/threads/interrupt.h"

namespace twofour {

/// Takes `bytes` bytes through one buffer of `step` bytes: read(at, piece) fills it, use(at, piece) has them.
template <class Read, class Use>
void read_in_pieces(uint64_t bytes, uint64_t step, Read&& read, Use&& use) {
  std::vector<uint8_t> buffer(std::min(step, bytes));
  for (uint64_t at = 0; at < bytes; at += step) {
    check_interrupt();
    const std::span<uint8_t> piece(buffer.data(), std::min(step, bytes - at));
    read(at, piece);
    use(at, piece);
  }
}

}  // namespace twofour
