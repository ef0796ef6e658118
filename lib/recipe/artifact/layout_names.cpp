#include "lib/recipe/artifact/layout_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "formats/layouts/layouts.h"
#include "formats/module_names.h"
#include "formats/weight_format.h"
#include "lib/base/names/pattern.h"
#include "lib/source/config/quantization_config.h"

namespace twofour {
namespace {

bool is_method(std::string_view name) {
  const auto& others = other_method_names();
  return is_layout(name) || std::find(others.begin(), others.end(), name) != others.end();
}

[[noreturn]] void disagree(std::string_view where, std::string_view place, const std::string& expected,
                           const std::string& found) {
  throw Error(
      fmt::format("{}: {}: expected {}, found {}; write the artifact again, or copy it from its origin",
                  where, place, expected, found));
}

/// The string under a key. Throws Error if the key is absent or its value is not a string.
std::string text_at(std::string_view where, const std::string& place, const Json& json, const char* key) {
  const auto at = json.find(key);
  if (at == json.end()) disagree(where, place, fmt::format("{} as a string", key), "none");
  if (!at->is_string()) disagree(where, place, fmt::format("{} as a string", key), at->type_name());
  return at->get<std::string>();
}

/// Checks `layout` and `groups` of config.json or twofour.json. Throws UnknownLayout.
void check_known(const std::string& where, const std::string& place, const Json& json) {
  const auto check = [&](const Json& owner, const std::string& at, bool may_be_mixed) {
    const auto name = owner.find("layout");
    if (name == owner.end() || !name->is_string()) return;
    const auto text = name->get<std::string>();
    if (is_layout(text) || (may_be_mixed && text == kMixedLayout)) return;
    throw UnknownLayout(where, at + "layout", text);
  };
  check(json, place, true);
  const auto groups = json.find("groups");
  if (groups == json.end() || !groups->is_array()) return;
  for (size_t i = 0; i < groups->size(); ++i) {
    check((*groups)[i], fmt::format("{}groups[{}].", place, i), false);
  }
}

/// The names that the group of one layout in twofour.json lists.
class GroupNames {
 public:
  GroupNames(std::string_view where, std::string place, const Json& group) {
    layout = text_at(where, place, group, "layout");
    const std::string pattern = text_at(where, place, group, "pattern");
    with_layout(layout, [&]<class L>() {
      if (pattern == L::pattern) return;
      disagree(where, place, fmt::format("pattern {} of {}", json_quote(L::pattern), layout),
               json_quote_short(pattern));
    });
    const auto modules = group.find("modules");
    if (modules == group.end() || !modules->is_array() || modules->empty())
      disagree(where, place, "modules as a list of names", modules == group.end() ? "none" : "another value");
    for (const Json& name : *modules) {
      if (!name.is_string()) disagree(where, place, "modules as a list of names", name.type_name());
      const auto text = name.get<std::string>();
      if (text.starts_with("re:")) disagree(where, place, "names and globs", json_quote_short(text));
      const bool is_glob = text.find_first_of("*?[") != text.npos;
      if (is_glob) {
        globs_.emplace_back(NamePattern(text), false);
      } else {
        names_[text] = false;
      }
    }
    place_ = std::move(place);
  }

  /// True if the group names the module or a block above it.
  bool takes(std::string_view module) {
    bool taken = false;
    for (std::string_view name = module;; name = module_of(name)) {
      if (const auto at = names_.find(name); at != names_.end()) taken = at->second = true;
      for (auto& [glob, used] : globs_) {
        if (glob.matches(name)) taken = used = true;
      }
      if (name.find('.') == name.npos) return taken;
    }
  }

  void refuse_unused(std::string_view where) const {
    const auto refuse = [&](const std::string& name) {
      disagree(where, place_, fmt::format("only modules of layout {}", layout),
               fmt::format("{}, which is not a layout", json_quote_short(name)));
    };
    for (const auto& [name, used] : names_) {
      if (!used) refuse(name);
    }
    for (const auto& [glob, used] : globs_) {
      if (!used) refuse(glob.text());
    }
  }

  std::string layout;

