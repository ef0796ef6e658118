#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "formats/json/access.h"
#include "lib/base/names/config_pattern.h"
#include "lib/lint/config/promises.h"

// Checks of the keys of GPTQ and AWQ.

namespace twofour {
namespace {

class IntegerLint : public PromiseCheck {
 public:
  using PromiseCheck::PromiseCheck;

  void run() {
    if (p_.method == QuantMethod::kGptq) check_dynamic();
    check_keys();
    report_votes();
  }

 private:
  /// Checks the exceptions of GPTQModel. "-:PATTERN" is for modules in floats. "+:PATTERN" or a bare pattern
  /// is for modules with other keys.
  void check_dynamic() {
    for (const auto& [text, keys] : members_of(*p_.settings, "dynamic")) {
      const bool floats = text.starts_with("-:");
      const ConfigPattern pattern("re:" + (floats || text.starts_with("+:") ? text.substr(2) : text));
      const Json& bits = member(keys, "bits");
      const auto wrong = std::find_if(modules_.begin(), modules_.end(), [&](const CodedModule& m) {
        if (m.suffix != ".qweight" || !pattern.matches(m.name)) return false;
        return floats || (bits.is_number_integer() && m.bits > 0 && bits != m.bits);
      });
      if (wrong == modules_.end()) continue;
      add(key("dynamic.") + text, "expected {} (as in {}), found {}",
          floats ? "no such rule" : fmt::format("{} bits", wrong->bits), wrong->name,
          floats ? "one for floats" : shown_setting(bits));
    }
  }

  void check_keys() {
    const auto number = [&](const char* name, const char* other) -> std::optional<int64_t> {
      const auto first = integer_of(*p_.settings, name);
      return first ? first : integer_of(*p_.settings, other);
    };
    const auto bits = number("bits", "w_bit"), group = number("group_size", "q_group_size");
    const bool ordered = member(*p_.settings, "desc_act") == true;
    if (member(*p_.settings, "lm_head") == true && s_.find("lm_head.weight") && !s_.find("lm_head.qweight"))
      add(key("lm_head"), "expected false, because lm_head.weight is not quantized, found true");
    for (size_t i = 0; i < modules_.size(); ++i) {
      const CodedModule& m = modules_[i];
      if (m.suffix != ".qweight") continue;
      if (m.bits > 0 && bits) {
        votes_.add(key("bits"), i, m.bits == *bits ? "" : fmt::format("{}", m.bits),
                   fmt::format("{}", *bits));
      }
      if (m.k > 0 && m.scales_k > 0 && group && m.k % m.scales_k == 0) {
        const int64_t size = m.k / m.scales_k;
        const bool fits = *group > 0 ? divides_into(m.k, *group, m.scales_k) : m.scales_k == 1;
        votes_.add(key("group_size"), i, fits ? "" : fmt::format("{}", size), fmt::format("{}", *group));
      }
      if (!bits) votes_.add(key("bits"), i, fmt::format("{}", m.bits > 0 ? m.bits : 4), "none");
      if (!group) votes_.add(key("group_size"), i, "the weights of a scale", "none");
      const bool says_none = p_.method == QuantMethod::kAwq && member(*p_.settings, "zero_point") == false;
      votes_.add(key("zero_point"), i, says_none && m.has_zero_points ? "true, with qzeros," : "", "false");
      if (p_.method == QuantMethod::kGptq && ordered)
        votes_.add(key("desc_act"), i, m.has_order ? "" : "false, without a g_idx,", "true");
    }
  }
};

}  // namespace

void lint_integers(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                   std::set<std::string>& reported, LintReporter& reporter) {
  IntegerLint(input, promises, modules, reported, reporter).run();
}

}  // namespace twofour
