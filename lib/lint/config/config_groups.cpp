#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/json/access.h"
#include "lib/base/findings/and_more.h"
#include "lib/lint/config/promises.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

/// The values that a group's keys must have for a module.
struct GroupKeys {
  int64_t bits = 0;  ///< 0: the headers do not show it
  const char* type = "float";
  std::string strategy{};   ///< alternatives separated by |; empty: any
  int64_t group = 0;        ///< 0: any group size fits
  const char* format = "";  ///< alternatives separated by |
};

GroupKeys keys_of(const CodedModule& m) {
  const WeightFormatRow& row = *m.format.operator->();
  if (row.group > 0) return {row.bits, "float", row.strategy, row.group, row.packed_as};
  if (row.integers && m.suffix == ".weight")
    return {8, "int", m.scales_n == 1 ? "tensor" : "channel", 0, "int-quantized|naive-quantized"};
  if (row.integers) return {0, "int", m.scales_k == 1 ? "" : "group", 0, "pack-quantized"};
  GroupKeys keys{8, "float", "", 0, "float-quantized|naive-quantized"};
  const bool one = m.scales_n == 1 && m.scales_k == 1;
  if (one) {
    keys.strategy = "tensor";
    if (m.n == 1) keys.strategy += "|channel";
    if (m.n <= kFp8Block && m.k <= kFp8Block) keys.strategy += "|block";
  } else if (m.scales_n == m.n && m.scales_k == 1) {
    keys.strategy = m.k <= kFp8Block ? "channel|block" : "channel";
  } else if (m.scales_n > 0) {
    keys.strategy = "block";
  }
  return keys;
}

bool is_one_of(std::string_view text, std::string_view alternatives) {
  while (!alternatives.empty()) {
    const size_t end = std::min(alternatives.find('|'), alternatives.size());
    if (text == alternatives.substr(0, end)) return true;
    alternatives.remove_prefix(std::min(end + 1, alternatives.size()));
  }
  return false;
}
std::string first_of(std::string_view alternatives) {
  return std::string(alternatives.substr(0, alternatives.find('|')));
}

int64_t number_of(const Json& json, const char* key, int64_t instead) {
  const Json& value = member(json, key);
  if (value.is_number_integer()) return value.get<int64_t>();
  // Readers also accept 4.0 for 4.
  const bool is_whole = value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>() &&
                        std::fabs(value.get<double>()) < 0x1p53;
  return is_whole ? static_cast<int64_t>(value.get<double>()) : instead;
}

/// Returns the strategy. If a config states none, compressed-tensors derives it from the group size.
std::string strategy_of(const Json& arguments) {
  std::string configured = text_of(arguments, "strategy");
  if (!configured.empty()) return configured;
  const int64_t size = number_of(arguments, "group_size", 0);
  return size > 0 ? "group" : size == -1 ? "channel" : "tensor";
}

/// Checks of the groups of compressed-tensors. Source of defaults: compressed-tensors,
/// quantization/quant_args.py. Source of the engines' schemes: vLLM,
/// compressed_tensors/compressed_tensors.py.
class GroupLint : public PromiseCheck {
 public:
  using PromiseCheck::PromiseCheck;

  void run() {
    for (size_t i = 0; i < modules_.size(); ++i) {
      const Promise& promise = p_.of[i];
      if (promise.entry == nullptr) continue;
      check_weights(i, promise);
      check_inputs(i, promise);
    }
    check_formats();
    check_status();
    check_targets();
    std::set<std::string> wrong;
    votes_.for_wrong([&](const std::string& key, const std::string& expected, const std::string& found,
                         size_t first, size_t count) {
      const bool of_inputs = key.find(".input_activations") != key.npos;
      const bool of_groups = key.ends_with(".group_size") || key.ends_with(".block_structure");
      // Another check reports the group size of NVFP4.
      const bool of_nvfp4 = modules_[first].format->global_scale && found != "none";
      if (key.ends_with(".weights.group_size") && of_nvfp4) return;
      reporter_.add(of_inputs   ? "config-inputs"
                    : of_groups ? "config-group-size"
                                : "config-format",
                    s_.setting(key), "expected {} (as in {} ({}){}), found {}", expected,
                    modules_[first].name, modules_[first].text(), and_more(count, " and {} more"), found);
      wrong.insert(key);
    });
    for (size_t i = 0; i < modules_.size(); ++i) {
      const auto at = wrong.lower_bound(p_.of[i].place + ".");
      const bool of_group = p_.of[i].entry != nullptr && at != wrong.end() &&
                            at->starts_with(p_.of[i].place + ".") && at->find(".input_") == at->npos;
      if (of_group || wrong.contains(p_.place + "format")) reported_.insert(modules_[i].name);
    }
  }

