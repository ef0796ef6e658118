#include "lib/lint/config/promises.h"

#include <algorithm>

#include "formats/naming.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

constexpr InputPromise kUnknown = InputPromise::kUnknown, kFloats = InputPromise::kFloats,
                       kDynamic = InputPromise::kDynamic, kStatic = InputPromise::kStatic;

/// Returns what a group states about inputs. With "local", the tensor's scale is stored, in addition to the
/// scales of its groups.
InputPromise group_inputs(const Json& group) {
  const Json& inputs = member(group, "input_activations");
  if (!inputs.is_object()) return kFloats;
  const Json& dynamic = member(inputs, "dynamic");
  return dynamic.is_boolean() && dynamic.get<bool>() ? kDynamic : kStatic;
}

/// Returns what a method states about the inputs of all modules.
InputPromise whole_inputs(const ConfiguredQuantization& configured) {
  switch (configured.method) {
    case QuantMethod::kOther:
    case QuantMethod::kNone:
      return kUnknown;
    case QuantMethod::kFp8:
      return text_of(*configured.settings, "activation_scheme") == "static" ? kStatic : kDynamic;
    case QuantMethod::kMxfp8:
      return kDynamic;
    default:
      return kFloats;
  }
}

InputPromise inputs_of(const ConfiguredQuantization& configured, const ConfiguredFormat& module,
                       bool weights_alone) {
  if (configured.method == QuantMethod::kGroups)
    return module.entry == nullptr ? kUnknown : group_inputs(*module.entry);
  if (configured.method != QuantMethod::kModelOpt) return whole_inputs(configured);
  if (module.algorithm == "NVFP4" && module.entry == configured.settings && weights_alone) return kFloats;
  const Algorithm* algorithm = find_algorithm(module.algorithm);
  return algorithm == nullptr ? kUnknown : algorithm->inputs;
}

}  // namespace

bool is_in(const CodedModule& m, const Algorithm& algorithm) {
  // Another check compares the group size of NVFP4.
  const WeightFormat own = m.format->variant_of != nullptr ? WeightFormat(*m.format->variant_of) : m.format;
  return !algorithm.scheme.format->is_known() || own == algorithm.scheme.format;
}

Promises::Promises(const ConfiguredQuantization& configured, const LintInput& input,
                   const std::vector<CodedModule>& modules)
    : ConfiguredQuantization(configured) {
  const bool weights_alone = lookups::are_for_weights_alone(groups());
  for (const CodedModule& m : modules) {
    ConfiguredFormat one =
        find(m.name, method == QuantMethod::kGroups ? other_name(input.config, m.name, name_in_vllm) : "");
    // Settings of fp8 for inputs do not concern a module in another format, such as experts of four bits.
    const bool is_other = method == QuantMethod::kFp8 && !m.is_fp8();
    const InputPromise inputs = is_other ? kUnknown : inputs_of(*this, one, weights_alone);
    of.push_back({std::move(one), inputs});
  }
}

std::string shown_setting(const Json& value) { return value.is_null() ? "none" : quoted_setting(value); }

void KeyVotes::add(const std::string& key, size_t m, std::string expected, std::string found) {
  Vote& vote = votes_[key];
  if (vote.count++ == 0) vote.found = std::move(found);
  if (expected.empty()) return;
  Against& against = vote.against[std::move(expected)];
  if (against.count++ == 0) against.first = m;
}

void PromiseCheck::report_votes() {
  votes_.for_wrong([&](const std::string& key, const std::string& expected, const std::string& found,
                       size_t first, size_t count) {
    const bool of_size = key.ends_with("group_size") || key.ends_with("block_size");
    reporter_.add(of_size ? "config-group-size" : "config-format", s_.setting(key),
                  "expected {} (as in {}{}), found {}", expected, modules_[first].name,
                  and_more(count, " and {} more"), found);
    for (const CodedModule& m : modules_) reported_.insert(m.name);
  });
}

bool lint_promises(const LintInput& s, const ConfiguredQuantization& configured,
                   const std::vector<CodedModule>& modules, std::set<std::string>& reported,
                   LintReporter& reporter) {
  if (!s.layout.empty() || s.is_part || !s.quantization.is_object()) return true;
  const Promises promises(configured, s, modules);
  if (!lint_methods(s, promises, modules, reported, reporter)) return false;
  if (promises.method == QuantMethod::kGroups) lint_groups(s, promises, modules, reported, reporter);
  lint_inputs(s, promises, modules, reporter);
  lint_meaning(s, promises, modules, reported, reporter);
  return true;
}

}  // namespace twofour
