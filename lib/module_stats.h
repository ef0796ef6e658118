#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/dialect.h"
#include "lib/metrics/weight_stats.h"

namespace twofour {

/// The figures of one NVFP4 module; see WeightStats.
struct ModuleStats {
  std::string name;
  double zero_share, share_2_4, share_4_8_paired;
  float scale_min, scale_max;  ///< block scales
  uint64_t nan_scales;
  float global_min, global_max;
};

/// Of some modules.
struct GroupStats {
  WeightStats total;
  std::vector<ModuleStats> modules;  ///< in the order given
};

/// Reads the weights of modules on `jobs` threads; their number changes nothing.
GroupStats read_module_stats(std::span<const Nvfp4Module> modules, std::span<const TensorInfo> tensors,
                             const TensorReader& read, int jobs);

/// Figures of all modules of a checkpoint, with histograms of those whose names differ only in numbers.
struct Figures {
  std::vector<ModuleStats> modules;
  std::map<std::string, WeightStats> by_kind;  ///< by skeleton, see NumberedName
  /// A group whose names differ only in numbers.
  void add(const GroupStats& group);
};

/// For each module in turn the largest over the smallest global scale of the linears that engines fuse with
/// it, itself included; not a number where there is none, or where a scale is no positive number.
std::vector<double> fused_ratios(std::span<const ModuleStats> modules);

}  // namespace twofour
