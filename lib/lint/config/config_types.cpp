#include <fmt/format.h>

#include "formats/json/access.h"
#include "lib/lint/config/checks.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

/// Checks types in a quantization config that readers themselves do not check.
class ConfigTypes {
 public:
  ConfigTypes(std::string file, bool has_nvfp4, LintReporter& reporter)
      : file_(std::move(file)), has_nvfp4_(has_nvfp4), reporter_(reporter) {}

  void check(const Json& entry, const std::string& key) {
    if (!entry.is_object()) return;
    const std::string below = key.empty() ? "" : key + ".";
    if (const Json* groups = object(entry, "config_groups", below)) {
      for (const auto& [name, group] : groups->items()) {
        const std::string place = fmt::format("{}config_groups.{}", below, name);
        if (!group.is_object()) {
          add(place, "an object", group);
          continue;
        }
        for (const char* part : {"weights", "input_activations", "output_activations"})
          object(group, part, place + ".");
        list(group, "targets", place + ".");
      }
    }
    if (const Json* layers = object(entry, "quantized_layers", below)) {
      for (const auto& [name, layer] : layers->items()) {
        if (!layer.is_object()) add(fmt::format("{}quantized_layers.{}", below, name), "an object", layer);
      }
    }
    for (const char* list_name : {"dynamic", "extra_config"}) {
      const Json* exceptions = object(entry, list_name, below);
      if (exceptions == nullptr) continue;
      for (const auto& [name, exception] : exceptions->items()) {
        if (!exception.is_object() && !exception.is_null())
          add(fmt::format("{}{}.{}", below, list_name, name), "an object", exception);
      }
    }
    check_quark(entry, below);
    list(entry, "ignore", below);
    list(entry, "exclude_modules", below);
  }

 private:
  void add(const std::string& place, const char* expected, const Json& found) {
    reporter_.add("bad-config", {file_, place}, "expected {}, found {}", expected, found.type_name());
  }
  /// Returns a member that must be an object. nullptr: it is absent, null or not an object.
  const Json* object(const Json& owner, const char* key, const std::string& below) {
    const Json& value = member(owner, key);
    if (value.is_object()) return &value;
    if (!value.is_null()) add(below + key, "an object", value);
    return nullptr;
  }
  void list(const Json& owner, const char* key, const std::string& below) {
    const Json& value = member(owner, key);
    if (value.is_null()) return;
    if (!value.is_array()) return add(below + key, "a list of names and patterns", value);
    for (const Json& item : value) {
      if (!item.is_string()) return add(below + key, "a list that has only names and patterns", item);
      const std::string& text = item.get_ref<const std::string&>();
      // Another check finds these patterns when it evaluates lists of exceptions.
      if (std::string_view(key) != "targets" || !text.starts_with("re:") || has_pairs(text)) continue;
      reporter_.add("unreadable-pattern", {file_, below + key},
                    "expected a regular expression, found {} with unpaired parentheses",
                    json_quote_short(text));
    }
  }

  /// True if all parentheses of a pattern are in pairs.
  static bool has_pairs(std::string_view pattern) {
    int open = 0;
    bool in_class = false;
    for (size_t i = 0; i < pattern.size(); ++i) {
      const char c = pattern[i];
      if (c == '\\') {
        ++i;
      } else if (in_class) {
        in_class = c != ']';
      } else if (c == '[') {
        in_class = true;
      } else if (c == '(') {
        ++open;
      } else if (c == ')' && --open < 0) {
        return false;
      }
    }
    return open == 0;
  }

  /// Checks Quark's settings for codes. NVFP4 is the only format of Quark that is known here.
  void check_quark(const Json& entry, const std::string& below) {
    const Json* whole = object(entry, "global_quant_config", below);
    if (whole == nullptr || !has_nvfp4_ || !whole->contains("weight")) return;
    const Json& weights = (*whole)["weight"];
    const Json& codes = weights.is_array() && !weights.empty() ? weights[0] : weights;
    if (!codes.is_object()) return;
    const std::string place = below + "global_quant_config.weight";
    if (codes.contains("dtype") && codes["dtype"] != "fp4") say(place + ".dtype", "fp4", codes["dtype"]);
    if (codes.contains("group_size") && codes["group_size"] != 16)
      say(place + ".group_size", "16", codes["group_size"]);
  }
  void say(const std::string& place, const char* expected, const Json& found) {
    reporter_.add("config-format", {file_, place}, "expected {} (as the stored codes), found {}", expected,
                  quoted_setting(found));
  }

  const std::string file_;
  const bool has_nvfp4_;
  LintReporter& reporter_;
};

}  // namespace

void lint_config_types(const LintInput& s, LintReporter& reporter) {
  if (s.quantization != s.hf_quant_config)
    ConfigTypes(s.quantization_file, !s.modules.empty(), reporter).check(s.quantization, s.quantization_key);
  const Json& nested = member(s.hf_quant_config, "quantization");
  const bool is_empty = s.hf_quant_config.is_object() && s.layout.empty() && !nested.is_object();
  if (is_empty) {
    reporter.add("bad-config", {"hf_quant_config.json", "quantization"},
                 "expected an object with the algorithm, found none");
  }
  ConfigTypes own("hf_quant_config.json", false, reporter);
  own.check(s.hf_quant_config, "");
  own.check(nested, "quantization");
}

}  // namespace twofour
