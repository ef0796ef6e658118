#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/family.h"
#include "formats/json.h"

namespace twofour {

/// The keys under which multimodal models nest the language model's config. thinker_config is left out, since
/// the talker beside it has its own experts and settings.
inline constexpr const char* kLanguageConfigs[] = {"text_config", "llm_config", "language_config"};

/// Returns a config.json and the configs of the language model nested in it, the outermost first. All
/// pointers lead into `config`.
std::vector<const Json*> model_configs(const Json& config);

/// Returns all values of `key` in model_configs(), except null.
std::vector<const Json*> model_settings(const std::vector<const Json*>& configs, std::string_view key);
std::vector<const Json*> model_settings(const Json& config, std::string_view key);

/// Returns the only value of `key` in model_configs(); null if there is none. Throws Error, naming `where`,
/// if two values differ.
const Json& model_setting(const Json& config, std::string_view key, const std::string& where = "config.json");

/// A setting as text for a message. Strings, and values too long to be shown whole, are in quotes.
std::string quoted_setting(const Json& value);

/// Returns the settings of a config.json that should be a number or a boolean and are not, such as "6" or 6.5
/// experts, or NaN for norm_topk_prob. Each is "KEY: expected X, found Y". null is allowed, and so is a list
/// with a number for each layer.
std::vector<std::string> find_odd_settings(const Json& config);

/// Returns the name that loaders give a module. `rename` is name_in_transformers or name_in_vllm; it gets the
/// model_type in config.json. Empty: loaders use the name in the files.
std::string other_name(const Json& config, std::string_view module,
                       std::string (*rename)(std::string_view model_type, std::string_view module));

/// The number of layers in a config.json; INT64_MAX if it has none. Layers beyond this number are draft
/// layers (MTP).
int64_t model_layers(const Json& config);

/// True if a config.json, or the language model's config in it, ties the head to the embedding.
bool has_tied_head(const Json& config);

/// The largest number of routed experts that a config.json states anywhere; 0 if it states none.
int64_t promised_experts(const Json& config);
/// All numbers of routed experts that a config.json states, at any depth and in lists for layers. Empty if it
/// has none of the keys of promised_experts(); with one of them, other keys with "experts" count, too.
std::set<int64_t> stated_expert_counts(const Json& config);

/// The language model of a config.json.
struct LanguageModel {
  const Json* config = nullptr;  ///< its own config, which may be nested
  const FamilyShapes* family = nullptr;
  std::string model_type;
  bool is_nested = false;
};
/// Returns nullopt if no family has the config's model_type.
std::optional<LanguageModel> find_language_model(const Json& config);

}  // namespace twofour
