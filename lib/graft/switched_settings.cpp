#include "lib/graft/model_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/families/family_rows.h"
#include "formats/families/sizes.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

/// Keys of counts that model classes compare with None. With 0 these classes would create matrices without
/// rows. Source: Hugging Face transformers, modeling_deepseek_v3.py; vLLM, deepseek_v2.py.
constexpr std::string_view kNullWhereNone[] = {"n_shared_experts", "q_lora_rank"};

/// The existing tensors of each row of a family.
struct Presence {
  std::vector<size_t> counts;  ///< number of tensors of each row
  std::set<int64_t> layers;    ///< layers that have any tensor; -1 stands for tensors outside of layers
};

Presence presence_of(const Checkpoint& c, const std::vector<FamilyRow>& rows, const FamilySizes& sizes) {
  const FamilyNames names(rows);
  Presence there{std::vector<size_t>(rows.size()), {-1}};
  FoldedName name;
  for (const TensorInfo& t : c.tensors()) {
    name.fold(t.name);
    const auto found = names.find(text_model_name(name.text));
    if (found.empty()) continue;
    const auto at = std::find_if(found.begin(), found.end(), [&](size_t row) {
      return sizes.holds(rows[row].when, rows[row].has_layer ? name.numbers[0] : -1);
    });
    const size_t row = at == found.end() ? found[0] : *at;
    ++there.counts[row];
    if (rows[row].has_layer) there.layers.insert(name.numbers[0]);
  }
  return there;
}

/// The family's default for a key that a config lacks. Null if the family has none.
Json default_of(const FamilyShapes& family, const std::string& key) {
  const Json defaults = family_defaults(family);
  const auto at = defaults.find(key);
  return at == defaults.end() || at->is_string() ? Json(nullptr) : *at;
}

/// The value of a key if the model has no module that the key announces. `stated` is its present value.
Json off_value(const std::string& key, const FamilyShapes& family, const Json* stated) {
  const bool is_switch = (stated != nullptr ? *stated : default_of(family, key)).is_boolean();
  const bool is_null =
      std::find(std::begin(kNullWhereNone), std::end(kNullWhereNone), key) != std::end(kNullWhereNone);
  return is_switch ? Json(false) : is_null ? Json(nullptr) : Json(0);
}

/// The donor's value of a key that announces modules. Empty if it announces none.
std::optional<Json> on_value(const std::string& key, const Json& donor) {
  const auto model = find_language_model(donor);
  if (!model) return std::nullopt;
  const FamilySizes sizes(*model->family, *model->config);
  if (sizes.number(key).value_or(0) == 0) return std::nullopt;
  const Json* stated = sizes.stated(key);
  const Json value = stated != nullptr ? *stated : default_of(*model->family, key);
  return value.is_null() ? std::nullopt : std::optional(value);
}

using Changes = std::vector<std::pair<std::string, Json>>;

Changes changed_switches(const Json& config, const Checkpoint& before, const Checkpoint& now,
                         const Json& donor) {
  Changes changes;
  const auto model = find_language_model(config);
  if (!model) return changes;
  const FamilySizes sizes(*model->family, *model->config);
  const std::vector<FamilyRow>& rows = sizes.rows();
  const Presence old = presence_of(before, rows, sizes), left = presence_of(now, rows, sizes);
  for (const std::string& key : family_switches(rows)) {
    if (sizes.is_list(key)) continue;
    size_t had = 0, has = 0;
    bool is_wanted = false;  // by a remaining layer
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!has_term(rows[i].when, key) || has_term(rows[i].when, "may")) continue;
      had += old.counts[i];
      has += left.counts[i];
      is_wanted = is_wanted || std::any_of(left.layers.begin(), left.layers.end(), [&](int64_t layer) {
                    return rows[i].has_layer == (layer >= 0) && sizes.holds(rows[i].when, layer);
                  });
    }
    const bool on = sizes.number(key).value_or(0) != 0;
    if (on && had > 0 && has == 0 && is_wanted) {
      changes.emplace_back(key, off_value(key, *model->family, sizes.stated(key)));
    } else if (!on && had == 0 && has > 0) {
      if (auto value = on_value(key, donor)) changes.emplace_back(key, *std::move(value));
    }
  }
  return changes;
}

/// Updates DeepSeek-V4's list of compression ratios. It has an entry per layer, which is the factor by which
/// the layer's compressor shortens a text. An entry of 0 means that the layer has no compressor.
void switch_compressors(Json& config, const Checkpoint& before, const Checkpoint& now, const Json& donor) {
  const auto has = [](const Checkpoint& c, size_t layer) {
    return c.find(fmt::format("layers.{}.attn.compressor.ape", layer)).has_value();
  };
  const Json& theirs = model_setting(donor, "compress_ratios");
  for_each_config(config, [&](Json& one) {
    const auto ratios = one.find("compress_ratios");
    if (ratios == one.end() || !ratios->is_array()) return;
    for (size_t i = 0; i < ratios->size(); ++i) {
      const bool had = has(before, i);
      if (had == has(now, i)) continue;
      if (had) {
        (*ratios)[i] = 0;
      } else if (theirs.is_array() && i < theirs.size()) {
        (*ratios)[i] = theirs[i];
      }
    }
  });
}

}  // namespace

Json switch_settings(Json config, const Checkpoint& before, const Checkpoint& now, const Json& donor) {
  for (const auto& [key, value] : changed_switches(config, before, now, donor))
    set_everywhere(config, key.c_str(), value);
  switch_compressors(config, before, now, donor);
  return config;
}

}  // namespace twofour
