#include <fmt/format.h>

#include <algorithm>

#include "lib/prove/mends/mended_state.h"

namespace twofour {
namespace {

bool is_side(std::string_view name, char side) { return name.ends_with(fmt::format(".{}_scale", side)); }

/// True if all numbers of a scale of the cache are usable.
bool is_usable_scale(const MendedTensor& t) {
  const std::vector<float> values = t.floats();
  return !values.empty() && std::all_of(values.begin(), values.end(), is_usable);
}

/// The attention that a scale belongs to, and what follows it: ".k_proj" or nothing.
std::pair<std::string, bool> attention_of_scale(std::string_view name, char side) {
  name.remove_suffix(8);
  const std::string projection = fmt::format(".{}_proj", side);
  const bool below = name.ends_with(projection);
  if (below) name.remove_suffix(projection.size());
  return {std::string(name), below};
}

std::string scale_name(const std::string& attention, bool below, char side) {
  return below ? fmt::format("{0}.{1}_proj.{1}_scale", attention, side)
               : fmt::format("{}.{}_scale", attention, side);
}

}  // namespace

void derive_cache_scales(MendedState& state, const MendNote* note) {
  std::map<std::string, bool> layers;  // by attention: whether scales are below projections
  for (const auto& [name, t] : state.tensors) {
    for (const char side : {'k', 'v'}) {
      if (is_side(name, side)) layers.insert(attention_of_scale(name, side));
    }
  }
  std::map<std::string, bool> kinds;
  for (const auto& [attention, below] : layers) kinds.try_emplace(name_kind(attention), below);
  for (const auto& [name, t] : state.tensors) {
    const size_t at = name.find(".k_proj.weight");
    if (at == std::string::npos) continue;
    if (const auto kind = kinds.find(name_kind(name.substr(0, at))); kind != kinds.end())
      layers.try_emplace(name.substr(0, at), kind->second);
  }
  std::vector<MendedTensor> made;
  for (const auto& [attention, below] : layers) {
    for (const char side : {'k', 'v'}) {
      const std::string name = scale_name(attention, below, side),
                        other = scale_name(attention, below, side == 'k' ? 'v' : 'k');
      const auto own = state.tensors.find(name), from = state.tensors.find(other);
      const bool is_there = own != state.tensors.end();
      if (is_there && is_usable_scale(own->second)) continue;
      if (!state.wants(is_there ? "bad-input-scale" : "missing-kv-scale")) continue;
      MendedTensor t;
      if (from != state.tensors.end() && is_usable_scale(from->second)) {
        t = from->second;
      } else if (const auto at = state.donor ? state.donor->find(name) : std::nullopt) {
        t = {state.donor->tensors()[*at], state.donor, *at};
        if (!is_usable_scale(t)) continue;
      } else {
        continue;
      }
      t.info.name = name;
      if (t.from != nullptr) {
        t.bytes.resize(t.info.bytes());
        t.read(0, t.bytes);
        t.from = nullptr;
      }
      made.push_back(std::move(t));
    }
  }
  state.make("kv-scales", note, std::move(made));
}

}  // namespace twofour