 private:
  /// The keys of a group's weights that fit a module.
  struct Fits {
    bool bits, type, strategy, size;
    int misses() const { return !bits + !type + !strategy + !size; }
  };
  static Fits fits_of(const GroupKeys& keys, const Json& weights) {
    const int64_t bits = number_of(weights, "num_bits", 8);
    return {keys.bits == 0 ? bits > 0 && bits <= 8 : bits == keys.bits, type_of(weights) == keys.type,
            keys.strategy.empty() || is_one_of(strategy_of(weights), keys.strategy),
            keys.group == 0 || number_of(weights, "group_size", 0) == keys.group};
  }
  static std::string type_of(const Json& weights) {
    const std::string configured = text_of(weights, "type");
    return configured.empty() ? "int" : configured;
  }

  void check_weights(size_t i, const Promise& promise) {
    const CodedModule& m = modules_[i];
    const Json& weights = member(*promise.entry, "weights");
    const std::string place = promise.place + ".weights";
    if (!weights.is_object()) {
      votes_.add(place, i, "the type of its weights", shown_setting(weights));
      return;
    }
    const GroupKeys keys = keys_of(m);
    const Fits fits = fits_of(keys, weights);
    // If the whole format differs, the targets or the module are wrong. Lookups report this.
    const bool is_other = fits.misses() > 1 && configured_scheme(*promise.entry) != schemes::kOther;
    const auto vote = [&](const char* key, bool same, const std::string& expected) {
      votes_.add(fmt::format("{}.{}", place, key), i, is_other || same ? "" : expected,
                 shown_setting(member(weights, key)));
    };
    vote("num_bits", fits.bits, fmt::format("{}", keys.bits == 0 ? 4 : keys.bits));
    vote("type", fits.type, keys.type);
    vote("strategy", fits.strategy, first_of(keys.strategy));
    // The group size of other formats is known only from their scales.
    if (keys.group != 0) vote("group_size", fits.size, fmt::format("{}", keys.group));
    if (is_other) return;
    check_sizes(i, m, weights, place);
    check_meaning(i, m, weights, place);
  }

  void check_sizes(size_t i, const CodedModule& m, const Json& weights, const std::string& place) {
    const int64_t bits = number_of(weights, "num_bits", 8), size = number_of(weights, "group_size", 0);
    if (m.is_fp8() && strategy_of(weights) == "block" && m.scales_n > 0) {
      const Json& block = member(weights, "block_structure");
      const auto sizes = pair_of(block);
      const bool same = sizes && divides_into(m.n, sizes->first, m.scales_n) &&
                        divides_into(m.k, sizes->second, m.scales_k);
      votes_.add(place + ".block_structure", i,
                 same ? ""
                      : fmt::format("blocks that divide [{2}, {3}] into {0} x {1}", m.scales_n, m.scales_k,
                                    m.n, m.k),
                 shown_setting(block));
    }
    // A word holds codes along K with the stated number of bits. The last word may be partial.
    const bool in_groups = m.scales_k > 1 || (m.scales_k == 1 && strategy_of(weights) == "group");
    if (m.format->integers && m.words > 0 && bits > 0 && bits <= 32 && in_groups && size > 0) {
      const int64_t most = m.words * 32 / bits, groups = (most - 1) / size + 1;
      votes_.add(place + ".group_size", i,
                 groups == m.scales_k ? ""
                                      : fmt::format("{} at {} bits, of which {} groups make up a row",
                                                    most / m.scales_k, bits, m.scales_k),
                 shown_setting(member(weights, "group_size")));
    }
  }

  /// Checks keys that change the meaning of codes.
  void check_meaning(size_t i, const CodedModule& m, const Json& weights, const std::string& place) {
    const Json& symmetric = member(weights, "symmetric");
    const bool is_symmetric = !symmetric.is_boolean() || symmetric.get<bool>();
    votes_.add(place + ".symmetric", i,
               is_symmetric != m.has_zero_points ? ""
               : m.has_zero_points               ? "false, with zero points,"
                                                 : "true, without zero points,",
               shown_setting(symmetric));
    const Json& dynamic = member(weights, "dynamic");
    votes_.add(place + ".dynamic", i, dynamic.is_null() || dynamic == false ? "" : "false",
               shown_setting(dynamic));
    const Json& order = member(weights, "actorder");
    const bool by_group = order == "group" || order == "dynamic" || order == true;
    votes_.add(place + ".actorder", i, by_group && !m.has_order ? "none, without weight_g_idx," : "",
               shown_setting(order));
    const std::string scale = text_of(weights, "scale_dtype");
    const bool mx = m.format->group == kMxGroup && !m.format->global_scale;
    const bool of_mx = scale.find("uint8") != scale.npos || scale.find("e8m0") != scale.npos;
    const bool fits = scale.empty() ||
                      (mx ? of_mx : !of_mx && (!m.format->global_scale || scale.find("e4m3") != scale.npos));
    votes_.add(place + ".scale_dtype", i,
               fits ? ""
               : mx ? "torch.uint8"
                    : "torch.float8_e4m3fn",
               shown_setting(member(weights, "scale_dtype")));
  }

