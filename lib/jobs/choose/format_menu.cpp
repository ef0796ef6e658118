#include "lib/jobs/choose/format_menu.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/layouts/layouts.h"
#include "lib/base/findings/problems.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/loader_lookup.h"
#include "lib/source/linears/linears.h"
#include "lib/write/encode/quantized_group.h"
#include "lib/write/plan/method.h"
#include "lib/write/view/layout_choice.h"

namespace twofour {
namespace {

constexpr OutputEngine kOutputEngines[] = {{"twofour", "", "compressed-tensors"},
                                           {"vllm", "vLLM", "compressed-tensors"},
                                           {"sglang", "SGLang", "compressed-tensors"},
                                           {"tensorrt-llm", "TensorRT-LLM", "modelopt"}};

/// The linears of an output with their formats, as engines look them up.
std::vector<LoadedModule> written_modules(const Checkpoint& source, const Plan& plan) {
  std::vector<LoadedModule> modules;
  std::set<size_t> taken;
  for (const auto* group : plan.transformations.of<QuantizedGroup>()) {
    for (const EncodedMatrix& m : group->matrices()) {
      Scheme scheme = group->encode_rule().scheme;
      scheme.has_input_scale = m.input_scale != 0;
      modules.push_back(loaded_module(m.name, scheme, m.rows, m.k));
      taken.insert(m.source->weight);
    }
  }
  for (const Linear& m : find_weight_modules(source)) {
    if (!taken.contains(m.weight)) modules.push_back(loaded_module(source, m));
  }
  return modules;
}

}  // namespace

std::span<const OutputEngine> output_engines() { return kOutputEngines; }

const OutputEngine& output_engine(std::string_view word) {
  std::vector<std::string_view> words;
  for (const OutputEngine& e : kOutputEngines) {
    if (e.word == word) return e;
    words.push_back(e.word);
  }
  throw Error(fmt::format("expected the engine {}, found {}", either(words), word));
}

std::vector<std::string> menu_formats() {
  std::vector<std::string> formats = {"nvfp4"};
  for (const MethodRow& m : methods()) {
    if (m.kind & (kToMx | kToFp8)) formats.emplace_back(m.name);
  }
  formats.emplace_back(kStays);
  for_each_layout([&]<class L>() { formats.emplace_back(L::name); });
  return formats;
}

std::vector<std::string> default_menu() {
  std::vector<std::string> formats = menu_formats();
  std::erase_if(formats, [](const std::string& f) { return f == "mxfp8" || makes_layout(Rule{.to = f}); });
  return formats;
}

Rule rule_of_format(std::string_view format, const Rule& base) {
  Rule rule;
  rule.to = format == "nvfp4" ? "quantize" : std::string(format);
  rule.selection = base.selection;
  rule.author = base.author;
  rule.label = format;
  if (!makes_layout(rule)) rule.dialect = base.dialect;
  if (!can_solve(rule)) return rule;
  rule.method = base.method, rule.sweeps = base.sweeps, rule.shrink = base.shrink;
  // Scales of other formats follow from the largest weights.
  if (rule.to == "quantize" || makes_layout(rule)) rule.scale_search = base.scale_search;
  return rule;
}

Rule without_solving(Rule rule) {
  rule.method = {}, rule.sweeps = -1;
  rule.shrink = {}, rule.scale_search = -1;
  return rule;
}

std::string find_engine_refusal(const OutputEngine& engine, const Checkpoint& source, const Plan& plan) {
  if (engine.name.empty()) return "";
  if (!plan.config.layouts.empty())
    return fmt::format("{} does not read the layout {}", engine.name, plan.config.layouts[0].layout);
  const auto config = plan.config.texts.find("config.json");
  if (config == plan.config.texts.end()) return "";
  const Json json = parse_json("config.json", config->second);
  const auto other = plan.config.texts.find("hf_quant_config.json");
  const auto entry = quantization_entry(json);
  const LoadedConfig loaded = loaded_config(
      json, {entry ? entry->value : Json(),
             other == plan.config.texts.end() ? Json() : parse_json("hf_quant_config.json", other->second)});
  const auto all = engines();
  const auto asked =
      std::find_if(all.begin(), all.end(), [&](const Engine& e) { return e.name == engine.name; });
  for (const LookupFinding& f : check_lookups(loaded, written_modules(source, plan), std::span(&*asked, 1)))
    return f.module.empty() ? f.message : fmt::format("{}: {}", f.module, f.message);
  return "";
}

}  // namespace twofour
