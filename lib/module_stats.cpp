#include "lib/module_stats.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>

#include "lib/fused_linears.h"
#include "lib/names/natural.h"

namespace twofour {
namespace {

ModuleStats figures_of(const std::string& name, const WeightStats& s) {
  const auto [low, high] = s.scale_range();
  return {name, s.zero_share(), s.share_2_4(), s.share_4_8_paired(), low,
          high, s.nan_scales(), s.global_min,  s.global_max};
}

}  // namespace

GroupStats read_module_stats(std::span<const Nvfp4Module> modules, std::span<const TensorInfo> tensors,
                             const TensorReader& read, int jobs) {
  GroupStats group;
  group.modules.resize(modules.size());
  std::exception_ptr error;
  const auto count = static_cast<int64_t>(modules.size());
#pragma omp parallel for schedule(dynamic) num_threads(jobs)
  for (int64_t i = 0; i < count; ++i) {
    try {
      const Nvfp4Module& m = modules[static_cast<size_t>(i)];
      const WeightStats stats = read_weight_stats(tensors, m, read);
      group.modules[static_cast<size_t>(i)] = figures_of(m.name, stats);
#pragma omp critical
      group.total += stats;
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
  return group;
}

void Figures::add(const GroupStats& group) {
  if (group.modules.empty()) return;
  modules.insert(modules.end(), group.modules.begin(), group.modules.end());
  by_kind[split_numbers(group.modules[0].name).skeleton] += group.total;
}

std::vector<double> fused_ratios(std::span<const ModuleStats> modules) {
  std::map<std::pair<std::string, size_t>, std::vector<size_t>> groups;
  for (size_t i = 0; i < modules.size(); ++i) {
    // Several scales in one module have no single ratio to a neighbour's.
    const ModuleStats& m = modules[i];
    const bool one = m.global_min == m.global_max && m.global_max > 0 && std::isfinite(m.global_max);
    const auto group = one ? fused_group(m.name) : std::nullopt;
    if (group) groups[*group].push_back(i);
  }
  std::vector<double> ratios(modules.size(), std::numeric_limits<double>::quiet_NaN());
  for (const auto& [key, members] : groups) {
    if (members.size() < 2) continue;
    const auto [low, high] = std::minmax_element(members.begin(), members.end(), [&](size_t a, size_t b) {
      return modules[a].global_max < modules[b].global_max;
    });
    const double ratio = double{modules[*high].global_max} / double{modules[*low].global_max};
    for (const size_t i : members) ratios[i] = ratio;
  }
  return ratios;
}

}  // namespace twofour