  /// Checks that engines have a scheme for this combination of inputs and weights.
  void check_inputs(size_t i, const Promise& promise) {
    const CodedModule& m = modules_[i];
    const Json& inputs = member(*promise.entry, "input_activations");
    if (!inputs.is_object()) return;
    const std::string place = promise.place + ".input_activations";
    const int64_t bits = number_of(inputs, "num_bits", 8), size = number_of(inputs, "group_size", 0);
    const auto vote = [&](const char* key, bool fits, std::string expected) {
      votes_.add(place + "." + key, i, fits ? "" : std::move(expected), shown_setting(member(inputs, key)));
    };
    const bool fp4 = m.format->global_scale, integers = m.format->integers;
    vote("num_bits", bits == (fp4 ? 4 : 8) || (m.is_mxfp4() && bits == 4), fp4 ? "4" : "8");
    if (!integers) vote("type", type_of(inputs) == "float", "float");
    if (fp4) {
      vote("strategy", strategy_of(inputs) == "tensor_group", "tensor_group");
      vote("group_size", size == 16, "16");
    }
    const Json& dynamic = member(inputs, "dynamic");
    if (!dynamic.is_null() && !dynamic.is_boolean() && dynamic != "local") {
      vote("dynamic", false, "true, false or local");
      return;
    }
    if (fp4) vote("dynamic", dynamic != true, "local");
    if (m.is_fp8()) {
      const std::string strategy = strategy_of(inputs);
      const bool is_dynamic = dynamic == true;
      const bool known = is_one_of(strategy, "token|tensor|group|channel");
      vote("strategy", is_dynamic ? known : strategy == "tensor",
           is_dynamic ? "token" : "tensor, as scales are stored,");
      vote("dynamic", is_dynamic || strategy == "tensor" || strategy == "tensor_group", "true");
    }
    const Json& symmetric = member(inputs, "symmetric");
    if (!integers) vote("symmetric", !symmetric.is_boolean() || symmetric.get<bool>(), "true");
  }

  /// Checks "format" of the config and of each group.
  void check_formats() {
    const std::string whole = text_of(*p_.settings, "format");
    std::set<std::string> stated;
    for (const Json& group : p_.groups()) {
      if (const std::string own = text_of(group, "format"); !own.empty()) stated.insert(own);
    }
    const std::string key = this->key("format");
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (p_.of[i].entry == nullptr) continue;
      const std::string wanted = keys_of(modules_[i]).format, own = text_of(*p_.of[i].entry, "format");
      const std::string& configured = own.empty() ? whole : own;
      const bool no_vote = is_one_of(configured, wanted) || is_whole_other(i);
      const Json& holder = own.empty() ? *p_.settings : *p_.of[i].entry;
      votes_.add(own.empty() ? key : p_.of[i].place + ".format", i, no_vote ? "" : first_of(wanted),
                 shown_setting(member(holder, "format")));
    }
    // If groups state formats, the config's format must be one of these.
    if (stated.empty() || whole == "mixed-precision" || stated.contains(whole)) return;
    reporter_.add("config-format", s_.setting(key), "expected {} (groups), found {}",
                  stated.size() > 1 ? "mixed-precision" : *stated.begin(),
                  shown_setting(member(*p_.settings, "format")));
  }
  /// True if the whole format of a module differs from its group, so that single keys are not the fault.
  bool is_whole_other(size_t i) const {
    const GroupKeys keys = keys_of(modules_[i]);
    const Json& weights = member(*p_.of[i].entry, "weights");
    const int differ = (keys.bits != 0 && number_of(weights, "num_bits", 8) != keys.bits) +
                       (text_of(weights, "type") != keys.type) +
                       (!keys.strategy.empty() && !is_one_of(strategy_of(weights), keys.strategy));
    return differ > 1 && configured_scheme(*p_.of[i].entry) != schemes::kOther;
  }

  /// Reports codes that no group targets. NVFP4 and FP8 are left out, since the engines' lookups cover them.
  void check_targets() {
    size_t count = 0, first = 0;
    for (size_t i = 0; i < modules_.size(); ++i) {
      const bool is_covered_by_lookups = modules_[i].format->global_scale || modules_[i].is_fp8();
      if (p_.of[i].entry != nullptr || is_covered_by_lookups || modules_[i].is_stack) continue;
      if (count++ == 0) first = i;
    }
    if (count == 0) return;
    reporter_.add("config-dtype", s_.at(modules_[first].tensor, modules_[first].name),
                  "expected a group of the config that targets it, because it is in {}, found none{}",
                  modules_[first].text(), and_more(count, ", nor for {} more"));
  }

  /// Checks the status. If it is not "compressed", loaders of transformers treat the weights as not quantized
  /// yet.
  void check_status() {
    const Json& status = member(*p_.settings, "quantization_status");
    if (status.is_null() || status == "compressed" || modules_.empty()) return;
    reporter_.add("config-format", s_.setting(p_.place + "quantization_status"),
                  "expected compressed (as {}), found {}", modules_[0].name, shown_setting(status));
  }
};

}  // namespace

void lint_groups(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                 std::set<std::string>& reported, LintReporter& reporter) {
  GroupLint(input, promises, modules, reported, reporter).run();
}

}  // namespace twofour
