#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/family.h"
#include "formats/json.h"

namespace twofour {

/// The keys of the nested language model's config in multimodal models. thinker_config is left out, since the
/// talker beside it has its own experts and settings.
inline constexpr const char* kLanguageConfigs[] = {"text_config", "llm_config", "language_config"};

/// A config.json and the configs of the language model nested in it, as in multimodal models, the outer one
/// first. All point into `config`.
std::vector<const Json*> model_configs(const Json& config);

/// All values of `key` in model_configs(), without null.
std::vector<const Json*> model_settings(const std::vector<const Json*>& configs, std::string_view key);
std::vector<const Json*> model_settings(const Json& config, std::string_view key);

/// The one value of `key` in them; null if there is none. Throws Error, naming `where`, if two differ.
const Json& model_setting(const Json& config, std::string_view key, const std::string& where = "config.json");

/// A setting for a message. Strings, and values too long to be shown whole, are in quotes.
std::string quoted_setting(const Json& value);

/// The settings of a config.json that should be a count or a boolean and are not: "6" or 6.5 experts, NaN for
/// norm_topk_prob. Each is "KEY: expected X, found Y". null, and a list of counts, one a layer, are fine.
std::vector<std::string> find_odd_settings(const Json& config);

/// The loaders' name of a module, by `rename` (name_in_transformers, name_in_vllm) for a model_type in
/// config.json. Empty: the name in the files.
std::string other_name(const Json& config, std::string_view module,
                       std::string (*rename)(std::string_view model_type, std::string_view module));

/// The number of layers in a config.json; INT64_MAX if it has none. Further layers predict further tokens.
int64_t model_layers(const Json& config);

/// True if a config.json, at its top or in its language model's config, ties the head to the embedding.
bool has_tied_head(const Json& config);

/// The largest number of routed experts anywhere in a config.json, or 0.
int64_t promised_experts(const Json& config);

/// The language model of a config.json.
struct LanguageModel {
  const Json* config = nullptr;  ///< its own config, which may be nested
  const FamilyShapes* family = nullptr;
  std::string model_type;
  bool is_nested = false;
};
/// Returns nullopt if no row of the families has its model_type.
std::optional<LanguageModel> find_language_model(const Json& config);

}  // namespace twofour
