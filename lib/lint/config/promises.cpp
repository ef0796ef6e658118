#include "lib/lint/config/promises.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "formats/naming.h"
#include "lib/checkpoint/model_config.h"
#include "lib/lint/config/checks.h"
#include "lib/names/lookup_parts.h"

namespace twofour {
namespace {

using lookups::member;
using lookups::text_of;

constexpr InputPromise kUnknown = InputPromise::kUnknown, kFloats = InputPromise::kFloats,
                       kDynamic = InputPromise::kDynamic, kStatic = InputPromise::kStatic;

/// Sources: NVIDIA/Model-Optimizer, modelopt/torch/export/quant_utils.py; TensorRT-LLM,
/// quantization/mode.py.
constexpr Algorithm kAlgorithms[] = {
    {"NVFP4", "NVFP4", kStatic},
    {"W4A16_NVFP4", "NVFP4", kFloats},
    {"NVFP4_AWQ", "NVFP4", kStatic, true},
    {"NVFP4_SVD", "NVFP4", kStatic, true},
    {"NVFP4_SVDQUANT", "NVFP4", kStatic, true},
    {"NVFP4_ARC", "NVFP4", kStatic},
    {"W4A8_NVFP4_FP8", "", kStatic},
    {"W4A8_MXFP4_FP8", "MXFP4", kUnknown},
    {"W4A8_MXFP4_MXFP8", "MXFP4", kUnknown},
    {"W4A16_MXFP4", "MXFP4", kFloats},
    {"MXFP4", "MXFP4", kUnknown},
    {"MXFP8", "MXFP8", kDynamic},
    {"FP8", "FP8", kStatic},
    {"FP8_PER_CHANNEL_PER_TOKEN", "FP8", kDynamic},
    {"FP8_PB_WO", "FP8", kDynamic},
    {"FP8_PB_REAL", "FP8", kUnknown},
    {"FP8_PB", "FP8", kDynamic},
    {"FP8_BLOCK_SCALES", "FP8", kDynamic},
    {"W4A16_AWQ", "", kFloats, true},
    {"W4A8_AWQ", "", kUnknown, true},
    {"W4A16", "", kFloats},
    {"W4A16_GPTQ", "", kFloats},
    {"W8A16", "", kFloats},
    {"W8A16_GPTQ", "", kFloats},
    {"INT8", "", kUnknown},
    {"W8A8_SQ_PER_CHANNEL", "", kUnknown, true},
    {"W8A8_SQ_PER_TENSOR_PLUGIN", "", kUnknown, true},
    {"W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "", kUnknown, true},
    {"W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN", "", kUnknown, true},
    {"W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN", "", kUnknown, true},
    {"W4A8_QSERVE_PER_GROUP", "", kUnknown},
    {"W4A8_QSERVE_PER_CHANNEL", "", kUnknown},
    {"MIXED_PRECISION", "", kUnknown},
    {"NO_QUANT", "", kFloats},
};

/// What a group says of inputs. `local` is a stored scale of a tensor over those of its groups.
InputPromise group_inputs(const Json& group) {
  const Json& inputs = member(group, "input_activations");
  if (!inputs.is_object()) return kFloats;
  const Json& dynamic = member(inputs, "dynamic");
  return dynamic.is_boolean() && dynamic.get<bool>() ? kDynamic : kStatic;
}

/// Of a method that says it of all modules.
InputPromise whole_inputs(const QuantizationSaid& said) {
  switch (said.method) {
    case QuantMethod::kOther:
    case QuantMethod::kNone:
      return kUnknown;
    case QuantMethod::kFp8:
      return text_of(*said.words, "activation_scheme") == "static" ? kStatic : kDynamic;
    case QuantMethod::kMxfp8:
      return kDynamic;
    default:
      return kFloats;
  }
}

InputPromise inputs_of(const QuantizationSaid& said, const SaidOfModule& module, bool weights_alone) {
  if (said.method == QuantMethod::kGroups)
    return module.entry == nullptr ? kUnknown : group_inputs(*module.entry);
  if (said.method != QuantMethod::kModelOpt) return whole_inputs(said);
  if (module.algorithm == "NVFP4" && module.entry == said.words && weights_alone) return kFloats;
  const Algorithm* algorithm = find_algorithm(module.algorithm);
  return algorithm == nullptr ? kUnknown : algorithm->inputs;
}

}  // namespace

const Algorithm* find_algorithm(std::string_view name) {
  const auto at = std::find_if(std::begin(kAlgorithms), std::end(kAlgorithms),
                               [&](const Algorithm& a) { return name == a.name; });
  return at == std::end(kAlgorithms) ? nullptr : &*at;
}

Promises::Promises(const QuantizationSaid& said, const LintInput& input,
                   const std::vector<CodedModule>& modules)
    : QuantizationSaid(said) {
  const bool weights_alone = lookups::are_for_weights_alone(groups());
  for (const CodedModule& m : modules) {
    SaidOfModule one =
        find(m.name, method == QuantMethod::kGroups ? other_name(input.config, m.name, name_in_vllm) : "");
    const InputPromise inputs = inputs_of(*this, one, weights_alone);
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

bool lint_promises(const LintInput& s, const QuantizationSaid& said, const std::vector<CodedModule>& modules,
                   std::set<std::string>& reported, LintReporter& reporter) {
  if (!s.layout.empty() || s.is_part || !s.quantization.is_object()) return true;
  const Promises promises(said, s, modules);
  if (!lint_methods(s, promises, modules, reported, reporter)) return false;
  if (promises.method == QuantMethod::kGroups) lint_groups(s, promises, modules, reported, reporter);
  lint_inputs(s, promises, modules, reporter);
  lint_meaning(s, promises, modules, reporter);
  return true;
}

}  // namespace twofour
