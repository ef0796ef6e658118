#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>

#include "formats/module_names.h"
#include "lib/lint/config/checks.h"
#include "lib/lint/config/layer_tensors.h"
#include "lib/source/config/model_config.h"

// Checks of layers for multi-token prediction (MTP). They follow the other layers, or have their own prefix.

namespace twofour {
namespace {

constexpr const char* kCounts[] = {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"};

/// The number of draft layers that a config states, and its key.
struct StatedDrafts {
  std::string key;
  int64_t count;
};
std::optional<StatedDrafts> stated_drafts(const Json& config) {
  for (const char* key : kCounts) {
    for (const Json* configured : model_settings(config, key)) {
      if (configured->is_number_integer() && configured->get<int64_t>() >= 0)
        return StatedDrafts{key, configured->get<int64_t>()};
    }
  }
  return std::nullopt;
}

/// Returns the number of stored layers in one draft. Drafts of Nemotron have a layer for each mixer.
int64_t layers_of_draft(const Json& config) {
  for (const Json* configured : model_settings(config, "mtp_hybrid_override_pattern")) {
    if (configured->is_string())
      return std::max<int64_t>(std::ssize(configured->get_ref<const std::string&>()), 1);
  }
  for (const Json* configured : model_settings(config, "mtp_layers_block_type")) {
    if (configured->is_array()) return std::max<int64_t>(std::ssize(*configured), 1);
  }
  return 1;
}
/// True for drafts of DSpark. They are stages, and another key states their number.
bool is_of_stages(const Json& config) { return !model_settings(config, "dspark_block_size").empty(); }

std::string described(const LintInput& s, const LayerPart& part) {
  const TensorInfo& t = s.tensors[part.tensor];
  return describe(t);
}

/// Returns the name that a layer and a draft share. "transformer_layer.", which only drafts have, is left
/// out.
std::string_view common_name(std::string_view name) {
  constexpr std::string_view kInner = "transformer_layer.";
  return name.starts_with(kInner) ? name.substr(kInner.size()) : name;
}

class DraftLint {
 public:
  DraftLint(const LintInput& s, const ModelFacts& model, LintReporter& reporter)
      : s_(s), model_(model), reporter_(reporter) {}

  void run() {
    reported_ = reporter_.reported_names();
    groups_ = find_layer_groups(s_, *model_.coded);
    if (groups_.empty() || groups_[0].is_draft() || groups_[0].is_aside()) return;
    check_counts();
    for (const LayerGroup& group : groups_) {
      if (!group.is_draft()) continue;
      for (const LayerTensors& draft : group.layers) check_layer(group, draft);
    }
    check_inputs();
  }

 private:
  void check_counts() {
    const int64_t layers = model_layers(s_.config), last = groups_[0].layers.back().layer;
    if (layers == std::numeric_limits<int64_t>::max()) return;  // the language model's config is lost
    auto stated = stated_drafts(s_.config);
    const bool is_configured = stated.has_value();
    std::string first;
    int64_t stored = 0;
    if (last >= layers) {
      // A gap before the first draft, and numbers that begin at 1, are reported elsewhere.
      const bool from_one = groups_[0].layers.front().layer == 1;
      stored = std::ranges::count_if(groups_[0].layers, [&](auto& layer) { return layer.layer >= layers; }) -
               (from_one ? 1 : 0);
      first = fmt::format("{}.{}", groups_[0].container, layers);
    }
    for (const LayerGroup& group : groups_) {
      if (!group.is_draft()) continue;
      stored = std::max(
          stored, (group.layers.back().layer + layers_of_draft(s_.config)) / layers_of_draft(s_.config));
      first = fmt::format("{}.{}", group.container, group.layers[0].layer);
    }
    if (!is_configured) {
      // The config of Qwen3-Next has no key for drafts, and loaders assume one draft.
      const bool is_inside = last >= layers && layers < std::numeric_limits<int64_t>::max();
      if (!is_inside && !is_of_qwen35()) return;
      stated = StatedDrafts{is_inside ? kCounts[0] : kCounts[1], 0};
    }
    if (stored == 0 || stored == stated->count) return;  // another rule reports that there is no draft at all
    const bool more = stored > stated->count;
    if (more && stated->count > 0 && is_of_stages(s_.config)) return;
    if (more) {
      reporter_.add("layers-extra", {"config.json", stated->key},
                    "expected {}, because {} and its successors are stored, found {}", stored, first,
                    is_configured ? fmt::format("{}", stated->count) : "none");
    } else {
      reporter_.add("mtp-missing", {"config.json", stated->key},
                    "expected {} layers for multi-token prediction, found {}, the first {}", stated->count,
                    stored, first);
    }
  }

  bool is_of_qwen35() const {
    for (const Json* type : model_settings(s_.config, "model_type")) {
      if (type->is_string() && type->get<std::string>().starts_with("qwen3_5")) return true;
    }
    return false;
  }

  /// Compares a layer of a draft with the most similar layer of the model.
  void check_layer(const LayerGroup& group, const LayerTensors& draft) {
    std::map<std::string_view, const LayerPart*> own;
    for (const auto& [name, part] : draft.parts) own.emplace(common_name(name), &part);
    const LayerTensors* best = nullptr;
    size_t best_lacks = 0;
    for (const LayerTensors& layer : groups_[0].layers) {
      size_t lacks = 0;
      for (const auto& [name, part] : layer.parts) lacks += own.contains(name) ? 0 : 1;
      if (best != nullptr &&
          (lacks > best_lacks || (lacks == best_lacks && layer.parts.size() <= best->parts.size())))
        continue;
      best = &layer;
      best_lacks = lacks;
    }
    // If fewer parts are common, the draft's layer is of another kind.
    if (best == nullptr || best_lacks > 2 || best->parts.size() < 4 * (best_lacks + 1)) return;
    const bool inner = std::any_of(draft.parts.begin(), draft.parts.end(),
                                   [](const auto& part) { return common_name(part.first) != part.first; });
    for (const auto& [name, part] : best->parts) {
      const auto at = own.find(name);
      const std::string full =
          fmt::format("{}.{}.{}{}", group.container, draft.layer, inner ? "transformer_layer." : "", name);
      if (at == own.end()) {
        if (is_reported(full)) continue;
        reporter_.add("tensor-missing", {"", full}, "expected it as in layer {} of the model, {}, found none",
                      best->layer, described(s_, part));
      } else if (is_compared_with_config()) {
        continue;
      } else if (part.n >= 0 && at->second->n >= 0 && !(part == *at->second)) {
        reporter_.add("config-shape", s_.at(at->second->tensor, full),
                      "expected the shape of layer {} of the model, {}, found {}", best->layer,
                      described(s_, part), described(s_, *at->second));
      }
    }
  }

  /// True if the family has rows for its drafts, whose sizes were then compared with config.json.
  bool is_compared_with_config() const {
    return model_.family != nullptr && std::ranges::any_of(model_.family->parts, &FamilyPart::repeats_layers);
  }
  /// True if a module or a tensor of it was reported as missing.
  bool is_reported(const std::string& name) const {
    const auto at = reported_.lower_bound(name);
    return at != reported_.end() && (*at == name || is_below(*at, name));
  }

  /// Checks the parts that combine hidden states with embeddings, and norms that come in pairs.
  void check_inputs() {
    constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
        {"pre_fc_norm_embedding", "pre_fc_norm_hidden"},
        {"enorm", "hnorm"},
        {"e_proj", "h_proj"},
        {"fc_embedding", "fc_hidden"},
    };
    std::map<std::string, std::set<std::string>> by_parent;  // for each parent, the last names of its parts
    const auto add = [&](const std::string& name) {
      const std::string parent(parent_of(name));
      if (!parent.empty()) by_parent[parent].emplace(leaf_of(name));
    };
    for (const auto& [name, part] : find_outer_parts(s_, *model_.coded)) add(name);
    for (const LayerGroup& group : groups_) {
      // The rows of families cover drafts that follow the other layers.
      if (model_.is_held && &group == &groups_[0]) continue;
      for (const LayerTensors& layer : group.layers) {
        for (const auto& [name, part] : layer.parts)
          add(fmt::format("{}.{}.{}", group.container, layer.layer, name));
      }
    }
    for (const auto& [parent, leaves] : by_parent) {
      const auto lack = [&](std::string_view leaf, std::string_view beside) {
        if (is_reported(fmt::format("{}.{}", parent, leaf))) return;
        reporter_.add("tensor-missing", {"", fmt::format("{}.{}", parent, leaf)},
                      "expected it beside {}.{}, found none", parent, beside);
      };
      const auto has = [&](std::string_view leaf) { return leaves.contains(std::string(leaf)); };
      for (const auto& [a, b] : kPairs) {
        if (has(a) != has(b)) lack(has(a) ? b : a, has(a) ? a : b);
      }
      if (has("pre_fc_norm_hidden") && !has("fc") && !has("fc_hidden") && !has("fc_embedding"))
        lack("fc", "pre_fc_norm_hidden");
      if (has("fc") && has("pre_fc_norm_hidden") && !has("norm")) lack("norm", "fc");
      if (has("hnorm") && has("enorm") && !has("eh_proj") && !has("e_proj") && !has("h_proj"))
        lack("eh_proj", "hnorm");
    }
    check_last_norm(by_parent);
  }

  /// Checks the norm before the head. It may be anywhere in a draft.
  void check_last_norm(const std::map<std::string, std::set<std::string>>& by_parent) {
    std::string first;
    for (const auto& [parent, leaves] : by_parent) {
      const bool is_shared_head = parent.ends_with("shared_head");
      if (leaves.contains("final_layernorm") || (is_shared_head && leaves.contains("norm"))) return;
      if (!leaves.contains("hnorm")) continue;
      if (leaves.contains("norm") && leaves.contains("h_proj")) return;
      if (first.empty()) first = parent;
    }
    if (first.empty()) return;
    reporter_.add(
        "tensor-missing", {"", fmt::format("{}.shared_head.norm", first)},
        "expected the norm before the head, or final_layernorm, because {}.hnorm is stored, found none",
        first);
  }

  const LintInput& s_;
  const ModelFacts& model_;
  LintReporter& reporter_;
  std::vector<LayerGroup> groups_;
  std::set<std::string> reported_;
};

}  // namespace

void lint_drafts(const LintInput& s, const ModelFacts& model, LintReporter& reporter) {
  if (!s.is_directory || !s.config.is_object() || !s.layout.empty()) return;
  const bool has_drafts =
      stated_drafts(s.config).has_value() || std::any_of(s.tensors.begin(), s.tensors.end(), [](auto& t) {
        return t.name.find("mtp") != t.name.npos || t.name.find("hnorm") != t.name.npos;
      });
  if (has_drafts) DraftLint(s, model, reporter).run();
}

}  // namespace twofour
