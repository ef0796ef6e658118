#include "lib/lint/content/copied_layers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lib/lint/content/zeros_by_design.h"

namespace twofour {

CopiedLayers::CopiedLayers(std::span<const Member* const> members) {
  struct Layer {
    std::string name;
    std::map<std::pair<std::string, int64_t>, uint64_t> hashes{};  ///< by kind and expert
    size_t writers = 0;  ///< linears that add to the residual stream
  };
  std::map<std::pair<std::string, int64_t>, Layer> layers;  // by the place of all layers, and by number
  for (const Member* m : members) {
    if (m->at.layer < 0) continue;
    Layer& layer = layers[{layers_of(m->module), m->at.layer}];
    layer.name = layer_name_of(*m);
    layer.hashes[{m->at.kind, m->at.expert}] = m->figures->ordered;
    layer.writers += m->is_linear && writes_residual(m->module);
  }
  /// True if all that a layer has is in the other one, too.
  const auto repeats = [](const Layer& layer, const Layer& earlier) {
    return std::ranges::all_of(layer.hashes, [&](const auto& entry) {
      const auto at = earlier.hashes.find(entry.first);
      return at != earlier.hashes.end() && at->second == entry.second;
    });
  };
  constexpr size_t kFewMembers = 4, kFewLayers = 2;
  std::map<std::string, std::string> whole, expanded;
  for (auto at = layers.begin(); at != layers.end(); ++at) {
    const Layer& layer = at->second;
    if (layer.hashes.size() < kFewMembers) continue;
    for (auto earlier = layers.begin(); earlier != at; ++earlier) {
      if (earlier->first.first != at->first.first || !repeats(layer, earlier->second)) continue;
      const bool without_outputs = layer.writers == 0 && earlier->second.writers > 1;
      const bool is_whole = layer.hashes.size() == earlier->second.hashes.size();
      if (without_outputs || is_whole)
        (without_outputs ? expanded : whole)[layer.name] = earlier->second.name;
      break;
    }
  }
  source_ = std::move(expanded);
  if (whole.size() >= kFewLayers) source_.merge(whole);
}

bool CopiedLayers::is_copy(const Member& m, const Member& other) const {
  const auto at = source_.find(layer_name_of(m));
  return at != source_.end() && m.at.kind == other.at.kind && m.at.expert == other.at.expert;
}

}  // namespace twofour
