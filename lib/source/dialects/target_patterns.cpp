#include "lib/source/dialects/target_patterns.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "formats/naming.h"
#include "lib/base/names/natural.h"

namespace twofour {
namespace {

/// A module's name in parts. An expression for many names leaves open the numbers and the part before
/// "layers".
struct Form {
  std::string before;  ///< "language_model" in "model.language_model.layers"
  std::string root;    ///< "layers", or "mtp" for DeepSeek-V4's draft
  std::string middle;  ///< between the layer's number and the leaf: "mlp.experts.#"
  std::string leaf;
  std::string layer;
};

/// Splits a module's name into a form. Returns false if the module is in no layer.
bool take_apart(std::string_view name, Form& form) {
  const std::vector<std::string_view> parts = name_parts(name);
  auto layers = std::find(parts.begin(), parts.end(), "layers");
  if (layers == parts.end()) layers = std::find(parts.begin(), parts.end(), "mtp");
  if (layers == parts.end() || parts.end() - layers < 3 || !is_number_part(layers[1])) return false;
  form.before = layers == parts.begin() ? "" : std::string(layers[-1]);
  form.root = layers[0];
  form.layer = layers[1];
  form.leaf = parts.back();
  for (auto at = layers + 2; at != parts.end() - 1; ++at) {
    form.middle += is_number_part(*at) ? "\\d+\\." : std::string(*at) + "\\.";
  }
  return true;
}

/// For each group, the layers in which it has modules of one form.
using Layers = std::map<size_t, std::set<std::string>>;

/// Returns the expression for the layers of one group; empty if other groups have modules of the form in the
/// same layers.
std::string layers_expression(const Layers& layers, size_t group) {
  if (layers.size() == 1) return "\\d+";
  const std::set<std::string>& own = layers.at(group);
  for (const auto& [other, theirs] : layers) {
    if (other == group) continue;
    if (std::any_of(own.begin(), own.end(), [&](const std::string& l) { return theirs.count(l) > 0; }))
      return "";
  }
  std::vector<std::string> sorted(own.begin(), own.end());
  std::sort(sorted.begin(), sorted.end(), natural_less);
  return fmt::format("(?:{})", fmt::join(sorted, "|"));
}

/// Returns the names that loaders use for a leaf in addition to its own name. They look for a gate even in
/// experts without one.
std::vector<std::string_view> asked_as(std::string_view leaf, bool gated) {
  if (leaf == "w1") return {"gate_proj"};
  if (leaf == "w2") return {"down_proj"};
  if (leaf == "w3") return {"up_proj"};
  if (leaf == "up_proj" && !gated) return {"gate_proj"};
  return {};
}

class Targets {
 public:
  explicit Targets(const std::vector<std::vector<std::string>>& members) {
    for (size_t g = 0; g < members.size(); ++g) {
      for (const std::string& name : members[g]) {
        Form form;
        if (!take_apart(name, form)) continue;
        anywhere_[{form.root, form.middle, form.leaf}][g].insert(form.layer);
        below_[{form.before, form.root, form.middle, form.leaf}][g].insert(form.layer);
      }
    }
  }

  std::vector<std::string> of(const std::vector<std::string>& names, size_t group) const {
    std::map<std::string, std::set<std::string>> leaves;  // the leaves, by the part of the name before them
    std::vector<std::string> targets;
    for (const std::string& name : names) {
      Form form;
      const std::string expression = take_apart(name, form) ? expression_of(form, group) : "";
      if (expression.empty()) {
        targets.push_back(name);
        continue;
      }
      std::set<std::string>& all = leaves[expression];
      all.insert(form.leaf);
      const auto parsed = parse_module_name(name);
      if (!parsed || parsed->kind != BlockKind::kRoutedExperts) continue;
      for (const std::string_view leaf : asked_as(form.leaf, parsed->naming->gate != nullptr))
        all.emplace(leaf);
    }
    for (const auto& [expression, all] : leaves) {
      const std::string leaf = all.size() == 1 ? *all.begin() : fmt::format("(?:{})", fmt::join(all, "|"));
      targets.push_back(fmt::format("re:{}{}$", expression, leaf));
    }
    return targets;
  }

 private:
  std::string expression_of(const Form& form, size_t group) const {
    std::string layers = layers_expression(anywhere_.at({form.root, form.middle, form.leaf}), group);
    if (!layers.empty()) return fmt::format("(?:.*\\.)?{}\\.{}\\.{}", form.root, layers, form.middle);
    layers = layers_expression(below_.at({form.before, form.root, form.middle, form.leaf}), group);
    if (layers.empty() || form.before.empty()) return "";
    return fmt::format("(?:.*\\.)?{}\\.{}\\.{}\\.{}", form.before, form.root, layers, form.middle);
  }

  std::map<std::tuple<std::string, std::string, std::string>, Layers> anywhere_;
  std::map<std::tuple<std::string, std::string, std::string, std::string>, Layers> below_;
};

}  // namespace

std::vector<std::string> target_patterns(const std::vector<std::vector<std::string>>& members, size_t group) {
  return Targets(members).of(members[group], group);
}

}  // namespace twofour
