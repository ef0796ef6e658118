#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "formats/dialect.h"

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
  /// Of the quads, those that are 2:4 already.
  double share_2_4() const;
  /// Of the octets, those that are 4:8-paired already.
  double share_4_8_paired() const;
  /// Smallest and largest block scale that occur, NaN aside; zeros where there is none.
  std::pair<float, float> scale_range() const;
  uint64_t nan_scales() const;
};

/// Reads bytes from `offset` on of the tensor at an index. Must be safe from several threads.
using TensorReader = std::function<void(size_t tensor, uint64_t offset, std::span<uint8_t> out)>;

/// Reads all weights of one NVFP4 module, by bounded reads.
WeightStats read_weight_stats(std::span<const TensorInfo> tensors, const Nvfp4Module& module,
                              const TensorReader& read);

}  // namespace twofour
