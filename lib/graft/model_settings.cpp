#include "lib/graft/model_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/error.h"
#include "lib/graft/module_patterns.h"
#include "lib/source/config/model_config.h"

namespace twofour {

void for_each_config(Json& config, const std::function<void(Json&)>& f) {
  if (!config.is_object()) return;
  f(config);
  for (const char* holder : kLanguageConfigs) {
    if (config.contains(holder)) for_each_config(config[holder], f);
  }
}

void set_everywhere(Json& config, const char* key, const Json& value) {
  bool found = false;
  for_each_config(config, [&](Json& one) {
    if (!one.contains(key)) return;
    one[key] = value;
    found = true;
  });
  if (found) return;
  Json* holder = &config;
  for_each_config(config, [&](Json& one) {
    if (one.contains("num_hidden_layers")) holder = &one;
  });
  (*holder)[key] = value;
}

namespace {

constexpr const char* kDraftCounts[] = {"num_nextn_predict_layers", "mtp_num_hidden_layers",
                                        "num_mtp_modules"};
constexpr const char* kExpertCounts[] = {"num_experts", "num_local_experts", "n_routed_experts",
                                         "moe_num_experts"};
/// Lists with an entry for each layer; entries for draft layers come last. Source: Hugging Face transformers,
/// configuration_*.py.
constexpr const char* kLayerLists[] = {"layer_types",
                                       "mlp_layer_types",
                                       "layers_block_type",
                                       "attn_type_list",
                                       "moe_layer_freq",
                                       "no_rope_layers",
                                       "compress_ratios",
                                       "attention_types",
                                       "sliding_window_pattern",
                                       "attn_layer_types",
                                       "hybrid_override_pattern",
                                       "indexer_types",
                                       "swiglu_limits",
                                       "swiglu_limits_shared",
                                       "partial_rotary_factors",
                                       "attention_layers",
                                       "num_attention_heads_per_layer"};
/// Keys of lists that hold the numbers of the layers of one kind.
constexpr const char* kNumberLists[] = {"mlp_only_layers", "full_attn_idxs", "full_attention_layers",
                                        "dense_layers"};

std::string config_place(const Checkpoint& c) { return (c.path() / "config.json").string(); }

size_t length_of(const Json& list) {
  return list.is_array() ? list.size() : list.is_string() ? list.get<std::string>().size() : 0;
}

/// The first `length` entries of a list, followed by the entries of `more` from position `length` on. Nothing
/// follows if `more` is null.
Json resized(const Json& list, size_t length, const Json* more) {
  if (list.is_string()) {
    std::string text = list.get<std::string>().substr(0, length);
    if (more != nullptr) text += more->get<std::string>().substr(length);
    return text;
  }
  Json out = Json::array();
  for (size_t i = 0; i < std::min(length, list.size()); ++i) out.push_back(list[i]);
  for (size_t i = length; more != nullptr && i < more->size(); ++i) out.push_back((*more)[i]);
  return out;
}

/// Shortens lists that have an entry for each of `before` layers to `after` entries, and removes numbers of
/// dropped layers from lists of numbers.
void shorten_lists(Json& config, int64_t before, int64_t after) {
  for_each_config(config, [&](Json& one) {
    for (const char* key : kLayerLists) {
      const auto at = one.find(key);
      if (at != one.end() && static_cast<int64_t>(length_of(*at)) == before)
        *at = resized(*at, static_cast<size_t>(after), nullptr);
    }
    for (const char* key : kNumberLists) {
      const auto at = one.find(key);
      if (at == one.end() || !at->is_array()) continue;
      Json left = Json::array();
      for (const Json& number : *at) {
        if (!number.is_number_integer() || number.get<int64_t>() < after) left.push_back(number);
      }
      *at = left;
    }
  });
}

/// Appends the donor's entries for draft layers to lists that have entries only for the main layers.
void lengthen_lists(Json& config, const Json& donor, int64_t layers, int64_t drafts) {
  for_each_config(config, [&](Json& one) {
    for (const char* key : kLayerLists) {
      const auto at = one.find(key);
      if (at == one.end() || static_cast<int64_t>(length_of(*at)) != layers) continue;
      const Json& theirs = model_setting(donor, key);
      if (theirs.type() == at->type() && static_cast<int64_t>(length_of(theirs)) == layers + drafts)
        *at = resized(*at, static_cast<size_t>(layers), &theirs);
    }
  });
}

void set_draft_count(Json& config, int64_t count) {
  for (const char* key : kDraftCounts) {
    if (!model_setting(config, key).is_null()) set_everywhere(config, key, count);
  }
}

}  // namespace

LayerCounts count_layers(const Checkpoint& c, int64_t layers) {
  std::set<int64_t> main, draft;
  LayerCounts counts;
  for (const TensorInfo& t : c.tensors()) {
    const int64_t d = draft_layer(t.name, layers), m = main_layer(t.name);
    if (d >= 0) draft.insert(d);
    counts.inlined = counts.inlined || (d >= 0 && m >= 0);
    if (d < 0 && m >= 0) main.insert(m);
  }
  const auto check = [&](const std::set<int64_t>& found, const char* what) {
    if (found.empty() || *found.rbegin() + 1 == static_cast<int64_t>(found.size())) return;
    int64_t missing = 0;
    while (found.contains(missing)) ++missing;
    throw Error(
        fmt::format("{}: expected {} 0 to {} in the result, found no {}; only the last layers can be dropped",
                    c.path().string(), what, *found.rbegin(), missing));
  };
  check(main, "layers");
  check(draft, "draft layers");
  counts.main = static_cast<int64_t>(main.size());
  counts.draft = static_cast<int64_t>(draft.size());
  return counts;
}

Json config_after_graft(const Checkpoint& base, const Checkpoint& donor, const Checkpoint& result,
                        bool took) {
  Json config = base.config();
  const int64_t layers = layer_count(base);
  const LayerCounts now = count_layers(result, layers), before = count_layers(base, layers);
  if (now.main != before.main && before.main > 0)
    throw Error(fmt::format("{}: expected the {} layers of the base in the result, found {}",
                            donor.path().string(), before.main, now.main));
  if (!took) return config;
  const LayerCounts theirs = count_layers(donor, layers);
  bool known = false;
  for (const char* key : kDraftCounts) {
    const Json& stated = model_setting(donor.config(), key);
    if (stated.is_null() && model_setting(config, key).is_null()) continue;
    known = true;
    const bool all_came = now.draft == theirs.draft && stated.is_number_integer() && stated > 0;
    set_everywhere(config, key, all_came ? stated : Json(now.draft));
  }
  if (!known && now.draft > 0) {
    throw Error(
        fmt::format("{}: expected num_nextn_predict_layers or mtp_num_hidden_layers for the added draft "
                    "layers, found neither, nor in {}",
                    config_place(donor), config_place(base)));
  }
  lengthen_lists(config, donor.config(), layers, now.draft);
  return config;
}

Json config_after_drop(const Checkpoint& source, const Checkpoint& result) {
  Json config = source.config();
  const int64_t layers = layer_count(source);
  const LayerCounts before = count_layers(source, layers), now = count_layers(result, layers);
  if (now.draft == before.draft && now.main == before.main) return config;
  if (now.draft != before.draft) set_draft_count(config, now.draft);
  if (now.main != before.main) {
    if (now.main == 0)
      throw Error(
          fmt::format("{}: expected layers to stay, found that all are dropped", source.path().string()));
    if (before.inlined && now.draft > 0) {
      throw Error(
          fmt::format("{}: expected draft layers, which are numbered after the last layers, to be dropped "
                      "with them, found that they stay; drop mtp, too",
                      source.path().string()));
    }
    if (layers != kNoLayerCount) set_everywhere(config, "num_hidden_layers", now.main);
  }
  shorten_lists(config, before.main + before.draft, now.main + now.draft);
  shorten_lists(config, before.main, now.main);
  return config;
}

Json config_after_experts(const Checkpoint& source, int64_t experts, int64_t count) {
  Json config = source.config();
  for_each_config(config, [&](Json& one) {
    for (const char* key : kExpertCounts) {
      const auto at = one.find(key);
      if (at != one.end() && *at == Json(experts)) *at = count;
    }
  });
  return config;
}

}  // namespace twofour
