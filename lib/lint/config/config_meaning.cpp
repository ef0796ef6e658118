#include <fmt/format.h>

#include <algorithm>

#include "formats/json/access.h"
#include "formats/module_names.h"
#include "formats/module_roles.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/names/config_pattern.h"
#include "lib/lint/config/checks.h"
#include "lib/lint/config/promises.h"
#include "lib/source/config/model_config.h"

// Checks of settings that change the meaning of codes, where only the config or only the tensors have them.
// Also checks for weights in floats if a method without lists promises codes.

namespace twofour {
namespace {

class MeaningLint : public PromiseCheck {
 public:
  using PromiseCheck::PromiseCheck;

  void run() {
    check_sparsity();
    check_zero_points();
    check_outputs();
    check_floats();
    check_routers();
    check_listed();
  }

 private:
  void check_sparsity() {
    const Json& sparsity = member(*p_.settings, "sparsity_config");
    const std::string format = text_of(sparsity, "format");
    const bool is_configured = !format.empty() && format != "dense";
    const auto mask = std::find_if(s_.tensors.begin(), s_.tensors.end(),
                                   [](const TensorInfo& t) { return t.name.ends_with(".bitmask"); });
    const bool is_stored = mask != s_.tensors.end();
    if (is_configured == is_stored) return;
    reporter_.add("config-format", s_.setting(key("sparsity_config.format")),
                  is_configured ? fmt::format("expected dense, because there are no bitmasks, found {}",
                                              json_quote_short(format))
                                : fmt::format("expected the format that {} belongs to, found {}", mask->name,
                                              format.empty() ? "none" : json_quote_short(format)));
  }

  /// Reports entries of ModelOpt that promise zero points which do not exist.
  void check_zero_points() {
    std::set<const Json*> seen;
    for (size_t i = 0; i < modules_.size(); ++i) {
      const Json* entry = p_.of[i].entry;
      if (entry == nullptr || p_.method != QuantMethod::kModelOpt || !seen.insert(entry).second) continue;
      if (member(*entry, "has_zero_point") != true || modules_[i].has_zero_points) continue;
      reporter_.add("config-format", s_.setting(p_.of[i].place),
                    "expected has_zero_point: false, because {} has none, found true", modules_[i].name);
      return;
    }
  }

  void check_outputs() {
    if (p_.method != QuantMethod::kGroups) return;
    std::set<const Json*> seen;
    for (size_t i = 0; i < modules_.size(); ++i) {
      const Json* group = p_.of[i].entry;
      if (group == nullptr || !seen.insert(group).second) continue;
      const Json& outputs = member(*group, "output_activations");
      if (!outputs.is_object() || s_.find(modules_[i].name + ".output_scale")) continue;
      reporter_.add("config-inputs", s_.setting(p_.of[i].place + ".output_activations"),
                    "expected null, because {} has no output_scale, found {}", modules_[i].name,
                    shown_setting(outputs));
    }
  }

  bool is_listed(const std::string& name) const {
    std::map<std::string, std::string> texts;
    for (const char* list : {"modules_to_not_convert", "ignored_layers", "ignore"}) {
      for (std::string& text : strings_of(*p_.settings, list)) texts.emplace(std::move(text), list);
    }
    return std::any_of(texts.begin(), texts.end(), [&](const auto& text) {
      if (is_wild(text.first)) {
        const ConfigPattern pattern(text.first);
        return pattern.matches(name) || pattern.matches(module_of(name));
      }
      return name.find(text.first) != name.npos;
    });
  }

  /// Reports codes of modules for which the config promises floats.
  void check_listed() {
    if (p_.method != QuantMethod::kGptq && p_.method != QuantMethod::kAwq) return;
    for (const CodedModule& m : modules_) {
      if (!is_listed(m.name)) continue;
      reporter_.add("config-dtype", s_.at(m.tensor, m.name),
                    "expected floats (the config's list of unquantized modules), found {}", m.text());
    }
  }

  /// Reports floats among codes if readers of the method require codes for every linear of that kind.
  void check_floats() {
    const bool integers = p_.method == QuantMethod::kGptq || p_.method == QuantMethod::kAwq;
    if (!integers && p_.method != QuantMethod::kMxfp4) return;
    if (!member(*p_.settings, "dynamic").is_null()) return;  // GPTQModel may have exceptions
    std::set<std::string> coded;
    for (const CodedModule& m : modules_) coded.insert(without_digits(m.name));
    for (size_t i = 0; i < s_.tensors.size(); ++i) {
      const TensorInfo& t = s_.tensors[i];
      if (!is_float(t.dtype) || t.shape.size() < 2) continue;
      const bool is_weight = t.name.ends_with(".weight");
      const std::string name = is_weight ? t.name.substr(0, t.name.size() - 7) : t.name;
      const bool is_stack = !integers && t.shape.size() == 3 && name.find("experts.") != name.npos;
      const bool is_linear = integers && is_weight && coded.contains(without_digits(name));
      if ((!is_stack && !is_linear) || is_listed(name)) continue;
      reporter_.add("config-dtype", s_.at(i, name), "expected codes ({}quant_method: {}), found {}", p_.place,
                    p_.method_text, describe(t));
    }
  }

  /// Reports routers in floats that the list of AWQ does not have. Loaders create codes for every linear that
  /// is not listed. Source: transformers, integrations/awq.py.
  void check_routers() {
    if (p_.method != QuantMethod::kAwq) return;
    std::optional<size_t> first;
    size_t count = 0;
    for (size_t i = 0; i < s_.tensors.size(); ++i) {
      const TensorInfo& t = s_.tensors[i];
      if (!is_float(t.dtype) || t.shape.size() != 2 || !t.name.ends_with(".weight")) continue;
      const std::string name(module_of(t.name));
      if (!is_router(name) || is_own_router(s_, name) || is_listed(name)) continue;
      if (count++ == 0) first = i;
    }
    if (!first) return;
    const std::string list = p_.place + "modules_to_not_convert";
    reporter_.add("unquantized-not-ignored", s_.setting(list), "expected an entry for {}{}, found none",
                  s_.tensors[*first].name, and_more(count, " and {} more routers in floats"));
  }
};

}  // namespace

void lint_meaning(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                  std::set<std::string>& reported, LintReporter& reporter) {
  MeaningLint(input, promises, modules, reported, reporter).run();
}

}  // namespace twofour
