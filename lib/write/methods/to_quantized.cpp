#include <fmt/format.h>

#include "lib/write/encode/encode_rules.h"
#include "lib/write/encode/quantize_select.h"
#include "lib/write/methods/method_list.h"
#include "lib/write/methods/quantize_groups.h"

namespace twofour {
namespace {

/// Quantizes linears to NVFP4, FP8 or a format of kMxFormats.
class Quantize : public Method {
 public:
  using Complete = EncodeRule (*)(Rule& rule);
  /// `is_default` is true if the user named no dialect.
  Quantize(Complete complete, bool is_default) : complete_(complete), is_default_(is_default) {}

  void plan(Rule& rule, Planner& planner) const override {
    const Rule asked = rule;
    EncodeRule encode = complete_(rule);
    const OutputDialect* own = source_dialect(planner.source);
    const auto use_own = [&] {
      rule = asked;
      rule.dialect = own->name;
      encode = complete_(rule);
    };
    // The other modules keep their names and shapes if their dialect can store the new format, too.
    const bool may = is_default_ && own != nullptr && own != encode.dialect &&
                     (encode.is_nvfp4() ? !own->entry(encode.scheme).is_null() : holds(*own, encode.scheme));
    if (may && (own->name == "deepseek-v4" || leaves_quantized(rule, encode, planner))) use_own();
    if (encode.is_tiled() && asked.scale_dtype.empty() && wants_powers(rule, encode, planner)) {
      rule.scale_dtype = DType::kF8E8M0;
      encode = complete_(rule);
    }
    plan_quantized_groups(encode, rule, planner);
  }
  std::string file_format(const Rule& rule) const override {
    return rule.to == "quantize" ? "nvfp4" : rule.to;
  }
  std::string summary(const Rule& rule) const override {
    for (const WeightFormat format : kMxFormats) {
      if (rule.to == format->to) return fmt::format("{} ({})", format->name, rule.dialect);
    }
    if (rule.to == "fp8") {
      const std::string size = rule.block == rule.block.or_default() || rule.block.empty()
                                   ? ""
                                   : fmt::format(" of {}", rule.block.text());
      return fmt::format("FP8 ({}, a scale per {}{})", rule.dialect, rule.granularity.text(), size);
    }
    return fmt::format("{}{}NVFP4 ({})", rule.pattern.text(), rule.pattern.empty() ? "" : " ", rule.dialect);
  }

 private:
  /// Returns for each linear true if the rule quantizes it.
  static std::vector<bool> chosen_linears(const Rule& rule, const EncodeRule& encode, Planner& planner) {
    const std::vector<Linear>& all = planner.linears();
    Findings findings;
    Problems problems;
    std::vector<bool> chosen(all.size());
    for (const size_t i : select_encoded(planner.source, all, rule.selection, encode, findings, problems))
      chosen[i] = true;
    return chosen;
  }

  /// True if loaders require scales that are powers of two. They do if the rule leaves experts in four bits.
  static bool wants_powers(const Rule& rule, const EncodeRule& encode, Planner& planner) {
    if (encode.dialect->fp8_scale_type == nullptr) return false;
    const std::vector<Linear>& all = planner.linears();
    const std::vector<bool> chosen = chosen_linears(rule, encode, planner);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto name = parse_module_name(all[i].name);
      if (chosen[i] && name && name->kind == BlockKind::kRoutedExperts) return false;
    }
    return planner.fp8_scale_type(*encode.dialect) != DType::kF32;
  }

  /// True if the rule leaves other quantized linears unchanged.
  static bool leaves_quantized(const Rule& rule, const EncodeRule& encode, Planner& planner) {
    const std::vector<Linear>& all = planner.linears();
    const std::vector<bool> chosen = chosen_linears(rule, encode, planner);
    for (size_t i = 0; i < all.size(); ++i) {
      if (!chosen[i] && all[i].format->coded && !planner.is_taken(all[i].weight)) return true;
    }
    return false;
  }

  Complete complete_;
  bool is_default_;
};

std::unique_ptr<Method> make_encoding(const Rule& rule, EncodeRule (*complete)(Rule& rule)) {
  Rule completed = rule;
  complete(completed);  // this throws Error on invalid settings
  return std::make_unique<Quantize>(complete, rule.dialect.empty());
}

}  // namespace

std::unique_ptr<Method> make_to_fp8(Rule& rule) { return make_encoding(rule, fp8_rule); }
std::unique_ptr<Method> make_to_mx(Rule& rule) { return make_encoding(rule, mx_rule); }
std::unique_ptr<Method> make_quantize(Rule& rule) { return make_encoding(rule, nvfp4_rule); }

}  // namespace twofour
