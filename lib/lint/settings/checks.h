#pragma once
#include <optional>
#include <string>

#include "formats/json/access.h"
#include "lib/checkpoint/model_config.h"
#include "lib/lint/bytes/input.h"

namespace twofour {

/// Settings of config.json that are not what model classes read, or contradict each other.
void lint_settings(const LintInput& input, LintReporter& reporter);

/// The scaling of rotary embeddings.
void lint_rope(const LintInput& input, LintReporter& reporter);

/// Settings that are one of some texts, and texts where a number or a switch belongs.
void lint_choices(const LintInput& input, LintReporter& reporter);

/// The class that loaders choose, and whether config.json says enough of it.
void lint_model_class(const LintInput& input, LintReporter& reporter);

/// What all checks of settings are given, and the model that config.json describes.
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
  /// What the language model's config says; nullptr: nothing.
  const Json* said(std::string_view key) const {
    const Json& value = member(*config_, key);
    return value.is_null() ? nullptr : &value;
  }

  const LintInput& s_;
  LintReporter& reporter_;
  const std::optional<LanguageModel> model_;  ///< by the row of its family
  const Json* config_;
};

}  // namespace twofour
