#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "formats/naming.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/names/config_pattern.h"
#include "lib/lint/config/checks.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/loader_lookup.h"

namespace twofour {
namespace engine_lookups {
namespace {

/// Returns the scheme of an FP8 matrix by the scale beside it. Without a scale it is kOther, which is not
/// checked.
Scheme fp8_scheme(const LintInput& s, const CodedModule& m) {
  if (!m.scale) return schemes::kOther;
  if (m.is_mxfp8()) return schemes::kMxfp8;
  const std::vector<int64_t>& shape = s.tensors[*m.scale].shape;
  const bool is_one = std::all_of(shape.begin(), shape.end(), [](int64_t d) { return d == 1; });
  if (is_one && (shape.size() < 2 || (m.n <= kFp8Block && m.k <= kFp8Block))) return schemes::kFp8Tensor;
  const bool is_row = shape.size() == 1 || shape == std::vector<int64_t>{m.n, 1};
  return is_row ? schemes::kFp8Row : schemes::kFp8Blocks;
}

/// Returns the linears whose format is certain. Other rules report missing parts, so every module here counts
/// as complete.
std::vector<LoadedModule> stored_modules(const LintInput& s, const std::vector<CodedModule>& coded,
                                         const std::set<std::string>& reported) {
  std::map<size_t, const CodedModule*> fp8;
  for (const CodedModule& m : coded) {
    if (m.format->tiles && s.tensors[m.tensor].dtype == DType::kF8E4M3) fp8.emplace(m.tensor, &m);
  }
  std::vector<LoadedModule> modules;
  for (const Nvfp4Linear& m : s.modules) modules.push_back({m.name, schemes::kNvfp4});
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const TensorInfo& t = s.tensors[i];
    const auto at = fp8.find(i);
    if (!t.name.ends_with(".weight") || t.shape.size() != 2 || (!is_float(t.dtype) && at == fp8.end()))
      continue;
    std::string module(module_of(t.name));
    if (is_no_linear(module) || is_own_router(s, module)) continue;
    const Scheme scheme = is_float(t.dtype) ? Scheme() : fp8_scheme(s, *at->second);
    if (scheme != schemes::kOther)
      modules.push_back(loaded_module(std::move(module), scheme, t.shape[0], t.shape[1]));
  }
  std::erase_if(modules, [&](const LoadedModule& m) { return reported.contains(m.name); });
  return modules;
}

/// Findings that differ only in the engine or in the numbers in modules' names.
struct Alike {
  std::vector<std::string_view> engines;
  std::vector<std::string> modules;
};

constexpr std::string_view kPlaceOfEngine = "{engine}";

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  if (const size_t at = text.find(from); at != text.npos) text.replace(at, from.size(), to);
  return text;
}

/// Returns a name with one digit in place of every number.
std::string without_numbers(std::string_view name) {
  std::string folded = without_digits(name);
  const auto last =
      std::unique(folded.begin(), folded.end(), [](char a, char b) { return a == '0' && b == '0'; });
  folded.erase(last, folded.end());
  return folded;
}

using Key = std::tuple<bool, std::string, std::string>;  ///< is it a limit, module without numbers, message

std::map<Key, Alike> group_findings(const std::vector<LookupFinding>& findings) {
  std::map<Key, Alike> all;
  for (const LookupFinding& f : findings) {
    // A limit of an engine is one finding, whatever modules it has.
    const std::string module = f.is_limit ? "" : without_numbers(f.module);
    Alike& a = all[{f.is_limit, module, replaced(f.message, f.engine, kPlaceOfEngine)}];
    if (a.engines.empty() || a.engines.back() != f.engine) a.engines.push_back(f.engine);
    if (a.engines.size() == 1) a.modules.push_back(f.module);
  }
  return all;
}

}  // namespace
}  // namespace engine_lookups

void lint_lookups(const LintInput& s, const std::vector<CodedModule>& coded,
                  const std::set<std::string>& reported, bool disagree, LintReporter& reporter) {
  if (!s.layout.empty() || s.is_part || s.quantization.is_null()) return;
  const auto entry = quantization_entry(s.config);
  const bool both = entry.has_value();
  const LoadedConfig config =
      loaded_config(s.config, {both ? entry->value : Json(), both && disagree ? Json() : s.hf_quant_config});
  const std::vector<LoadedModule> modules = engine_lookups::stored_modules(s, coded, reported);
  for (const auto& [key, alike] : engine_lookups::group_findings(check_lookups(config, modules))) {
    const auto& [is_limit, folded, message] = key;
    std::string text = engine_lookups::replaced(message, engine_lookups::kPlaceOfEngine,
                                                fmt::format("{}", fmt::join(alike.engines, ", ")));
    text += and_more(alike.modules.size(), ", and in {} more");
    reporter.add(is_limit ? "engine-limit" : "engine-lookup", s.setting(alike.modules[0]), std::move(text));
  }
}

}  // namespace twofour
