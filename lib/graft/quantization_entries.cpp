#include "lib/graft/quantization_entries.h"

#include <utility>

#include "formats/json/access.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/graft/unquantized_lists.h"
#include "lib/source/config/quantization_config.h"

namespace twofour {
namespace {

/// Returns ModelOpt's settings for a single algorithm, written as an entry of `quantized_layers`.
Json entry_of(const Json& holder) {
  Json entry = Json::object();
  for (const char* key : {"quant_algo", "group_size", "has_zero_point", "pre_quant_scale"}) {
    if (const Json& configured = member(holder, key); !configured.is_null()) entry[key] = configured;
  }
  // In the flat form, the groups hold the group size.
  for (const auto& [name, group] : members_of(holder, "config_groups")) {
    const Json& weights = member(group, "weights");
    if (!entry.contains("group_size") && weights.contains("group_size"))
      entry["group_size"] = weights["group_size"];
  }
  return entry;
}

}  // namespace

QuantizationEntries::QuantizationEntries(Json config, Json hf_quant_config, std::string where)
    : config_(std::move(config)), hf_quant_(std::move(hf_quant_config)), where_(std::move(where)) {}

std::vector<const Json*> QuantizationEntries::holders() const {
  std::vector<const Json*> all;
  if (const auto entry = quantization_entry(config_)) all.push_back(&entry->value);
  const Json& nested = member(hf_quant_, "quantization");
  if (hf_quant_.is_object()) all.push_back(nested.is_object() ? &nested : &hf_quant_);
  return all;
}

std::vector<Json*> QuantizationEntries::holders() {
  std::vector<Json*> all;
  groups_.reset();
  // The cast is safe, since the pointers point to this object's own values.
  for (const Json* holder : std::as_const(*this).holders()) all.push_back(const_cast<Json*>(holder));
  return all;
}

QuantizationEntries::Dialect QuantizationEntries::dialect() const {
  const auto all = holders();
  if (all.empty()) return Dialect::kNone;
  for (const Json* holder : all) {
    if (!member(*holder, "quant_algo").is_string()) continue;
    return lookups::algorithm_of(*holder) == "MIXED_PRECISION" ? Dialect::kModelOptMixed : Dialect::kModelOpt;
  }
  const Json& method = member(*all[0], "quant_method");
  if (method == "compressed-tensors") return Dialect::kCompressedTensors;
  for (const char* name : {"fp8", "mxfp8", "mxfp4", "awq"}) {
    if (method == name) return Dialect::kFp8Like;
  }
  return Dialect::kOther;
}

bool QuantizationEntries::takes(const std::string& entry, const std::string& module) const {
  if (!is_wild(entry)) return names_module(entry, module);
  return patterns_.try_emplace(entry, entry).first->second.matches(module);
}

bool QuantizationEntries::is_unquantized(const std::string& module) const {
  for (const Json* holder : holders()) {
    for (const Json* list : unquantized_lists(*holder)) {
      for (const std::string& entry : strings_of(*list)) {
        if (takes(entry, module)) return true;
      }
    }
  }
  return false;
}

ComingModule QuantizationEntries::scheme_of(const std::string& module) const {
  const Dialect kind = dialect();
  if (kind == Dialect::kNone || is_unquantized(module)) return {module, nullptr};
  const auto all = holders();
  if (kind == Dialect::kModelOptMixed) {
    for (const std::string& name : with_ancestors(module)) {
      for (const Json* holder : all) {
        const Json& layers = member(*holder, "quantized_layers");
        if (const auto at = layers.find(name); at != layers.end()) return {module, *at, name};
      }
    }
    return {module, nullptr};
  }
  if (kind == Dialect::kModelOpt) {
    Json entry = entry_of(*all.back());
    if (all.size() > 1) {
      Json first = entry_of(*all.front());
      for (const auto& [key, value] : entry.items()) first[key] = value;
      entry = std::move(first);
    }
    return {module, entry, module};
  }
  if (kind == Dialect::kCompressedTensors) {
    if (!groups_) groups_ = std::make_shared<SourceGroups>(*all[0]);
    Json scheme = groups_->find(module);
    return scheme.is_null() ? ComingModule{module, nullptr} : ComingModule{module, std::move(scheme), module};
  }
  Json scheme = *all[0];
  for (const char* key : kUnquantizedLists) scheme.erase(key);
  return {module, scheme, module};
}

}  // namespace twofour
