#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "formats/json/access.h"
#include "formats/module_names.h"
#include "lib/lint/config/checks.h"
#include "lib/lint/config/layer_tensors.h"

// Towers that read images, of families whose row says nothing of them. vision_config is a config like the
// other: the sizes that all towers have are compared with it.

namespace twofour {
namespace {

/// A size that a key of vision_config states: that of a part with one of these names, in each block.
struct TowerSize {
  const char* key;
  std::initializer_list<std::string_view> parts;
  bool columns = false;  ///< the size is that of columns, not of rows
};
const TowerSize kTowerSizes[] = {
    {"embed_dim", {"norm1", "layer_norm1", "ln_1", "input_layernorm"}},
    {"hidden_size", {"norm1", "layer_norm1", "ln_1", "input_layernorm"}},
    {"intermediate_size", {"mlp.fc1", "mlp.linear_fc1"}},
    {"intermediate_size", {"mlp.fc2", "mlp.linear_fc2"}, true},
};

/// Two linears. The second reads the outputs of the first. The first may also write gates.
constexpr std::pair<std::string_view, std::string_view> kChains[] = {
    {"fc1", "fc2"}, {"linear_fc1", "linear_fc2"}, {"up_proj", "down_proj"}, {"w3", "w2"}};

class VisionLint {
 public:
  VisionLint(const LintInput& s, const ModelFacts& model, LintReporter& reporter)
      : s_(s), model_(model), reporter_(reporter), tower_(member(s.config, "vision_config")) {}

  void run() {
    const std::vector<LayerGroup> groups = find_layer_groups(s_, *model_.coded);
    const LayerGroup* blocks = nullptr;
    for (const LayerGroup& group : groups) {
      if (!group.is_aside() && model_.is_held) continue;
      check_chains(group);
      const bool sees = group.container.find("vis") != std::string::npos;
      if (sees && (blocks == nullptr || group.layers.size() > blocks->layers.size())) blocks = &group;
    }
    const bool has_row =
        model_.family != nullptr && std::ranges::any_of(model_.family->parts, &FamilyPart::is_tower);
    if (blocks == nullptr || !tower_.is_object() || has_row || s_.is_part) return;
    check_depth(*blocks);
    for (const TowerSize& size : kTowerSizes) check_size(*blocks, size);
    check_patches();
  }

 private:
  void add(const std::string& key, int64_t expected, const std::string& tensor, int64_t found) {
    const auto at = s_.find(tensor);
    reporter_.add("config-shape", {"config.json", "vision_config." + key},
                  "expected {} as {} has {}, found {}", expected, tensor, describe(s_.tensors[*at]), found);
  }

  void check_chains(const LayerGroup& group) {
    for (const LayerTensors& layer : group.layers) {
      for (const auto& [name, part] : layer.parts) {
        for (const auto& [first, second] : kChains) {
          // Other rules compare the matrices of experts.
          if (leaf_of(name) != first || part.n <= 0 || has_part(name, "experts")) continue;
          const std::string_view parent = parent_of(name);
          const auto at = layer.parts.find(fmt::format("{}{}{}", parent, parent.empty() ? "" : ".", second));
          if (at == layer.parts.end() || at->second.k <= 0) continue;
          if (part.n == at->second.k || part.n == 2 * at->second.k) continue;
          report_chain(at->second, part);
        }
      }
    }
  }
  void report_chain(const LayerPart& second, const LayerPart& first) {
    if (model_.reported.contains(second.tensor) || model_.reported.contains(first.tensor)) return;
    reporter_.add("config-shape", s_.at(second.tensor), "expected {} columns as {} has rows, found {}",
                  first.n, s_.tensors[first.tensor].name, describe(s_.tensors[second.tensor]));
  }

  void check_depth(const LayerGroup& blocks) {
    for (const char* key : {"depth", "num_hidden_layers", "layers"}) {
      const auto configured = integer_of(tower_, key);
      if (!configured) continue;
      const int64_t last = blocks.layers.back().layer;
      if (last + 1 == *configured) return;
      reporter_.add(last + 1 > *configured ? "layers-extra" : "layers-missing",
                    {"config.json", fmt::format("vision_config.{}", key)},
                    "expected {} as the tensors of {}.{} say, found {}", last + 1, blocks.container, last,
                    *configured);
      return;
    }
  }

  void check_size(const LayerGroup& blocks, const TowerSize& size) {
    // Where a tower has both, hidden_size is the width of what it gives to the model.
    if (std::string_view(size.key) == "hidden_size" && tower_.contains("embed_dim")) return;
    const auto configured = integer_of(tower_, size.key);
    std::set<int64_t> sizes;
    size_t tensor = 0;
    for (const LayerTensors& layer : blocks.layers) {
      for (const std::string_view name : size.parts) {
        const auto at = layer.parts.find(std::string(name));
        const int64_t found = at == layer.parts.end() ? 0 : size.columns ? at->second.k : at->second.n;
        if (found > 0 && sizes.insert(found).second) tensor = at->second.tensor;
      }
    }
    if (configured && sizes.size() == 1 && *sizes.begin() != *configured)
      add(size.key, *sizes.begin(), s_.tensors[tensor].name, *configured);
  }

  void check_patches() {
    const auto configured = integer_of(tower_, "patch_size");
    if (!configured) return;
    for (const TensorInfo& t : s_.tensors) {
      if (t.shape.size() < 4 || t.name.find("vis") == t.name.npos ||
          t.name.find("patch_embed") == t.name.npos)
        continue;
      if (t.shape.back() != *configured) add("patch_size", t.shape.back(), t.name, *configured);
      return;
    }
  }

  const LintInput& s_;
  const ModelFacts& model_;
  LintReporter& reporter_;
  const Json& tower_;
};

}  // namespace

void lint_vision(const LintInput& s, const ModelFacts& model, LintReporter& reporter) {
  if (!s.is_directory || !s.config.is_object() || !s.layout.empty()) return;
  VisionLint(s, model, reporter).run();
  lint_vision_settings(s, reporter);
}

}  // namespace twofour
