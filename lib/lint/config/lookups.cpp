#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "lib/checkpoint/quantization_config.h"
#include "lib/dialects/loader_lookup.h"
#include "lib/lint/config/checks.h"
#include "lib/names/config_pattern.h"

namespace twofour {
namespace engine_lookups {
namespace {

using enum NamedFormat::Kind;

/// The format of an FP8 matrix by the scale beside it; nothing to hold against a config where there is none.
NamedFormat fp8_format(const LintInput& s, const std::string& module, const TensorInfo& weight) {
  for (const char* suffix : {".weight_scale", ".weight_scale_inv", ".scale"}) {
    const auto at = s.find(module + suffix);
    if (!at) continue;
    const TensorInfo& scale = s.tensors[*at];
    const int64_t n = weight.shape[0], k = weight.shape[1];
    const std::vector<int64_t> groups = {n, k / kMxGroup};
    const bool power = scale.dtype == DType::kU8 || scale.dtype == DType::kF8E8M0;
    const bool row_of_one = k == kMxGroup && scale.shape == std::vector<int64_t>{n};
    if (power && k % kMxGroup == 0 && (scale.shape == groups || row_of_one)) return {kMxfp8};
    const bool is_one = std::all_of(scale.shape.begin(), scale.shape.end(), [](int64_t d) { return d == 1; });
    if (is_one && (scale.shape.size() < 2 || (n <= kFp8Block && k <= kFp8Block)))
      return with_size({kFp8Tensor}, n, k);
    if (scale.shape.size() == 1 || (scale.shape.size() == 2 && scale.shape[1] == 1 && scale.shape[0] == n))
      return with_size({kFp8Row}, n, k);
    return {kFp8Blocks};
  }
  return {kOther};
}

/// How a matrix named ".weight" is stored; kOther: in a way that is not looked at here.
NamedFormat weight_format(const LintInput& s, const std::string& module, const TensorInfo& weight) {
  if (weight.dtype == DType::kBF16 || weight.dtype == DType::kF16 || weight.dtype == DType::kF32)
    return {kFloat};
  return weight.dtype == DType::kF8E4M3 ? fp8_format(s, module, weight) : NamedFormat{kOther};
}

/// Linears whose format is certain. What a module lacks other rules report: here it is as if it were whole.
std::vector<LoadedModule> stored_modules(const LintInput& s, const std::set<std::string>& reported) {
  std::vector<LoadedModule> modules;
  for (const Nvfp4Linear& m : s.modules) modules.push_back({m.name, {kNvfp4}});
  for (const TensorInfo& t : s.tensors) {
    constexpr std::string_view kWeight = ".weight";
    if (!t.name.ends_with(kWeight) || t.shape.size() != 2 || t.dtype == DType::kU8) continue;
    std::string module = t.name.substr(0, t.name.size() - kWeight.size());
    if (is_no_linear(module) || is_own_router(s, module)) continue;
    const NamedFormat format = weight_format(s, module, t);
    if (format.kind != kOther) modules.push_back({std::move(module), format});
  }
  std::erase_if(modules, [&](const LoadedModule& m) { return reported.contains(m.name); });
  return modules;
}

/// Findings that differ in numbers of their modules, or in the engine.
struct Alike {
  std::vector<std::string_view> engines;
  std::vector<std::string> modules;
};

constexpr std::string_view kPlaceOfEngine = "{engine}";

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  if (const size_t at = text.find(from); at != text.npos) text.replace(at, from.size(), to);
  return text;
}

/// A name with every number as one digit.
std::string without_numbers(std::string_view name) {
  std::string folded = without_digits(name);
  const auto last =
      std::unique(folded.begin(), folded.end(), [](char a, char b) { return a == '0' && b == '0'; });
  folded.erase(last, folded.end());
  return folded;
}

using Key = std::tuple<bool, std::string, std::string>;  ///< limit, module without numbers, message

std::map<Key, Alike> group_findings(const std::vector<LookupFinding>& findings) {
  std::map<Key, Alike> all;
  for (const LookupFinding& f : findings) {
    // Whatever modules have a format, an engine's limit is one.
    const std::string module = f.is_limit ? "" : without_numbers(f.module);
    Alike& a = all[{f.is_limit, module, replaced(f.message, f.engine, kPlaceOfEngine)}];
    if (a.engines.empty() || a.engines.back() != f.engine) a.engines.push_back(f.engine);
    if (a.engines.size() == 1) a.modules.push_back(f.module);
  }
  return all;
}

}  // namespace
}  // namespace engine_lookups

void lint_lookups(const LintInput& s, const std::set<std::string>& reported, bool disagree,
                  LintReporter& reporter) {
  if (!s.layout.empty() || s.is_part || s.quantization.is_null()) return;
  const auto entry = quantization_entry(s.config);
  const bool both = entry.has_value();
  const LoadedConfig config =
      loaded_config(s.config, {both ? entry->value : Json(), both && disagree ? Json() : s.hf_quant_config});
  const std::vector<LoadedModule> modules = engine_lookups::stored_modules(s, reported);
  for (const auto& [key, alike] : engine_lookups::group_findings(check_lookups(config, modules))) {
    const auto& [is_limit, folded, message] = key;
    std::string text = engine_lookups::replaced(message, engine_lookups::kPlaceOfEngine,
                                                fmt::format("{}", fmt::join(alike.engines, ", ")));
    if (alike.modules.size() > 1) text += fmt::format(", and in {} more", alike.modules.size() - 1);
    reporter.add(is_limit ? "engine-limit" : "engine-lookup", s.quantization_file, alike.modules[0],
                 std::move(text));
  }
}

}  // namespace twofour
