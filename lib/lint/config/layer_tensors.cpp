#include "lib/lint/config/layer_tensors.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "formats/module_names.h"

namespace twofour {
namespace {

struct PlaceInLayer {
  std::string_view container, rest;
  int64_t layer;
};

/// Returns the layer of a tensor, which is the first number in its name. A list of experts outside of layers
/// is not a layer.
std::optional<PlaceInLayer> place_in_layer(std::string_view name) {
  for (size_t at = 0; at < name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    if (is_number_part(part) && part.size() < 10) {
      if (at == 0 || end == name.size()) return std::nullopt;
      int64_t layer = 0;
      for (const char c : part) layer = 10 * layer + (c - '0');
      return PlaceInLayer{name.substr(0, at - 1), name.substr(end + 1), layer};
    }
    at = end + 1;
  }
  return std::nullopt;
}

/// True if a name belongs to an expert that is not the first.
bool is_further_expert(std::string_view name) {
  constexpr std::string_view kExperts = "experts.";
  const size_t at = name.find(kExperts);
  if (at == name.npos) return false;
  const std::string_view number = name.substr(at + kExperts.size());
  return is_number_part(number.substr(0, number.find('.'))) && !number.starts_with("0.");
}

/// True for tensors that producers store beside weights. The weights alone identify a module.
bool is_beside(std::string_view leaf) {
  return leaf.find("scale") != leaf.npos || leaf == "qzeros" || leaf == "g_idx" || leaf == "weight_shape" ||
         leaf == "weight_zero_point" || leaf == "weight_g_idx" || leaf == "inv_freq";
}

class Parts {
 public:
  Parts(const LintInput& s, const std::vector<CodedModule>& coded) : s_(s) {
    for (const CodedModule& m : coded) coded_.emplace(m.tensor, std::pair(m.n, m.k));
  }

  /// Returns the part that `rest` names, with its name. Returns nullopt if the tensor only accompanies a
  /// module.
  std::optional<std::pair<std::string, LayerPart>> part(size_t tensor, std::string_view rest) const {
    const TensorInfo& t = s_.tensors[tensor];
    const std::string_view leaf = leaf_of(rest);
    if (is_beside(leaf) || rest.find("lora_") != rest.npos) return std::nullopt;
    LayerPart p{tensor};
    if (s_.foreign.contains(module_of(t.name)))
      return std::pair(std::string(leaf == "weight" ? module_of(rest) : rest), p);
    if (const auto at = coded_.find(tensor); at != coded_.end()) {
      if (at->second.second > 0) p.n = at->second.first, p.k = at->second.second;
    } else if (is_float(t.dtype)) {
      if (!t.shape.empty() && t.shape.size() < 3) p.n = t.shape[0];
      if (t.shape.size() == 2) p.k = t.shape[1];
    }
    const bool weight = leaf == "weight" || leaf == "weight_packed" || leaf == "qweight";
    return std::pair(std::string(weight ? module_of(rest) : rest), p);
  }

 private:
  const LintInput& s_;
  std::unordered_map<size_t, std::pair<int64_t, int64_t>> coded_;
};

}  // namespace

bool LayerGroup::is_draft() const { return names_draft(container); }

bool LayerGroup::is_aside() const {
  for (const char* part : {"vision", "visual", "audio", "tower", "encoder", "projector", "image", "speech",
                           "talker", "code", "resampler", "merger", "blocks"}) {
    if (container.find(part) != container.npos) return true;
  }
  return false;
}

std::vector<LayerGroup> find_layer_groups(const LintInput& s, const std::vector<CodedModule>& coded) {
  const Parts parts(s, coded);
  std::map<std::string, std::map<int64_t, LayerTensors>, std::less<>> found;
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const auto place = place_in_layer(s.tensors[i].name);
    if (!place || is_further_expert(place->rest) || place->container.ends_with("experts")) continue;
    auto part = parts.part(i, place->rest);
    if (!part) continue;
    auto group = found.find(place->container);
    if (group == found.end()) group = found.try_emplace(std::string(place->container)).first;
    LayerTensors& layer = group->second[place->layer];
    layer.layer = place->layer;
    layer.parts.insert(std::move(*part));
  }
  std::vector<LayerGroup> groups;
  for (auto& [container, layers] : found) {
    LayerGroup group{container, {}};
    for (auto& [number, layer] : layers) group.layers.push_back(std::move(layer));
    groups.push_back(std::move(group));
  }
  std::stable_sort(groups.begin(), groups.end(), [](const LayerGroup& a, const LayerGroup& b) {
    const auto rank = [](const LayerGroup& g) {
      return g.is_draft() || g.is_aside() ? size_t{0} : g.layers.size();
    };
    return rank(a) > rank(b);
  });
  return groups;
}

std::map<std::string, LayerPart> find_outer_parts(const LintInput& s, const std::vector<CodedModule>& coded) {
  const Parts parts(s, coded);
  std::map<std::string, LayerPart> outer;
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    if (place_in_layer(s.tensors[i].name)) continue;
    if (auto part = parts.part(i, s.tensors[i].name)) outer.insert(std::move(*part));
  }
  return outer;
}

}  // namespace twofour
