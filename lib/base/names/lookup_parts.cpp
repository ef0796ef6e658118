#include "lib/base/names/lookup_parts.h"

#include "formats/module_names.h"

#include <algorithm>
#include <cctype>

namespace twofour::lookups {
namespace {

/// A name without its last two parts if the first of these parts is a number: "a.experts" for
/// "a.experts.7.up_proj".
std::string_view without_expert(std::string_view name) {
  const std::string_view expert = parent_of(name), block = parent_of(expert);
  return !expert.empty() && expert.find('.') != expert.npos && is_number_part(leaf_of(expert)) ? block : name;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

bool are_for_weights_alone(const Json& groups) {
  return groups.is_object() && !groups.empty() &&
         std::all_of(groups.begin(), groups.end(), [](const Json& group) {
           return group.is_object() && member(group, "input_activations").is_null();
         });
}

std::string algorithm_of(const Json& entry) {
  std::string text = text_of(entry, "quant_algo");
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

LayerMap::LayerMap(const Json& layers) {
  if (!layers.is_object()) return;
  for (const auto& [name, entry] : layers.items()) {
    entries_.emplace_back(name, &entry);
    by_name_.emplace(name, &entry);
    const std::string_view head = without_expert(name);
    const bool again = !heads_.empty() && heads_.back().cut && heads_.back().name == head;
    if (!again || head.size() == name.size()) heads_.push_back({head, &entry, head.size() != name.size()});
  }
}

const Json* LayerMap::find(const std::string& name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : at->second;
}

const Json* LayerMap::first_below(const std::string& name) const {
  for (const Head& head : heads_) {
    if (is_below(head.name, name) || (head.cut && head.name == name)) return head.entry;
    if (!head.cut || !is_below(name, head.name)) continue;
    // A single expert: its names are all below the head.
    for (const auto& [key, entry] : entries_) {
      if (is_below(key, name)) return entry;
    }
    return nullptr;
  }
  return nullptr;
}

const Json* LayerMap::first_with(std::string_view text) const {
  const bool in_expert = without_expert(text).size() != text.size();
  if (!in_expert) {
    for (const Head& head : heads_) {
      if (head.name.find(text) != head.name.npos) return head.entry;
    }
    return nullptr;
  }
  for (const auto& [key, entry] : entries_) {
    if (key.find(text) != key.npos) return entry;
  }
  return nullptr;
}

size_t TargetList::add(const std::string& text) {
  const auto [at, fresh] = places_.emplace(text, texts_.size());
  if (!fresh) return at->second;
  if (text.starts_with("re:")) {
    expressions_.push_back({texts_.size(), ConfigPattern(text)});
    all_known_ = all_known_ && expressions_.back().pattern.known();
  }
  texts_.push_back(text);
  return texts_.size() - 1;
}

bool TargetList::matches_expression(size_t expression, const std::string& name) const {
  const ConfigPattern& pattern = expressions_[expression].pattern;
  if (pattern.tells_digits()) return pattern.matches(name);
  const std::string folded = without_digits(name);
  const auto [at, fresh] = seen_.try_emplace(std::to_string(expression) + " " + folded, false);
  if (fresh) at->second = pattern.matches(folded);
  return at->second;
}

std::optional<size_t> TargetList::find(const std::string& name) const {
  std::optional<size_t> first;
  if (const auto at = places_.find(name); at != places_.end()) first = at->second;
  for (size_t i = 0; i < expressions_.size(); ++i) {
    if (first && expressions_[i].place > *first) break;
    if (matches_expression(i, name)) return expressions_[i].place;
  }
  return first;
}

TargetGroups::TargetGroups(const Json& config) {
  for (const std::string& text : strings_of(config, "ignore")) ignored.add(text);
  const Json& named = member(config, "config_groups");
  if (!named.is_object()) return;
  for (const auto& [name, group] : named.items()) {
    const std::vector<std::string> texts = strings_of(group, "targets");
    // Loaders read groups for attention as settings of the KV cache.
    if (texts.size() == 1 && texts[0].ends_with("Attention")) continue;
    all.push_back(&group);
    for (const std::string& text : texts) {
      const size_t place = targets.add(text);
      groups.resize(std::max(groups.size(), place + 1));
      groups[place] = &group;  // for equal targets, the last group at the first position
    }
  }
}

const Json* TargetGroups::of_class(std::string_view name) const {
  const std::string in = lower(std::string(name));
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string& text = targets.texts()[i];
    if (!text.starts_with("re:") && in.find(lower(text)) != in.npos) return groups[i];
  }
  return nullptr;
}

const Json* TargetGroups::find(const std::string& module) const {
  if (ignored.matches(module)) return nullptr;
  if (const auto at = targets.find(module)) return groups[*at];
  return of_class("ColumnParallelLinear");
}

}  // namespace twofour::lookups
