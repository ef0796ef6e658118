#include "lib/graft/quantization_words.h"

#include <utility>

#include "lib/checkpoint/quantization_config.h"
#include "lib/graft/config_lists.h"
#include "lib/names/lookup_parts.h"

namespace twofour {
namespace {

/// ModelOpt's words for one algorithm as an entry of `quantized_layers`.
Json entry_of(const Json& holder) {
  Json entry = Json::object();
  for (const char* key : {"quant_algo", "group_size", "has_zero_point", "pre_quant_scale"}) {
    if (holder.contains(key) && !holder[key].is_null()) entry[key] = holder[key];
  }
  // In the flat form the size is in the groups.
  for (const Json& group : holder.value("config_groups", Json::object())) {
    const Json weights = group.is_object() ? group.value("weights", Json()) : Json();
    if (!entry.contains("group_size") && weights.is_object() && weights.contains("group_size"))
      entry["group_size"] = weights["group_size"];
  }
  return entry;
}

}  // namespace

QuantizationWords::QuantizationWords(Json config, Json hf_quant_config, std::string where)
    : config_(std::move(config)), hf_quant_(std::move(hf_quant_config)), where_(std::move(where)) {}

std::vector<const Json*> QuantizationWords::holders() const {
  std::vector<const Json*> all;
  if (const auto entry = quantization_entry(config_)) all.push_back(&entry->value);
  if (hf_quant_.is_object()) {
    const auto nested = hf_quant_.find("quantization");
    all.push_back(nested != hf_quant_.end() && nested->is_object() ? &*nested : &hf_quant_);
  }
  return all;
}

std::vector<Json*> QuantizationWords::holders() {
  std::vector<Json*> all;
  groups_.reset();
  // They point into this object's own values.
  for (const Json* holder : std::as_const(*this).holders()) all.push_back(const_cast<Json*>(holder));
  return all;
}

QuantizationWords::Dialect QuantizationWords::dialect() const {
  const auto all = holders();
  if (all.empty()) return Dialect::kNone;
  for (const Json* holder : all) {
    const auto algo = holder->find("quant_algo");
    if (algo != holder->end() && algo->is_string()) {
      return lookups::algorithm_of(*holder) == "MIXED_PRECISION" ? Dialect::kModelOptMixed
                                                                 : Dialect::kModelOpt;
    }
  }
  const Json method = all[0]->value("quant_method", Json());
  if (method == "compressed-tensors") return Dialect::kCompressedTensors;
  for (const char* name : {"fp8", "mxfp8", "mxfp4", "awq"}) {
    if (method == name) return Dialect::kFp8Like;
  }
  return Dialect::kOther;
}

bool QuantizationWords::takes(const std::string& entry, const std::string& module) const {
  if (!is_wild(entry)) return names_module(entry, module);
  return patterns_.try_emplace(entry, entry).first->second.matches(module);
}

bool QuantizationWords::is_unquantized(const std::string& module) const {
  for (const Json* holder : holders()) {
    for (const char* key : kUnquantizedLists) {
      if (!is_list(*holder, key)) continue;
      for (const Json& entry : (*holder)[key]) {
        if (entry.is_string() && takes(entry.get<std::string>(), module)) return true;
      }
    }
  }
  return false;
}

ComingModule QuantizationWords::scheme_of(const std::string& module) const {
  const Dialect kind = dialect();
  if (kind == Dialect::kNone || is_unquantized(module)) return {module, nullptr};
  const auto all = holders();
  if (kind == Dialect::kModelOptMixed) {
    for (const std::string& name : with_ancestors(module)) {
      for (const Json* holder : all) {
        const auto layers = holder->find("quantized_layers");
        if (layers == holder->end()) continue;
        if (const auto at = layers->find(name); at != layers->end()) return {module, *at, name};
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
