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

Method method_of(std::string_view text) {
  if (text.starts_with("modelopt")) return Method::kModelOpt;
  if (text == "compressed-tensors") return Method::kGroups;
  if (text == "fp8") return Method::kFp8;
  if (text == "mxfp4") return Method::kMxfp4;
  if (text == "mxfp8") return Method::kMxfp8;
  if (text.starts_with("gptq")) return Method::kGptq;
  if (text.starts_with("awq")) return Method::kAwq;
  return text.empty() ? Method::kNone : Method::kOther;
}

/// What a group says of inputs. `local` is a stored scale of a tensor over those of its groups.
InputPromise group_inputs(const Json& group) {
  const Json& inputs = member(group, "input_activations");
  if (!inputs.is_object()) return kFloats;
  const Json& dynamic = member(inputs, "dynamic");
  return dynamic.is_boolean() && dynamic.get<bool>() ? kDynamic : kStatic;
}

/// An older key of DeepSeek-V4's entries, which name no algorithm otherwise.
std::string algorithm_of_layer(const Json& entry) {
  return entry.is_string() ? entry.get<std::string>() : lookups::algorithm_of(entry);
}

}  // namespace

const Algorithm* find_algorithm(std::string_view name) {
  const auto at = std::find_if(std::begin(kAlgorithms), std::end(kAlgorithms),
                               [&](const Algorithm& a) { return name == a.name; });
  return at == std::end(kAlgorithms) ? nullptr : &*at;
}

Promises::Promises(const LintInput& input, const std::vector<CodedModule>& modules)
    : words(&input.quantization), place(input.quantization_key) {
  method_text = text_of(input.quantization, "quant_method");
  method = method_of(method_text);
  if (member(input.quantization, "quantization").is_object()) {
    words = &member(input.quantization, "quantization");
    place += place.empty() ? "quantization" : ".quantization";
    if (method == Method::kNone) method = Method::kModelOpt;
  } else if (method == Method::kNone && !lookups::algorithm_of(*words).empty()) {
    method = Method::kModelOpt;  // what is wrong is the missing method alone
  }
  if (!place.empty()) place += '.';
  of.resize(modules.size());
  if (method == Method::kGroups) {
    read_groups(input, modules);
  } else if (method == Method::kModelOpt) {
    read_modelopt(modules);
  } else {
    read_whole();
  }
}

void Promises::read_whole() {
  for (Promise& p : of) {
    p.entry = words;
    p.place = place;
    p.inputs = method == Method::kOther || method == Method::kNone ? kUnknown : kFloats;
    if (method == Method::kFp8)
      p.inputs = text_of(*words, "activation_scheme") == "static" ? kStatic : kDynamic;
    if (method == Method::kMxfp8) p.inputs = kDynamic;
  }
}

void Promises::read_groups(const LintInput& input, const std::vector<CodedModule>& modules) {
  const lookups::TargetGroups groups(*words);
  std::map<const Json*, std::string> names;
  const Json& all = member(*words, "config_groups");
  if (all.is_object()) {
    for (const auto& [name, group] : all.items()) names.emplace(&group, name);
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    const Json* group = groups.find(modules[i].name);
    if (group == nullptr) {
      const std::string renamed = other_name(input.config, modules[i].name, name_in_vllm);
      if (!renamed.empty()) group = groups.find(renamed);
    }
    if (group == nullptr) continue;
    of[i] = {group, place + "config_groups." + names[group], "", group_inputs(*group)};
  }
}

void Promises::read_modelopt(const std::vector<CodedModule>& modules) {
  const std::string single = lookups::algorithm_of(*words);
  const Json& layers = member(*words, "quantized_layers");
  std::map<std::string, std::string> excluded;
  for (const char* key : {"ignore", "exclude_modules"}) {
    for (std::string& text : string_list(*words, key)) excluded.emplace(std::move(text), key);
  }
  PatternList ignored(excluded);
  // A config of NVFP4 whose groups have no activations is for its weights alone.
  const Json& groups = member(*words, "config_groups");
  const bool weights_alone = groups.is_object() && !groups.empty() &&
                             std::all_of(groups.begin(), groups.end(), [](const Json& group) {
                               return group.is_object() && member(group, "input_activations").is_null();
                             });
  for (size_t i = 0; i < modules.size(); ++i) {
    Promise& p = of[i];
    if (single == "MIXED_PRECISION" || (single.empty() && layers.is_object())) {
      if (!layers.is_object()) continue;
      any_above(modules[i].name, [&](std::string_view name) {
        const auto at = layers.find(name);
        if (at == layers.end()) return false;
        p = {&*at, fmt::format("{}quantized_layers.{}", place, name), algorithm_of_layer(*at)};
        return true;
      });
    } else if (!single.empty() && !ignored.matches(modules[i].name)) {
      p = {words, place + "quant_algo", single};
    }
    const Algorithm* algorithm = find_algorithm(p.algorithm);
    if (algorithm != nullptr) p.inputs = algorithm->inputs;
    if (p.algorithm == "NVFP4" && p.entry == words && weights_alone) p.inputs = kFloats;
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

bool lint_promises(const LintInput& s, const std::vector<CodedModule>& modules,
                   std::set<std::string>& reported, LintReporter& reporter) {
  if (!s.layout.empty() || s.is_part || !s.quantization.is_object()) return true;
  const Promises promises(s, modules);
  if (!lint_methods(s, promises, modules, reported, reporter)) return false;
  if (promises.method == Method::kGroups) lint_groups(s, promises, modules, reported, reporter);
  lint_inputs(s, promises, modules, reporter);
  lint_meaning(s, promises, modules, reporter);
  return true;
}

}  // namespace twofour
