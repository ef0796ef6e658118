#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>

#include "formats/families/family.h"
#include "formats/families/sizes.h"
#include "lib/lint/settings/checks.h"
#include "lib/source/config/model_config.h"

// Checks of rotary embeddings: the kind of their scaling, and the settings that this kind needs. Source:
// transformers 5.17, modeling_rope_utils.py; vLLM, rotary_embedding/__init__.py.

namespace twofour {
namespace {

class Rope : public SettingLint {
 public:
  using SettingLint::SettingLint;

  void run() {
    check_theta();
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      const Json* rope = configured(key);
      if (rope == nullptr) continue;
      if (!rope->is_object()) {
        odd(key, "an object or null", *rope);
        continue;
      }
      check(key, *rope);
      for (const auto& [name, value] : rope->items()) {
        if (value.is_object()) check(fmt::format("{}.{}", key, name), value);
      }
    }
  }

 private:
  /// Reports a base that is missing though the model has more positions than those for which the default of
  /// its class was made. Source: transformers 5.17, the configuration_*.py of these classes.
  void check_theta() {
    constexpr int64_t kMostPositions = 16384;
    const FamilyTraits* traits = model_ ? find_family_traits(model_->model_type) : nullptr;
    if (traits == nullptr || !traits->states_theta) return;
    const Json &scaling = member(*config_, "rope_scaling"), &parameters = member(*config_, "rope_parameters");
    const bool llama3 =
        member(scaling, "rope_type") == "llama3" || member(parameters, "rope_type") == "llama3";
    const auto positions = integer_of(*config_, "max_position_embeddings");
    const bool many = positions && *positions > kMostPositions && !scaling.is_object();
    for (const Json* place : {config_, &scaling, &parameters}) {
      if (!member(*place, "rope_theta").is_null()) return;
    }
    for (const auto& [name, value] : members_of(parameters)) {
      if (!member(value, "rope_theta").is_null()) return;
    }
    if (!llama3 && !many) return;
    odd("rope_theta",
        llama3 ? "a base, because the kind of scaling llama3 is for models with one of their own"
               : "a base, because the default of 10000 is for fewer positions",
        nullptr);
  }

  static std::optional<double> number(const Json& rope, const char* key) {
    const Json& value = member(rope, key);
    return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
  }

  void check(const std::string& place, const Json& rope) {
    check_type(place, rope);
    for (const char* key : {"factor", "rope_theta", "beta_fast", "beta_slow", "low_freq_factor",
                            "high_freq_factor", "original_max_position_embeddings"}) {
      const auto at = rope.find(key);
      const bool absent = at == rope.end() || (at->is_null() && std::string_view(key) != "rope_theta");
      if (absent) continue;
      const auto value = number(rope, key);
      if (!value || !std::isfinite(*value) || *value <= 0)
        odd(fmt::format("{}.{}", place, key), "a number of more than 0", *at);
    }
    const auto low = number(rope, "low_freq_factor"), high = number(rope, "high_freq_factor");
    if (low && high && *low >= *high)
      odd(place + ".low_freq_factor", fmt::format("less than high_freq_factor, {}", *high),
          rope["low_freq_factor"]);
    const auto trained = number(rope, "original_max_position_embeddings");
    const auto most = number(*config_, "max_position_embeddings");
    constexpr double kFew = 2048;  // models that are made for tests keep the family's scaling
    if (trained && most && *most >= kFew && *trained > *most)
      odd(place + ".original_max_position_embeddings",
          fmt::format("at most max_position_embeddings, {}", *most),
          rope["original_max_position_embeddings"]);
    const Json& share = member(rope, "partial_rotary_factor");
    if (!share.is_null() && !share_of(rope))
      odd(place + ".partial_rotary_factor", "a number of more than 0, at most 1", share);
    check_lists(place, rope);
  }

