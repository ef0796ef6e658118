#pragma once
#include <atomic>
#include <cstdint>

namespace twofour {

/// The progress of a run. The library counts; the caller displays.
struct Progress {
  std::atomic<const char*> phase{"starting"};
  std::atomic<uint64_t> done{0};   ///< bytes read so far, of `total`
  std::atomic<uint64_t> total{0};  ///< bytes that will be read
};

}  // namespace twofour
