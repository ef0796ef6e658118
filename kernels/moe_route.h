#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace twofour {

/// One token at one of its experts.
struct RoutedRow {
  int64_t m, t;
};

/// Which rows each expert serves, by local expert; within one in the order of `topk_ids` [M, topk].
/// `expert_map` as in MoeInput. Throws Error on ids outside of the map or the experts.
std::map<int64_t, std::vector<RoutedRow>> route_rows(std::span<const int32_t> topk_ids, int64_t topk,
                                                     int64_t experts, std::span<const int32_t> expert_map);

}  // namespace twofour
