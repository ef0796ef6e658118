#include <fmt/format.h>

#include <optional>
#include <unordered_map>

#include "formats/error.h"
#include "formats/json/access.h"
#include "lib/graft/quantization_entries.h"
#include "lib/graft/unquantized_lists.h"

namespace twofour {
namespace {

/// Returns the elements of an array for which `stays` is true.
Json filtered(const Json& array, const std::function<bool(const Json&)>& stays) {
  Json left = Json::array();
  for (const Json& item : array) {
    if (stays(item)) left.push_back(item);
  }
  return left;
}

/// Throws Error if an exception matches other experts after they are renamed.
void refuse_moved(const char* key, const std::string& text, const std::vector<std::string>& modules,
                  const QuantizationEntries::Rename& new_name) {
  for (const std::string& module : modules) {
    const auto now = new_name(module);
    if (!now || is_exception_for(text, module) == is_exception_for(text, *now)) continue;
    throw Error(fmt::format(
        "quantization_config.{}: expected entries that match {} under its new name {} as before, found {}",
        key, module, *now, json_quote_short(text)));
  }
}

}  // namespace

void QuantizationEntries::forget(const std::vector<std::string>& before,
                                 const std::vector<std::string>& staying,
                                 const std::vector<std::string>& after) {
  const TensorNames old_names(before), left_names(staying), new_names(after);
  const auto stays = [&](const Json& item) {
    if (!item.is_string()) return true;
    const auto text = item.get<std::string>();
    return new_names.matched_by(text) || !old_names.matched_by(text);
  };
  for (Json* holder : holders()) {
    for (Json* list : unquantized_lists(*holder)) *list = filtered(*list, stays);
    if (const auto layers = holder->find("quantized_layers");
        layers != holder->end() && layers->is_object()) {
      std::erase_if(layers->items(), [&](const Json::Member& m) {
        return old_names.has(m.first) && !left_names.has(m.first);
      });
    }
    const auto groups = holder->find("config_groups");
    if (groups == holder->end() || !groups->is_object()) continue;
    std::erase_if(groups->items(), [&](Json::Member& group) {
      if (!group.second.is_object() || !is_list(group.second, "targets")) return false;
      const size_t targets = group.second["targets"].size();
      group.second["targets"] = filtered(group.second["targets"], [&](const Json& target) {
        if (!target.is_string() || is_wild(target.get<std::string>())) return true;
        const auto name = target.get<std::string>();
        return left_names.has(name) || !old_names.has(name);
      });
      return targets > 0 && group.second["targets"].empty();
    });
  }
}

void QuantizationEntries::rename(const std::vector<std::string>& modules, const Rename& new_name) {
  // A pattern stays if it matches the new name of every module whose old name it matched.
  const auto renamed_pattern = [&](const std::string& text) -> std::optional<std::vector<std::string>> {
    const ConfigPattern pattern(text);
    if (!pattern.known() || !pattern.tells_digits()) return std::nullopt;
    bool same = true;
    std::vector<std::string> names;
    for (const std::string& module : modules) {
      const auto now = new_name(module);
      const bool took = pattern.matches(module);
      if (took && now) names.push_back(*now);
      same = same && (!now || pattern.matches(*now) == took);
    }
    return same ? std::nullopt : std::optional(names);
  };
  // The name of a module above, also above an expert, is renamed like a name below it.
  std::unordered_map<std::string, std::optional<std::string>> above;
  for (const std::string& module : modules) {
    const auto now = new_name(module);
    above[module] = now;
    const auto old_names = with_ancestors(module);
    const auto new_names = now ? with_ancestors(*now) : std::vector<std::string>{};
    for (size_t i = 1; i < old_names.size(); ++i) {
      auto& known = above[old_names[i]];
      if (now) known = new_names[i];
    }
  }
  const auto rename_list = [&](Json& list) {
    Json left = Json::array();
    for (const Json& item : list) {
      const std::string text = text_of(item);
      if (const auto at = above.find(text); at != above.end()) {
        if (at->second) left.push_back(*at->second);
      } else if (const auto names = is_wild(text) ? renamed_pattern(text) : std::nullopt) {
        for (const std::string& name : *names) left.push_back(name);
      } else {
        left.push_back(item);
      }
    }
    list = std::move(left);
  };
  const auto rename_members = [&](Json& object) {
    Json::Object left;
    for (Json::Member& member : object.items()) {
      const auto at = above.find(member.first);
      if (at != above.end() && !at->second) continue;
      left.emplace_back(at == above.end() ? member.first : *at->second, std::move(member.second));
    }
    object.items() = std::move(left);
  };
  for (Json* holder : holders()) {
    for (Json* list : unquantized_lists(*holder)) rename_list(*list);
    const auto groups = holder->find("config_groups");
    if (groups != holder->end() && groups->is_object()) {
      for (Json& group : *groups) {
        if (group.is_object() && is_list(group, "targets")) rename_list(group["targets"]);
      }
    }
    for (const char* key : {"dynamic", "extra_config"}) {
      const auto exceptions = holder->find(key);
      if (exceptions == holder->end() || !exceptions->is_object()) continue;
      for (const auto& [text, entry] : exceptions->items()) {
        if (!above.contains(text)) refuse_moved(key, text, modules, new_name);
      }
      rename_members(*exceptions);
    }
    if (const auto layers = holder->find("quantized_layers"); layers != holder->end() && layers->is_object())
      rename_members(*layers);
  }
}

}  // namespace twofour
