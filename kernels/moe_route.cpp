#include "kernels/moe_route.h"

#include <fmt/format.h>

#include "formats/error.h"

namespace twofour {

std::map<int64_t, std::vector<RoutedRow>> route_rows(std::span<const int32_t> topk_ids, int64_t topk,
                                                     int64_t experts, std::span<const int32_t> expert_map) {
  std::map<int64_t, std::vector<RoutedRow>> rows;
  const auto known = expert_map.empty() ? experts : static_cast<int64_t>(expert_map.size());
  for (int64_t i = 0; i < static_cast<int64_t>(topk_ids.size()); ++i) {
    int64_t e = topk_ids[static_cast<size_t>(i)];
    if (e < 0 || e >= known) {
      throw Error(fmt::format("topk_ids[{}, {}]: expected an expert from 0 to {}, found {}", i / topk,
                              i % topk, known - 1, e));
    }
    if (!expert_map.empty()) e = expert_map[static_cast<size_t>(e)];
    if (e == -1) continue;
    if (e < 0 || e >= experts)
      throw Error(fmt::format("expert_map: expected -1 to {}, found {}", experts - 1, e));
    rows[e].push_back({i / topk, i % topk});
  }
  return rows;
}

}  // namespace twofour
