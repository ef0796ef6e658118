#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/dialect.h"

namespace twofour {

/// Statistics of the stored numbers of NVFP4 modules. All are counts, so that those of several modules add
/// up.
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
  /// Share of the quads that are 2:4 already.
  double share_2_4() const;
  /// Share of the octets that are 4:8-paired already.
  double share_4_8_paired() const;
  /// Smallest and largest block scale that occur, except NaN; zeros if all are NaN.
  std::pair<float, float> scale_range() const;
  uint64_t nan_scales() const;
};

/// Reads bytes from `offset` on of the tensor at an index. Must be safe from several threads.
using TensorReader = std::function<void(size_t tensor, uint64_t offset, std::span<uint8_t> out)>;

/// The figures of one NVFP4 module; see WeightStats.
struct ModuleStats {
  std::string name;
  double zero_share, share_2_4, share_4_8_paired;
  float scale_min, scale_max;  ///< block scales
  uint64_t nan_scales;
  float global_min, global_max;
};

/// The statistics of some modules.
struct GroupStats {
  WeightStats total;
  std::vector<ModuleStats> modules;  ///< in the order given
};

/// Reads the weights of modules on `jobs` threads; the results do not depend on their number.
GroupStats read_module_stats(std::span<const Nvfp4Linear> modules, std::span<const TensorInfo> tensors,
                             const TensorReader& read, int jobs);

/// Figures of all modules of a checkpoint, with a histogram of each group of names that differ only in
/// numbers.
struct Figures {
  std::vector<ModuleStats> modules;
  std::map<std::string, WeightStats> by_kind;  ///< by name_template, see NumberedName
  /// Adds a group of modules with names that differ only in numbers.
  void add(const GroupStats& group);
};

/// For each module, the largest over the smallest global scale among the linears that engines fuse with it,
/// including itself; NaN if there are none, or if a scale is not a positive number.
std::vector<double> fused_ratios(std::span<const ModuleStats> modules);

}  // namespace twofour
