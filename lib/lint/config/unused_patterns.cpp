#include <algorithm>
#include <cctype>
#include <unordered_set>

#include "formats/json/access.h"
#include "formats/naming.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/names/config_pattern.h"
#include "lib/lint/config/checks.h"
#include "lib/lint/config/promises.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

/// The names of modules, which are the names of tensors without their last part.
class ModuleNames {
 public:
  explicit ModuleNames(const LintInput& s) : tensors_(s.tensors) {
    for (const TensorInfo& t : s.tensors) {
      const std::string_view name = module_of(t.name);
      if (names_.empty() || names_.back() != name) names_.push_back(name);
    }
    for (const std::string_view name : names_) {
      if (auto other = other_name(s.config, name, name_in_transformers); !other.empty())
        others_.insert(std::move(other));
    }
  }
  /// True if `path` is a tensor, a module (by its name in transformers or vLLM) or a prefix of one of these
  /// names.
  bool has(const std::string& path) const {
    if (find_tensor(tensors_, path) || others_.count(path) > 0) return true;
    const std::string below = path + ".";
    const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), below,
                                     [](const TensorInfo& t, const std::string& b) { return t.name < b; });
    return at != tensors_.end() && at->name.starts_with(below);
  }
  bool has_part(const std::string& text) const {
    return std::any_of(names_.begin(), names_.end(),
                       [&](std::string_view n) { return n.find(text) != n.npos; });
  }
  /// True if the pattern matches a module or a prefix of its name.
  bool any_matches(const ConfigPattern& pattern) {
    if (folded_.empty()) {
      for (std::string_view name : names_) {
        while (folded_.insert(without_digits(name)).second) {
          if (name.find('.') == name.npos) break;
          name = parent_of(name);
        }
      }
    }
    if (!pattern.tells_digits()) {
      return std::any_of(folded_.begin(), folded_.end(), [&](auto& p) { return pattern.matches(p); });
    }
    return std::any_of(names_.begin(), names_.end(), [&](std::string_view module) {
      return any_above(module, [&](std::string_view name) { return pattern.matches(name); });
    });
  }

 private:
  std::span<const TensorInfo> tensors_;
  std::vector<std::string_view> names_;
  std::unordered_set<std::string> others_;  ///< names that transformers gives to modules which it renames
  std::unordered_set<std::string> folded_;
};

/// True if a name, or a glob, is in a layer that the checkpoint has not. Another rule reports a layer that
/// the config counts. A list may name layers that a model lost or never had, such as a draft's.
bool is_of_missing_layer(const ModuleNames& names, const std::string& text, int64_t layers) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = text.find(kLayers);
  if (at == text.npos) return false;
  const size_t number = at + kLayers.size();
  const size_t end = std::min(text.find_first_of(".*", number), text.size());
  const auto layer = parse_index(std::string_view(text).substr(number, end - number));
  if (!layer || !names.has(text.substr(0, number - 1))) return false;
  return *layer >= layers ? layers > 0 : !names.has(text.substr(0, end));
}

/// Words of parts that a model may lack. Producers write one list of exclusions for all their models, and
/// loader_lookup.h decides if the parts of a model are excluded.
constexpr std::string_view kOptionalParts[] = {
    "mtp",       "nextn",   "draft",     "eagle",  "medusa",     "vision",      "visual",       "image",
    "img",       "video",   "audio",     "speech", "speaker",    "talker",      "tower",        "projector",
    "connector", "merger",  "resampler", "vit.",   "head",       "multi_modal", "linear_attn",  "score",
    "embed_out", "indexer", "expert",    "router", "gate$",      "gate*",       "gate.",        ".gate",
    "conv1d",    "mixer",   "mamba",     "ssm",    "classifier", "compressor",  "output_layer", "output.",
    "proj_out",  "rotary",  "kv_b_proj", ".bias"};

/// True if `path`, which layers follow, begins with a part that a model may lack, and no module is in it.
bool is_of_lacked_part(const ModuleNames& names, const std::string& path) {
  constexpr std::string_view kOfModel = "model.";
  const std::string_view below =
      path.starts_with(kOfModel) ? std::string_view(path).substr(kOfModel.size()) : std::string_view(path);
  const std::string part(below.substr(0, below.find_first_of(".*")));
  return std::ranges::any_of(kOptionalParts, [&](std::string_view w) { return part.find(w) != part.npos; }) &&
         !names.has_part(part);
}

