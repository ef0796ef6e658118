#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "formats/families/family_rows.h"
#include "formats/json/access.h"
#include "formats/module_names.h"
#include "lib/lint/config/checks.h"
#include "lib/lint/config/layer_tensors.h"
#include "lib/source/config/model_config.h"

// Layers of one kind have the same parts. A part that one layer lacks and the others have is lost, whatever
// the family.

namespace twofour {
namespace {

/// Returns all statements of a config about one layer: its entries in all lists with one for each layer, and
/// whether lists of layers name it. Layers with the same text are of one kind.
class LayerKinds {
 public:
  explicit LayerKinds(const Json& config) : layers_(model_layers(config)) {
    for (const Json* own : model_configs(config)) {
      for (const auto& [key, value] : own->items()) {
        add(key, value);
        if (!value.is_object() || key.find("quantization") != key.npos) continue;
        for (const auto& [inner, list] : value.items()) add(inner, list);
      }
    }
  }
  std::string text(int64_t layer) const {
    std::string text = layer >= layers_ ? "draft" : "";
    for (const Json* list : by_layer_) {
      if (static_cast<size_t>(layer) < list->size())
        text += quoted_setting((*list)[static_cast<size_t>(layer)]) + " ";
    }
    // Some lists count layers from one.
    for (const std::set<int64_t>& named : named_)
      text += fmt::format("{}{} ", named.contains(layer) ? 'y' : 'n', named.contains(layer + 1) ? 'y' : 'n');
    return text;
  }

 private:
  void add(const std::string& key, const Json& list) {
    if (!list.is_array() || list.empty() || list.begin()->is_structured()) return;
    constexpr int64_t kDrafts = 8;  // further entries of such lists are for drafts
    if (std::ssize(list) >= layers_ && std::ssize(list) - layers_ <= kDrafts) {
      by_layer_.push_back(&list);
      return;
    }
    std::set<int64_t> numbers;
    for (const Json& one : list) {
      if (one.is_number_integer()) numbers.insert(one.get<int64_t>());
    }
    if (key.find("layer") != key.npos && numbers.size() == list.size()) named_.push_back(std::move(numbers));
  }

  int64_t layers_;
  std::vector<const Json*> by_layer_;
  std::vector<std::set<int64_t>> named_;
};

/// The parts directly below a module in one layer.
using Children = std::set<std::string>;

class LayerPartsLint {
 public:
  LayerPartsLint(const LintInput& s, const ModelFacts& model, LintReporter& reporter)
      : s_(s), model_(model), reporter_(reporter), kinds_(s.config) {}

  void run() {
    const std::vector<LayerGroup> groups = find_layer_groups(s_, *model_.coded);
    for (const LayerGroup& group : groups) {
      if (group.layers.size() < 3 || group.is_draft()) continue;
      group_ = &group;
      // The first group is that of the model itself.
      is_main_ = &group == &groups[0] && !group.is_aside();
      check_group();
    }
  }

 private:
  void check_group() {
    std::map<std::string, std::map<std::string, std::map<Children, std::vector<int64_t>>>> all;
    for (const LayerTensors& layer : group_->layers) {
      std::map<std::string, Children> modules;
      for (const auto& [name, part] : layer.parts) add_part(name, part, modules);
      const std::string kind = is_main_ ? kinds_.text(layer.layer) : "";
      for (auto& [module, children] : modules) all[module][kind][std::move(children)].push_back(layer.layer);
    }
    for (const auto& [module, kinds] : all) {
      for (const auto& [kind, sets] : kinds) check_module(module, sets);
    }
  }

  /// Adds a part to its module and the modules above it. Experts, and lists within a layer, have numbers of
  /// their own and are left out.
  void add_part(const std::string& name, const LayerPart& part,
                std::map<std::string, Children>& modules) const {
    if (any_part(name, [](std::string_view p) { return is_number_part(p) || p == "rotary_emb"; })) {
      const size_t experts = name.find("experts.");
      if (experts == 0 || experts == name.npos || name[experts - 1] != '.') return;
      add_path(name.substr(0, experts + 7), modules);
      return;
    }
    add_path(name, modules);
    const std::string_view leaf = leaf_of(s_.tensors[part.tensor].name);
    if (leaf == "weight" || leaf == "weight_packed" || leaf == "qweight") modules[name].insert("weight");
  }
  static void add_path(std::string_view name, std::map<std::string, Children>& modules) {
    for (; !name.empty(); name = parent_of(name))
      modules[std::string(parent_of(name))].emplace(leaf_of(name));
  }

  void check_module(const std::string& module, const std::map<Children, std::vector<int64_t>>& sets) {
    size_t all = 0;
    for (const auto& [children, layers] : sets) all += layers.size();
    for (const auto& [children, layers] : sets) {
      const std::pair<const Children, std::vector<int64_t>>* whole = nullptr;
      for (const auto& other : sets) {
        if (other.first.size() <= children.size() || 2 * other.second.size() <= all) continue;
        if (std::ranges::includes(other.first, children)) whole = &other;
      }
      if (whole == nullptr) continue;
      const size_t lost = whole->first.size() - children.size(), have = whole->second.size();
      const bool is_alike = is_main_ || group_->container.find("vis") != std::string::npos;
      const bool is_clear = have >= (is_alike ? 2U : 3U) && (layers.size() == 1 || have >= 8 * layers.size());
      if (!is_clear || lost > std::max<size_t>(1, whole->first.size() / 3)) continue;
      for (const int64_t layer : layers) {
        // In some families, the first layer has no norm before it, or no values to mix with the first
        // layer's.
        const bool is_known = model_.family != nullptr || (is_alike && !is_main_);
        if (layer == group_->layers[0].layer && (!is_known || module.empty())) continue;
        for (const std::string& child : whole->first) {
          if (!children.contains(child)) report(layer, module.empty() ? child : module + "." + child, have);
        }
      }
    }
  }

  void report(int64_t layer, const std::string& part, size_t have) {
    const std::string name = fmt::format("{}.{}.{}", group_->container, layer, part);
    if (!reported_) reported_ = reporter_.reported_names();
    for (const std::string& tried : {name, text_model_name(name)}) {
      const auto at = reported_->lower_bound(tried);
      if (at != reported_->end() && (*at == tried || is_below(*at, tried))) return;
    }
    reporter_.add("tensor-missing", {"", name}, "expected it as in {} other layers, found none", have);
  }

  const LintInput& s_;
  const ModelFacts& model_;
  LintReporter& reporter_;
  const LayerKinds kinds_;
  const LayerGroup* group_ = nullptr;
  bool is_main_ = false;
  std::optional<std::set<std::string>> reported_;
};

}  // namespace

void lint_layer_parts(const LintInput& s, const ModelFacts& model, LintReporter& reporter) {
  if (!s.is_directory || s.is_part || s.lacks_files || !s.config.is_object() || !s.layout.empty()) return;
  // Such models have layers that lack whatever a search left out of them.
  if (!model_settings(s.config, "block_configs").empty()) return;
  LayerPartsLint(s, model, reporter).run();
}

}  // namespace twofour
