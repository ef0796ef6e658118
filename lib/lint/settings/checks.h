#pragma once
#include <optional>
#include <string>

#include "formats/json/access.h"
#include "lib/lint/bytes/input.h"
#include "lib/source/config/model_config.h"

namespace twofour {

/// Reports settings of config.json that model classes do not accept, and settings that contradict each other.
void lint_settings(const LintInput& input, LintReporter& reporter);

/// Checks the settings of generation_config.json.
void lint_generation(const LintInput& input, LintReporter& reporter);

/// Checks the settings for scaling of rotary embeddings.
void lint_rope(const LintInput& input, LintReporter& reporter);

/// Checks settings whose value is one of a few texts, and reports texts in place of a number or a boolean.
void lint_choices(const LintInput& input, LintReporter& reporter);

/// Checks which class loaders choose, and whether config.json describes it.
void lint_model_class(const LintInput& input, LintReporter& reporter);

/// The base of all checks of settings: their input, and the model that config.json describes.
class SettingLint {
 public:
  SettingLint(const LintInput& s, LintReporter& reporter)
      : s_(s),
        reporter_(reporter),
        model_(find_language_model(s.config)),
        config_(model_ ? model_->config : model_configs(s.config).back()) {}

 protected:
  void odd(const std::string& place, std::string_view expected, const Json& found) {
    reporter_.add("odd-setting", {"config.json", place}, "expected {}, found {}", expected,
                  quoted_setting(found));
  }
  /// Returns the value of a key in the language model's config; nullptr: it has none.
  const Json* configured(std::string_view key) const {
    const Json& value = member(*config_, key);
    return value.is_null() ? nullptr : &value;
  }

  const LintInput& s_;
  LintReporter& reporter_;
  const std::optional<LanguageModel> model_;  ///< the language model with the row of its family
  const Json* config_;
};

}  // namespace twofour