/// True if an exclusion that matches nothing names a draft, a tower, a head, or another part of few models.
/// The name of one layer's module is that of a module that was there, unless the layer is in such a part and
/// the model has nothing of it: "mtp.layers.0*".
bool is_of_general_list(const ModuleNames& names, std::string text) {
  const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  const size_t layers = text.find("layers.");
  if (layers != text.npos && is_of_lacked_part(names, text.substr(0, layers))) return true;
  if (layers != text.npos &&
      std::any_of(text.begin() + static_cast<std::ptrdiff_t>(layers), text.end(), is_digit))
    return false;
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::any_of(kOptionalParts, [&](std::string_view w) { return text.find(w) != text.npos; });
}

/// Returns the names in ModelOpt's entries, sorted.
std::set<std::string> named_layers(const ConfiguredQuantization& configured) {
  std::set<std::string> names;
  if (configured.method == QuantMethod::kGroups || !configured.layers().is_object()) return names;
  for (const auto& [name, entry] : configured.layers().items()) names.insert(name);
  return names;
}

/// Reports entries of quantized_layers, and groups, that match no module.
void check_unused_entries(const LintInput& s, const ConfiguredQuantization& configured, ModuleNames& names,
                          bool tied, LintReporter& reporter) {
  size_t count = 0;
  std::string first;
  for (const std::string& name : named_layers(configured)) {
    if (names.has(name) || (tied && is_model_head(name)) ||
        is_of_missing_layer(names, name, model_layers(s.config)))
      continue;
    if (count++ == 0) first = name;
  }
  if (count > 0) {
    reporter.add("unused-pattern", s.setting(first),
                 "expected a module of that name (as in quantized_layers), found none{}",
                 and_more(count, ", nor for {} more"));
  }
  if (configured.method != QuantMethod::kGroups || !configured.groups().is_object()) return;
  for (const auto& [name, group] : configured.groups().items()) {
    const std::vector<std::string> targets = strings_of(group, "targets");
    const bool used = std::any_of(targets.begin(), targets.end(), [&](const std::string& text) {
      if (text.find_first_of(".*\\") == text.npos) return true;  // the target is a class
      if (!is_wild(text)) return names.has(text);
      const ConfigPattern pattern(text);
      return !pattern.known() || names.any_matches(pattern);
    });
    if (used || targets.empty()) continue;
    reporter.add("unused-pattern", s.setting(targets[0]),
                 "expected to match a module that config_groups.{} targets, found none", name);
  }
}

}  // namespace

void lint_unused_patterns(const LintInput& s, const ConfiguredQuantization& configured,
                          LintReporter& reporter) {
  const bool is_groups = configured.method == QuantMethod::kGroups;
  const bool is_modelopt = configured.method_text == "modelopt" || (configured.is_nested && !is_groups);
  const bool has_entries = s.layout.empty() && (!named_layers(configured).empty() || is_groups);
  if (s.is_part || (configured.ignored().empty() && !has_entries)) return;
  ModuleNames names(s);
  if (has_entries) check_unused_entries(s, configured, names, has_tied_head(s.config), reporter);
  const bool tied = has_tied_head(s.config);
  for (const auto& [text, key] : configured.ignored()) {
    if (is_wild(text) && !ConfigPattern(text).known()) {
      reporter.add(may_be_pythons(text) ? "python-only-pattern" : "unreadable-pattern", s.setting(text),
                   "expected a regular expression in {}, found one that is not supported", key);
      continue;
    }
    // A tied head has no tensor of its own, but producers still exclude it.
    if (is_model_head(text) || (tied && text.find("lm_head") != text.npos)) continue;
    // compressed-tensors does not know globs and reads them as names.
    const bool is_glob = is_groups && !text.starts_with("re:");
    if (is_glob && is_wild(text)) {
      reporter.add(
          "unused-pattern", s.setting(text),
          "expected a name or, after re:, a regular expression, found a glob, which matches nothing");
      continue;
    }
    if (names.has(text) || is_of_missing_layer(names, text, model_layers(s.config))) continue;
    // transformers renames phimoe's router. Producers list the new name.
    constexpr std::string_view kRenamed = ".block_sparse_moe.router";
    if (text.ends_with(kRenamed) &&
        is_own_router(s, text.substr(0, text.size() - kRenamed.size()) + ".block_sparse_moe.gate"))
      continue;
    // Older lists of ModelOpt match substrings of names.
    if (!is_wild(text) && is_modelopt && names.has_part(text)) continue;
    if (is_wild(text) && names.any_matches(ConfigPattern(text))) continue;
    if (is_of_general_list(names, text)) continue;
    reporter.add("unused-pattern", s.setting(text), "expected to match a module, found none");
  }
}

}  // namespace twofour
