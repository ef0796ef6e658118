#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "formats/json/access.h"
#include "lib/lint/family/family_tensors.h"
#include "lib/lint/files/checks.h"
#include "lib/lint/settings/checks.h"
#include "lib/source/config/model_config.h"

// Checks of the settings by which loaders choose the class of a model: model_type and architectures.

namespace twofour {
namespace {

class ModelClass : public SettingLint {
 public:
  using SettingLint::SettingLint;

  void run() {
    check_type();
    check_list();
    check_class();
    check_head();
    check_described();
    check_nested();
    lint_token_settings(s_, "config.json", model_ ? *model_->config : s_.config, reporter_);
  }

 private:
  template <class... Args>
  void odd(const char* key, fmt::format_string<Args...> text, Args&&... args) {
    reporter_.add("odd-setting", {"config.json", key}, text, std::forward<Args>(args)...);
  }

  /// True if the tensors are those of a decoder, whose config loaders read.
  bool is_decoder() const {
    if (s_.is_part) return false;
    bool has_layers = false, has_embedding = false;
    for (const TensorInfo& t : s_.tensors) {
      has_layers = has_layers || t.name.find("layers.0.") != t.name.npos;
      has_embedding = has_embedding || t.name.ends_with("embed_tokens.weight") ||
                      t.name.ends_with("embeddings.weight") || t.name == "embed.weight";
    }
    return has_layers && has_embedding;
  }

  /// Checks model_type. A model of diffusers states its class in another key.
  void check_type() {
    for (const Json* config : model_configs(s_.config)) {
      const auto at = config->find("model_type");
      if (at == config->end() || at->is_null()) continue;
      if (at->is_string() && !at->get_ref<const std::string&>().empty()) return;
      return odd("model_type", "expected the name of a family, found {}", quoted_setting(*at));
    }
    if (!s_.config.contains("_class_name") && is_decoder())
      odd("model_type", "expected the name of a family, with which loaders choose a class, found none");
  }

  void check_list() {
    const auto at = s_.config.find("architectures");
    const bool none = at == s_.config.end() || at->is_null() || (at->is_array() && at->empty());
    if (none) {
      // vLLM and SGLang choose the class by this setting.
      if (model_ && !model_->is_nested && is_decoder())
        odd("architectures", "expected the class of the model, found none");
      return;
    }
    const bool is_list = at->is_array() && std::all_of(at->begin(), at->end(),
                                                       [](const Json& name) { return name.is_string(); });
    if (!is_list) odd("architectures", "expected a list of classes, found {}", quoted_setting(*at));
  }

  /// Compares the class, by which vLLM chooses the model, with model_type, by which transformers does.
  void check_class() {
    if (!model_) return check_unknown_type();
    if (model_->is_nested || is_class_of_family(s_.config, *model_)) return;
    for (const std::string& name : strings_of(s_.config, "architectures")) {
      const std::string stem = name.substr(0, name.find("For"));
      const FamilyShapes* other = find_family_of_class(stem);
      if (other == nullptr || other == model_->family) continue;
      reporter_.add("impossible-setting", {"config.json", "architectures"},
                    "expected a class of model_type {}, found {}", model_->model_type,
                    json_quote_short(name));
      return;
    }
  }

  /// Reports a model_type that nobody knows beside a class that loaders know. transformers stops at it.
  void check_unknown_type() {
    const std::string type = text_of(s_.config, "model_type");
    if (type.empty() || s_.config.contains("auto_map")) return;
    for (const std::string& name : strings_of(s_.config, "architectures")) {
      const size_t task = name.find("ForCausalLM");
      const FamilyShapes* family = task == name.npos ? nullptr : find_family_of_class(name.substr(0, task));
      if (family == nullptr) continue;
      reporter_.add("impossible-setting", {"config.json", "model_type"}, "expected {} ({}), found {}",
                    family->model_types[0], name, json_quote_short(type));
      return;
    }
  }

  /// Checks the head. A class that scores texts has a score matrix in place of a vocabulary matrix.
  void check_head() {
    const std::vector<std::string> classes = strings_of(s_.config, "architectures");
    const bool scores = std::any_of(classes.begin(), classes.end(), [](const std::string& name) {
      return name.ends_with("ForSequenceClassification") || name.ends_with("ForTokenClassification");
    });
    if (!scores || !s_.find("lm_head.weight") || s_.find("score.weight") || s_.is_part) return;
    reporter_.add("impossible-setting", {"config.json", "architectures"},
                  "expected a class with lm_head.weight, which is stored, found {}",
                  json_quote_short(classes[0]));
  }

  /// Reports the config of a model that also reads images, without that of the language model in it. Loaders
  /// then take the sizes of the family's first model.
  void check_nested() {
    const std::string type = text_of(s_.config, "model_type");
    const bool has_nested = std::ranges::any_of(kLanguageConfigs, [&](const char* key) {
      return s_.config.contains(key) && s_.config[key].is_object();
    });
    const bool is_outer = std::ranges::any_of(family_shapes(), [&](const FamilyShapes& family) {
      return family.outer_type != nullptr && type == family.outer_type;
    });
    if (is_outer && !has_nested && !s_.config.contains("hidden_size") && is_decoder())
      odd("text_config", "expected the config of the language model, found none");
  }

  /// Reports a config without sizes. Loaders then use the sizes of the family's first model.
  void check_described() {
    if (!model_ || !is_decoder()) return;
    for (const char* key : {"hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"}) {
      if (!model_settings(s_.config, key).empty()) return;
    }
    odd("hidden_size", "expected the sizes of the model, found none: loaders use those of some {}",
        model_->model_type);
  }
};

}  // namespace

void lint_model_class(const LintInput& s, LintReporter& reporter) { ModelClass(s, reporter).run(); }

}  // namespace twofour