 private:
  std::string place_;
  std::map<std::string, bool, std::less<>> names_;  ///< by listed name, whether a module has it
  std::vector<std::pair<NamePattern, bool>> globs_;
};

void check_groups(std::string_view where, const Json& groups,
                  const std::map<std::string, std::string>& module_layouts) {
  if (!groups.is_array()) disagree(where, "groups", "a list", groups.type_name());
  std::vector<GroupNames> all;
  for (size_t i = 0; i < groups.size(); ++i) all.emplace_back(where, fmt::format("groups[{}]", i), groups[i]);
  for (const auto& [module, layout] : module_layouts) {
    if (!is_layout(layout)) continue;
    bool taken = false;
    for (GroupNames& group : all) taken = (group.layout == layout && group.takes(module)) || taken;
    if (!taken) {
      disagree(where, "groups", fmt::format("a group of layout {} with {}", layout, json_quote_short(module)),
               "none");
    }
  }
  for (const GroupNames& group : all) group.refuse_unused(where);
}

}  // namespace

bool is_layout(std::string_view name) {
  return with_layout(name, []<class L>() {});
}

UnknownLayout::UnknownLayout(std::string file, std::string at, std::string_view name)
    : Error(
          fmt::format("{}: {}: expected a layout that this version knows ({}), found {}; use the version of "
                      "twofour that wrote it, or a newer one",
                      file, at, layout_names(), json_quote_short(name))),
      where(std::move(file)),
      place(std::move(at)) {}

std::vector<std::string>& other_method_names() {
  static std::vector<std::string> all = [] {
    std::vector<std::string> names{"nvfp4", "fp8"};
    for (const WeightFormat format : kMxFormats) names.emplace_back(format->to);
    names.insert(names.end(), {"bf16", "prune", "quantize", "keep"});
    return names;
  }();
  return all;
}

std::optional<UnknownLayout> find_unknown_layout(const std::filesystem::path& directory,
                                                 std::span<const Shard> shards, const Json& config) {
  try {
    for (const Shard& shard : shards) {
      const auto it = shard.metadata.find("twofour.layout");
      if (it == shard.metadata.end() || it->second == kMixedLayout || is_method(it->second)) continue;
      throw UnknownLayout((directory / shard.name).string(), "__metadata__: twofour.layout", it->second);
    }
    const auto entry = quantization_entry(config);
    if (!entry || !entry->value.contains("quant_method") || entry->value["quant_method"] != "twofour")
      return std::nullopt;
    check_known((directory / "config.json").string(), entry->place + ".", entry->value);
  } catch (const UnknownLayout& unknown) {
    return unknown;
  }
  return std::nullopt;
}

void refuse_unknown_layout(const Checkpoint& c) {
  if (!c.is_directory()) return;
  if (const auto unknown = find_unknown_layout(c.path(), c.shards(), c.config())) throw *unknown;
}

bool states_layout(const Shard& shard, const Json& config) {
  const auto at = shard.metadata.find("twofour.layout");
  if (at == shard.metadata.end() || at->second != kMixedLayout)
    return at != shard.metadata.end() && is_layout(at->second);
  const auto entry = quantization_entry(config);
  return entry && entry->value.is_object() && entry->value.value("quant_method", Json()) == "twofour";
}

bool holds_layout(const Checkpoint& c) {
  refuse_unknown_layout(c);
  return c.is_directory() &&
         std::ranges::any_of(c.shards(), [&](const Shard& s) { return states_layout(s, c.config()); });
}

void check_layout_names(std::string_view where, const Json& manifest,
                        const std::map<std::string, std::string>& module_layouts) {
  check_known(std::string(where), "", manifest);
  std::set<std::string_view> layouts;
  for (const auto& [module, layout] : module_layouts) {
    if (!is_method(layout)) throw UnknownLayout(std::string(where), module + ": layout", layout);
    if (is_layout(layout)) layouts.insert(layout);
  }
  const bool has_groups = manifest.contains("groups");
  if (has_groups != manifest.contains("layout")) {
    disagree(where, has_groups ? "groups" : "layout", "layout and groups, or neither of them",
             has_groups ? "only groups" : "only layout");
  }
  if (has_groups) {
    const std::string layout = text_at(where, "layout", manifest, "layout");
    if (layout != kMixedLayout)
      disagree(where, "layout", fmt::format("{} beside groups", json_quote(kMixedLayout)),
               json_quote(layout));
    check_groups(where, manifest["groups"], module_layouts);
  } else if (layouts.size() > 1) {
    disagree(where, "modules", "one layout, because there are no groups",
             fmt::format("{} and {}", *layouts.begin(), *layouts.rbegin()));
  }
}

}  // namespace twofour
