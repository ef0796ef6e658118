#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/family.h"
#include "formats/json.h"

namespace twofour {

/// Where multimodal models nest the config of their language model. thinker_config is left out: the talker
/// beside it has experts and settings of its own.
inline constexpr const char* kLanguageConfigs[] = {"text_config", "llm_config", "language_config"};

/// A config.json and those of its language model that are nested in it, as multimodal models have them, the
/// outer one first. All of them point into `config`.
std::vector<const Json*> model_configs(const Json& config);

/// All that model_configs() say under `key`. null says nothing.
std::vector<const Json*> model_settings(const std::vector<const Json*>& configs, std::string_view key);
std::vector<const Json*> model_settings(const Json& config, std::string_view key);

/// The one thing that they say under `key`; null where they say nothing. Throws Error, naming `where`, if two
/// differ.
const Json& model_setting(const Json& config, std::string_view key, const std::string& where = "config.json");

/// A setting for a message: strings, and what is too long to be shown whole, in quotes.
std::string quoted_setting(const Json& value);

/// The settings of a config.json that are counts or yes or no and are neither, or null, which says nothing:
/// "6" or 6.5 experts, NaN for norm_topk_prob. As "KEY: expected X, found Y". A list of counts, one a layer,
/// is fine.
std::vector<std::string> find_odd_settings(const Json& config);

/// What loaders call a module that files name otherwise, by `rename` (name_in_transformers, name_in_vllm) for
/// a model_type that config.json states. Empty: as the files do.
std::string other_name(const Json& config, std::string_view module,
                       std::string (*rename)(std::string_view model_type, std::string_view module));

/// The layers that a config.json counts; INT64_MAX where it does not. Further ones predict further tokens.
int64_t model_layers(const Json& config);

/// Whether a config.json, at its top or in that of its language model, ties the head to the embedding.
bool has_tied_head(const Json& config);

/// The largest count of routed experts that a config.json states anywhere, or 0.
int64_t promised_experts(const Json& config);

/// The language model of a config.json.
struct LanguageModel {
  const Json* config = nullptr;  ///< its own, which may be nested
  const FamilyShapes* family = nullptr;
  std::string model_type;
  bool is_nested = false;
};
/// Empty where no row of the families has its model_type.
std::optional<LanguageModel> find_language_model(const Json& config);

}  // namespace twofour