  void check_type(const std::string& place, const Json& rope) {
    const char* key = rope.contains("rope_type") ? "rope_type" : "type";
    const Json& type = member(rope, key);
    if (type.is_null()) return;
    constexpr std::string_view kTypes[] = {
        "default", "linear",         "dynamic", "yarn",          "longrope",     "su",     "llama3",
        "mrope",   "mllama4",        "ntk",     "deepseek_yarn", "proportional", "xdrope", "dynamic_alpha",
        "none",    "telechat3-yarn", "axial"};
    const bool known =
        std::any_of(std::begin(kTypes), std::end(kTypes), [&](auto one) { return type == one; });
    if (!known) return odd(fmt::format("{}.{}", place, key), "a kind of scaling that loaders know", type);
    const auto need = [&](const char* part, const char* what = "a number of more than 0") {
      if (member(rope, part).is_null()) odd(fmt::format("{}.{}", place, part), what, nullptr);
    };
    if (type == "linear" || type == "yarn" || type == "llama3" || type == "deepseek_yarn") need("factor");
    if (type == "llama3") {
      need("low_freq_factor");
      need("high_freq_factor");
    }
    // vLLM reads it without a default. transformers writes it beside rope_scaling, too.
    if ((type == "yarn" || type == "deepseek_yarn" || type == "llama3") &&
        configured("original_max_position_embeddings") == nullptr)
      need("original_max_position_embeddings");
    const auto factor = number(rope, "factor");
    if (factor && *factor > 0 && *factor < 1 && type != "default")
      odd(place + ".factor", "a number of at least 1", rope["factor"]);
    if (type == "longrope" || type == "su") {
      need("short_factor", kFactors);
      need("long_factor", kFactors);
    }
  }

  /// Returns the share of a head's numbers that is rotated; nullopt: it is not a valid share.
  static std::optional<double> share_of(const Json& settings) {
    const auto share = number(settings, "partial_rotary_factor");
    return share && *share > 0 && *share <= 1 ? share : std::nullopt;
  }

  /// Returns the number of rotated pairs in a head; nullopt: the configuration does not state it.
  std::optional<size_t> turned_pairs(const Json& rope) const {
    std::optional<int64_t> dim;
    if (model_) {
      const FamilySizes sizes(*model_->family, *model_->config);
      if (sizes.stated("qk_rope_head_dim") == nullptr) dim = sizes.number("head_dim");
    } else if (configured("qk_rope_head_dim") == nullptr) {
      dim = integer_of(*config_, "head_dim");
      const auto width = integer_of(*config_, "hidden_size"),
                 heads = integer_of(*config_, "num_attention_heads");
      if (!dim && width && heads && *heads > 0) dim = *width / *heads;
    }
    if (!dim) return std::nullopt;
    const double share = share_of(rope).value_or(share_of(*config_).value_or(1));
    return static_cast<size_t>(static_cast<double>(*dim) * share / 2);
  }

  /// Checks that each list of factors has one factor for each rotated pair.
  void check_lists(const std::string& place, const Json& rope) {
    const auto length = [&](const char* key) -> std::optional<size_t> {
      const Json& list = member(rope, key);
      if (list.is_null()) return std::nullopt;
      const auto is_factor = [](const Json& v) {
        return v.is_number() && std::isfinite(v.get<double>()) && v.get<double>() > 0;
      };
      if (list.is_array() && std::ranges::all_of(list, is_factor)) return list.size();
      const Json& wrong = list.is_array() ? *std::ranges::find_if_not(list, is_factor) : list;
      odd(fmt::format("{}.{}", place, key), kFactors, wrong);
      return std::nullopt;
    };
    check_sections(place, rope);
    const auto first = length("short_factor"), second = length("long_factor");
    if (!first || !second) return;
    const size_t pairs = model_ ? turned_pairs(rope).value_or(*first) : *first;
    for (const auto& [key, count] : {std::pair{"short_factor", *first}, std::pair{"long_factor", *second}}) {
      if (count == pairs) continue;
      reporter_.add("odd-setting", {"config.json", fmt::format("{}.{}", place, key)},
                    "expected {} numbers, one for each rotated pair, found {}", pairs, count);
    }
  }

  /// Checks that the pairs for time, height and width are all pairs that are rotated. Interleaved ones may be
  /// more: those beyond the head are not used. Source: transformers 5.17, modeling_qwen2_5_vl.py,
  /// modeling_qwen3_vl.py.
  void check_sections(const std::string& place, const Json& rope) {
    const Json& sections = member(rope, "mrope_section");
    const auto pairs = turned_pairs(rope);
    if (!sections.is_array() || !pairs) return;
    size_t sum = 0;
    for (const Json& one : sections) {
      if (!one.is_number_unsigned()) return odd(place + ".mrope_section", "a list of numbers of pairs", one);
      sum += one.get<size_t>();
    }
    const bool interleaves = member(rope, "mrope_interleaved") == true;
    if (sum == *pairs || (interleaves && sum > *pairs)) return;
    reporter_.add("impossible-setting", {"config.json", place + ".mrope_section"},
                  "expected {} pairs in all, half of a head's rotated numbers, found {}", *pairs, sum);
  }

  static constexpr const char* kFactors = "a list of numbers of more than 0";
};

}  // namespace

void lint_rope(const LintInput& s, LintReporter& reporter) { Rope(s, reporter).run(); }

}  // namespace twofour
