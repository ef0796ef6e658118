#include "lib/graft/module_patterns.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "lib/source/config/model_config.h"

namespace twofour {

namespace {

/// The projection of a KV scale, which is beside it: "self_attn.k_proj" for "self_attn.k_scale".
std::string projection_of_scale(std::string_view tensor) {
  for (const auto& [scale, projection] :
       {std::pair{".k_scale", ".k_proj"}, {".v_scale", ".v_proj"}, {".q_scale", ".q_proj"}}) {
    if (tensor.ends_with(scale))
      return std::string(tensor.substr(0, tensor.size() - std::string_view(scale).size())) + projection;
  }
  return {};
}

}  // namespace

int64_t layer_count(const Checkpoint& c) {
  const Json& count = model_setting(c.config(), "num_hidden_layers", (c.path() / "config.json").string());
  return count.is_number_integer() ? count.get<int64_t>() : kNoLayerCount;
}

int64_t main_layer(std::string_view name) {
  // The role of a name tells towers and drafts from layers of the language model.
  const auto parts = name_parts(name);
  if (std::find(parts.begin(), parts.end(), "mtp") != parts.end()) return -1;
  const auto at = std::find(parts.begin(), parts.end(), "layers");
  if (at == parts.end() || at + 1 == parts.end()) return -1;
  const int64_t layer = parse_index(at[1]).value_or(-1);
  return layer >= 0 && module_role(name, 0) == ModuleRole::kMtp ? layer : -1;
}

int64_t draft_layer(std::string_view name, int64_t layers) {
  const auto parts = name_parts(name);
  auto at = std::find(parts.begin(), parts.end(), "mtp");
  if (at != parts.end()) {
    ++at;
    if (at != parts.end() && *at == "layers") ++at;
    return at == parts.end() ? -1 : parse_index(*at).value_or(-1);
  }
  const int64_t layer = main_layer(name);
  return layer >= layers ? layer - layers : -1;
}

ModulePatterns::ModulePatterns(const std::vector<std::string>& texts, const char* option) : option_(option) {
  for (const std::string& text : texts) {
    One one{text, role_from_name(text), std::nullopt};
    try {
      if (!one.role) one.pattern.emplace(text);
    } catch (const Error& e) {
      throw Error(fmt::format("{}: {}", option, e.what()));
    }
    all_.push_back(std::move(one));
  }
}

bool ModulePatterns::matches(std::string_view module, std::string_view tensor, int64_t layers) {
  bool any = false;
  for (One& one : all_) {
    const bool hit = one.role ? module_role(module, layers) == one.role
                              : one.pattern->matches(module) || one.pattern->matches(tensor);
    one.used = one.used || hit;
    any = any || hit;
  }
  return any;
}

std::vector<bool> ModulePatterns::select(const Checkpoint& checkpoint, int64_t layers) {
  std::vector<bool> selected;
  for (const TensorInfo& t : checkpoint.tensors()) {
    bool hit = matches(module_of(t.name), t.name, layers);
    if (const std::string projection = projection_of_scale(t.name); !hit && !projection.empty())
      hit = matches(projection, projection + ".weight", layers);
    selected.push_back(hit);
  }
  return selected;
}

void ModulePatterns::refuse_unused(const std::string& where) const {
  for (const One& one : all_) {
    if (one.used) continue;
    throw Error(fmt::format("{} '{}': expected a module, tensor or role of {}, found none that matches",
                            option_, one.text, where));
  }
}

bool ModulePatterns::has(ModuleRole role) const {
  return std::any_of(all_.begin(), all_.end(), [&](const One& one) { return one.role == role; });
}

}  // namespace twofour
