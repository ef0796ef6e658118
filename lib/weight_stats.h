#pragma once
#include <array>
#include <cstdint>
#include <utility>

#include "lib/checkpoint.h"

namespace twofour {

/// What the stored numbers of NVFP4 modules look like. Counts, so that those of several modules add up.
struct WeightStats {
  std::array<uint64_t, 16> codes{};    ///< by code
  std::array<uint64_t, 256> scales{};  ///< by block-scale byte
  uint64_t quads = 0;
  uint64_t quads_2_4 = 0;                ///< with at most two non-zero codes
  uint64_t octets = 0;                   ///< groups of eight along K
  uint64_t octets_4_8_paired = 0;        ///< with at most two non-zero aligned pairs
  float global_min = 0, global_max = 0;  ///< multipliers
  size_t modules = 0;

  WeightStats& operator+=(const WeightStats& other);
  uint64_t weights() const { return 4 * quads; }
  /// Share of codes of magnitude 0.
  double zero_share() const;
  double share_2_4() const;         ///< of quads
  double share_4_8_paired() const;  ///< of octets
  /// Smallest and largest block scale that occur, NaN aside.
  std::pair<float, float> scale_range() const;
  uint64_t nan_scales() const;
};

/// Reads all weights of one NVFP4 module, by bounded reads.
WeightStats read_weight_stats(const Checkpoint& checkpoint, const Nvfp4Module& module);

}  // namespace twofour
