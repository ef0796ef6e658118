#include <fmt/format.h>

#include "lib/lint/config/checks.h"

namespace twofour {
namespace {

/// Types within a quantization config that readers take for granted.
class ConfigTypes {
 public:
  ConfigTypes(std::string file, LintReporter& reporter) : file_(std::move(file)), reporter_(reporter) {}

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
    list(entry, "ignore", below);
    list(entry, "exclude_modules", below);
  }

 private:
  void add(const std::string& place, const char* expected, const Json& found) {
    reporter_.add("bad-config", file_, place,
                  fmt::format("expected {}, found {}", expected, found.type_name()));
  }
  /// A value that may be absent or null; nullptr where it is, or is no object.
  const Json* object(const Json& owner, const char* key, const std::string& below) {
    if (!owner.contains(key) || owner[key].is_null()) return nullptr;
    if (owner[key].is_object()) return &owner[key];
    add(below + key, "an object", owner[key]);
    return nullptr;
  }
  void list(const Json& owner, const char* key, const std::string& below) {
    if (!owner.contains(key) || owner[key].is_null()) return;
    if (!owner[key].is_array()) return add(below + key, "a list of names and patterns", owner[key]);
    for (const Json& item : owner[key]) {
      if (!item.is_string()) return add(below + key, "a list of names and patterns alone", item);
    }
  }

  const std::string file_;
  LintReporter& reporter_;
};

}  // namespace

void lint_config_types(const LintInput& s, LintReporter& reporter) {
  if (s.quantization != s.hf_quant_config)
    ConfigTypes(s.quantization_file, reporter).check(s.quantization, s.quantization_key);
  const bool is_empty =
      s.hf_quant_config.is_object() && s.layout.empty() &&
      !(s.hf_quant_config.contains("quantization") && s.hf_quant_config["quantization"].is_object());
  if (is_empty) {
    reporter.add("bad-config", "hf_quant_config.json", "quantization",
                 "expected an object with the algorithm, found none");
  }
  ConfigTypes own("hf_quant_config.json", reporter);
  own.check(s.hf_quant_config, "");
  if (s.hf_quant_config.is_object() && s.hf_quant_config.contains("quantization"))
    own.check(s.hf_quant_config["quantization"], "quantization");
}

}  // namespace twofour
