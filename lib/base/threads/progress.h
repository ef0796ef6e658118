#pragma once
#include <atomic>
#include <cstdint>

namespace twofour {

/// The progress of a run. The library counts; the caller displays.
struct Progress {
  std::atomic<const char*> phase{"starting"};
  std::atomic<uint64_t> done{0};   ///< bytes read so far, of `total`
  std::atomic<uint64_t> total{0};  ///< bytes that will be read
  /// A run of a model layer by layer has a place, too. `done` of `total` is then the share of its work.
  std::atomic<int64_t> layer{0};      ///< layer that runs, from 1; 0: no layer yet
  std::atomic<int64_t> layers{0};     ///< 0: the run has no layers
  std::atomic<const char*> part{""};  ///< part of the layer, such as "q/k/v"
  std::atomic<uint64_t> tokens{0};    ///< tokens that the part has seen, of `all_tokens`
  std::atomic<uint64_t> all_tokens{0};
};

}  // namespace twofour
