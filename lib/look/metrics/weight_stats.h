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

/// Statistics of the stored numbers of NVFP4 modules. Counts of several modules can be added.
struct WeightStats {
  std::array<uint64_t, 16> codes{};    ///< by code
  std::array<uint64_t, 256> scales{};  ///< by block-scale byte
  uint64_t quads = 0;
  uint64_t quads_2_4 = 0;                ///< quads with at most two non-zero codes
  uint64_t octets = 0;                   ///< groups of eight along K
  uint64_t octets_4_8_paired = 0;        ///< octets with at most two non-zero aligned pairs
  float global_min = 0, global_max = 0;  ///< global scales as multipliers
  size_t modules = 0;

  WeightStats& operator+=(const WeightStats& other);
  uint64_t weights() const { return 4 * quads; }
  /// The share of codes that are 0 or -0.
  double zero_share() const;
  /// The share of quads that are already 2:4.
  double share_2_4() const;
  /// The share of octets that are already 4:8-paired.
  double share_4_8_paired() const;
  /// The smallest and the largest block scale that occur, without NaN. Both are 0 if all block scales are
  /// NaN.
  std::pair<float, float> scale_range() const;
  uint64_t nan_scales() const;
};

/// Fills `out` with the bytes of the tensor at index `tensor` from byte `offset` on. Must be safe from
/// several threads.
using TensorReader = std::function<void(size_t tensor, uint64_t offset, std::span<uint8_t> out)>;

/// The figures of one NVFP4 module. WeightStats explains them.
struct ModuleStats {
  std::string name;
  double zero_share, share_2_4, share_4_8_paired;
  float scale_min, scale_max;  ///< block scales
  uint64_t nan_scales;
  float global_min, global_max;
};

/// The statistics of several modules, together and one by one.
struct GroupStats {
  WeightStats total;
  std::vector<ModuleStats> modules;  ///< in the order given
};

/// Reads the weights of modules on `jobs` threads. The results do not depend on `jobs`.
GroupStats read_module_stats(std::span<const Nvfp4Linear> modules, std::span<const TensorInfo> tensors,
                             const TensorReader& read, int jobs);

/// The figures of all modules of a checkpoint, with histograms for each group of modules whose names differ
/// only in numbers.
struct Figures {
  std::vector<ModuleStats> modules;
  std::map<std::string, WeightStats> by_kind;  ///< by name_template, see NumberedName
  /// Adds a group of modules whose names differ only in numbers.
  void add(const GroupStats& group);
};

/// Returns a ratio for each module: the largest global scale divided by the smallest, among the module and
/// the linears that engines fuse with it. NaN if engines fuse no linear with it, or if a scale is not a
/// positive number.
std::vector<double> fused_ratios(std::span<const ModuleStats> modules);

}  // namespace twofour
