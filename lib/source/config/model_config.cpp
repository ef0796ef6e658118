#include "lib/source/config/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "formats/error.h"

namespace twofour {
namespace {

void collect(const Json& config, std::vector<const Json*>& all) {
  if (!config.is_object()) return;
  all.push_back(&config);
  for (const char* key : kLanguageConfigs) {
    if (const auto at = config.find(key); at != config.end()) collect(*at, all);
  }
}

}  // namespace

std::vector<const Json*> model_configs(const Json& config) {
  std::vector<const Json*> all;
  collect(config, all);
  return all;
}

std::vector<const Json*> model_settings(const std::vector<const Json*>& configs, std::string_view key) {
  std::vector<const Json*> configured;
  for (const Json* of : configs) {
    if (const auto at = of->find(key); at != of->end() && !at->is_null()) configured.push_back(&*at);
  }
  return configured;
}

std::vector<const Json*> model_settings(const Json& config, std::string_view key) {
  return model_settings(model_configs(config), key);
}

const Json& model_setting(const Json& config, std::string_view key, const std::string& where) {
  static const Json nothing;
  const auto configured = model_settings(config, key);
  for (const Json* other : configured) {
    if (*other == *configured[0]) continue;
    throw Error(fmt::format("{}: {}: expected one value, found {} and, nested, {}", where, key,
                            quoted_setting(*configured[0]), quoted_setting(*other)));
  }
  return configured.empty() ? nothing : *configured[0];
}

std::string quoted_setting(const Json& value) {
  constexpr size_t kShown = 256;
  if (value.is_string()) return json_quote_short(value.get_ref<const std::string&>());
  std::string text = value.type() == Json::Type::kRaw ? format_json(value) : json_line(value);
  if (text.ends_with('\n')) text.pop_back();
  return text.size() <= kShown ? text : json_quote_short(text);
}

namespace {

constexpr const char* kExpertCounts[] = {"num_experts", "num_local_experts", "n_routed_experts",
                                         "moe_num_experts"};

bool is_expert_count(std::string_view key) {
  return std::find(std::begin(kExpertCounts), std::end(kExpertCounts), key) != std::end(kExpertCounts);
}

bool is_count(const Json& value) {
  return value.is_null() || value.is_number_unsigned() || (value.is_number_integer() && value >= 0);
}

std::string odd_text(std::string_view key, const char* expected, const Json& found) {
  return fmt::format("{}: expected {}, found {}", key, expected, quoted_setting(found));
}

void add_odd_count(std::string_view key, const Json& value, std::vector<std::string>& odd) {
  const bool fits = value.is_array() ? std::all_of(value.begin(), value.end(), is_count) : is_count(value);
  if (!fits) odd.push_back(odd_text(key, "a whole number that is not negative", value));
}

/// Adds invalid numbers of experts. They may be at any depth, as in promised_experts().
void add_odd_expert_counts(const Json& config, std::vector<std::string>& odd) {
  if (!config.is_object()) return;
  for (const auto& [key, value] : config.items()) {
    if (is_expert_count(key)) add_odd_count(key, value, odd);
    if (value.is_object() && key != "quantization_config") add_odd_expert_counts(value, odd);
  }
}

}  // namespace

std::vector<std::string> find_odd_settings(const Json& config) {
  std::vector<std::string> odd;
  add_odd_expert_counts(config, odd);
  for (const Json* of : model_configs(config)) {
    for (const char* key : {"num_experts_per_tok", "num_hidden_layers", "hidden_size"}) {
      if (const auto at = of->find(key); at != of->end()) add_odd_count(key, *at, odd);
    }
    for (const char* key : {"norm_topk_prob", "tie_word_embeddings"}) {
      const auto at = of->find(key);
      if (at != of->end() && !at->is_null() && !at->is_boolean())
        odd.push_back(odd_text(key, "true or false", *at));
    }
  }
  return odd;
}

std::string other_name(const Json& config, std::string_view module,
                       std::string (*rename)(std::string_view model_type, std::string_view module)) {
  for (const Json* type : model_settings(config, "model_type")) {
    if (!type->is_string()) continue;
    std::string name = rename(type->get_ref<const std::string&>(), module);
    if (!name.empty()) return name;
  }
  return {};
}

int64_t model_layers(const Json& config) {
  for (const Json* number : model_settings(config, "num_hidden_layers")) {
    if (number->is_number_integer()) return number->get<int64_t>();
  }
  return INT64_MAX;
}

bool has_tied_head(const Json& config) {
  const auto configured = model_settings(config, "tie_word_embeddings");
  return std::any_of(configured.begin(), configured.end(), [](const Json* tied) { return *tied == true; });
}

int64_t promised_experts(const Json& config) {
  int64_t most = 0;
  if (!config.is_object()) return most;
  for (const auto& [key, value] : config.items()) {
    if (is_expert_count(key) && value.is_number_integer()) most = std::max(most, value.get<int64_t>());
    if (value.is_object() && key != "quantization_config") most = std::max(most, promised_experts(value));
  }
  return most;
}

namespace {

void collect_counts(const Json& value, std::set<int64_t>& counts) {
  if (value.is_number_integer() && value > 0) counts.insert(value.get<int64_t>());
  if (!value.is_array()) return;
  for (const Json& one : value) collect_counts(one, counts);
}

/// Adds the numbers of experts in an object or a list of objects.
void collect_expert_counts(const Json& config, std::set<int64_t>& known, std::set<int64_t>& others) {
  if (config.is_array()) {
    for (const Json& one : config) collect_expert_counts(one, known, others);
  }
  if (!config.is_object()) return;
  for (const auto& [key, value] : config.items()) {
    if (key == "quantization_config") continue;
    const auto has = [&key = key](const char* word) { return key.find(word) != key.npos; };
    if (is_expert_count(key)) collect_counts(value, known);
    if (has("experts") && !has("tok") && !has("shared") && !has("top")) collect_counts(value, others);
    collect_expert_counts(value, known, others);
  }
}

}  // namespace

std::set<int64_t> stated_expert_counts(const Json& config) {
  std::set<int64_t> known, all;
  collect_expert_counts(config, known, all);
  return known.empty() ? known : all;
}

std::optional<LanguageModel> find_language_model(const Json& config) {
  const std::vector<const Json*> all = model_configs(config);
  for (auto at = all.rbegin(); at != all.rend(); ++at) {
    const auto type = (*at)->find("model_type");
    if (type == (*at)->end() || !type->is_string()) continue;
    const std::string& name = type->get_ref<const std::string&>();
    if (const FamilyShapes* family = find_family_shapes(name)) {
      // Sizes in a nested config without a model_type belong to the model around it.
      const bool says_sizes = (*at)->contains("hidden_size") || all.back()->contains("model_type");
      const Json* own = says_sizes ? *at : all.back();
      return LanguageModel{own, family, name, own != all.front()};
    }
  }
  return std::nullopt;
}

}  // namespace twofour
