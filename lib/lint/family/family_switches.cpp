#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lib/lint/bytes/checks.h"
#include "lib/lint/family/family_checks.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

class SwitchLint : public FamilyLint {
 public:
  using FamilyLint::FamilyLint;

  void run() {
    for (const std::string& key : family_switches(there_.rows())) check_switch(key);
  }

 private:
  void check_switch(const std::string& key) {
    if (sizes_.is_list(key)) return;
    const bool on = sizes_.number(key).value_or(0) != 0;
    size_t there = 0, lacking = 0;
    std::optional<size_t> first;
    std::string lacks;
    for (size_t i = 0; i < there_.rows().size(); ++i) {
      const FamilyRow& row = there_.rows()[i];
      if (!has_term(row.when, key) || has_term(row.when, "may") ||
          (row.kind == ParameterKind::kLinear && !s_.layout.empty()))
        continue;
      std::string others;
      for_each_term(row.when, [&](std::string_view term) {
        if (term != key) others += (others.empty() ? "" : " ") + std::string(term);
      });
      for (const int64_t layer : there_.layers_of(row)) {
        if (!sizes_.holds(others, layer) || there_.is_replaced(i, layer)) continue;
        if (!on && there_.count(i, layer) > 0 && is_zero_bias(s_, there_.first(i, layer))) continue;
        if (there_.count(i, layer) == 0) {
          if (lacking++ == 0) lacks = there_.name_in_layer(row, layer);
        } else if (there++ == 0) {
          first = there_.first(i, layer);
        }
      }
    }
    if (on ? there > 0 || lacking == 0 : there == 0 || lacking > there) return;
    const Json* configured = sizes_.stated(key);
    const std::string found = configured == nullptr ? fmt::format("none, which says {}", on ? "yes" : "no")
                                                    : quoted_setting(*configured);
    sizes_.set(key, on ? 0 : 1);
    if (!x_.is_own_class) return;
    x_.blamed.insert(key);
    const bool is_count =
        sizes_.stated(key) != nullptr ? !sizes_.stated(key)->is_boolean() : !is_yes_or_no(key);
    reporter_.add("config-switch", {"config.json", key},
                  on ? fmt::format("expected {}, because there is no {}, found {}",
                                   is_count ? "0 or null" : "false", lacks, found)
                     : fmt::format("expected {}, because there is {}, found {}",
                                   is_count ? "a count" : "true", s_.tensors[*first].name, found),
                  LintFacts{.value = is_count ? (on ? "0" : "")
                                     : on     ? "false"
                                              : "true"});
  }
  static bool is_yes_or_no(const std::string& key) {
    return key.find("bias") != key.npos || key.starts_with("use_") || key.starts_with("enable_");
  }
};

}  // namespace

bool is_zero_bias(const LintInput& s, size_t tensor) {
  if (!s.tensors[tensor].name.ends_with(".bias")) return false;
  const std::vector<float> numbers = read_scales(s, tensor);
  return !numbers.empty() && std::ranges::all_of(numbers, [](float x) { return x == 0; });
}

void lint_family_switches(FamilySubject& subject, LintReporter& reporter) {
  SwitchLint(subject, reporter).run();
}

}  // namespace twofour
