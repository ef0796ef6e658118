#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "formats/naming.h"
#include "formats/weight_dialect.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/names/config_pattern.h"
#include "lib/lint/config/checks.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/config/contradictions.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

/// True if a tensor holds codes of a format other than NVFP4 and has their scales beside it.
bool has_own_scales(const LintInput& s, const TensorInfo& t) {
  return std::any_of(weight_dialects().begin(), weight_dialects().end(), [&](const WeightDialect& d) {
    if (d.scale == nullptr || !d.weight_types.has(t.dtype) || !t.name.ends_with(d.weight)) return false;
    const auto scale = s.find(t.name.substr(0, t.name.size() - std::string_view(d.weight).size()) + d.scale);
    return scale && d.scale_types.has(s.tensors[*scale].dtype);
  });
}

/// Reports NVFP4 codes without block scales, and codes with block scales but without a global scale.
void check_complete(const LintInput& s, LintReporter& reporter) {
  std::vector<bool> is_complete(s.tensors.size());
  for (const Nvfp4Linear& m : s.modules) is_complete[m.codes] = is_complete[m.block_scale] = true;
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const TensorInfo& t = s.tensors[i];
    if (is_complete[i]) continue;
    for (const Nvfp4Dialect& d : nvfp4_dialects()) {
      if (t.dtype == DType::kF8E4M3 && t.name.ends_with(d.block_scale)) {
        const std::string module = t.name.substr(0, t.name.size() - std::string_view(d.block_scale).size());
        const auto codes = s.find(module + d.codes);
        const bool lacks = codes && s.tensors[*codes].dtype == DType::kU8 && !s.find(module + d.global_scale);
        if (!lacks) continue;
        reporter.add("incomplete-module", s.at(i, module),
                     "expected {} beside its codes and block scales, found none", d.global_scale);
        break;
      }
      const bool codes =
          t.dtype == DType::kU8 && *d.codes != '\0' && t.name.ends_with(d.codes) && t.shape.size() == 2;
      if (!codes) continue;
      const std::string module = t.name.substr(0, t.name.size() - std::string_view(d.codes).size());
      // If a global scale exists, another check reports the module for tensors that disagree.
      if (s.find(module + d.block_scale) || s.find(module + d.global_scale) || has_own_scales(s, t)) continue;
      reporter.add("incomplete-module", s.at(i, module), "expected {} beside its codes, found none",
                   d.block_scale);
      break;
    }
  }
}

/// Reports FP8 weights that lack the scale which other FP8 modules have.
void check_fp8_complete(const LintInput& s, const std::vector<CodedModule>& modules, LintReporter& reporter) {
  // Modules whose names differ in numbers alone have the same suffix, and otherwise most modules.
  std::string_view usual;
  std::map<std::string, std::string_view> suffixes;
  for (const CodedModule& m : modules) {
    if (!m.is_fp8() || m.scale_suffix.empty() || m.is_stack) continue;
    usual = m.scale_suffix;
    suffixes.emplace(without_digits(m.name), m.scale_suffix);
  }
  std::set<std::string_view> tables;  // pieces of a table share a scale
  for (const CodedModule& m : modules) {
    if (usual.empty() || !m.is_fp8() || m.scale) continue;
    const auto own = suffixes.find(without_digits(m.name));
    const std::string_view suffix = own != suffixes.end() ? own->second : usual;
    const std::string_view table = table_of_piece(m.name);
    if (!table.empty()) {
      if (tables.insert(table).second)
        reporter.add(
            "incomplete-module", s.at(m.tensor, std::string(table)),
            "expected a scale beside its FP8 numbers (.weight_scale, or one for each piece), found none");
      continue;
    }
    reporter.add("incomplete-module", s.at(m.tensor, m.name),
                 "expected {} beside its FP8 numbers (as in others), found none", suffix);
  }
}

/// Reports INT4 codes without scales. Also reports codes without zero points if their producer always writes
/// them.
void check_int4_complete(const LintInput& s, LintReporter& reporter) {
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const TensorInfo& t = s.tensors[i];
    if (t.dtype != DType::kI32) continue;
    for (const WeightDialect& d : weight_dialects()) {
      if (!d.format->integers || !t.name.ends_with(d.weight)) continue;
      const std::string module = t.name.substr(0, t.name.size() - std::string_view(d.weight).size());
      if (s.find(module + ".weight")) continue;  // another rule reports weights that are stored twice
      const bool needs_zeros = std::string_view(d.zero_points) == ".qzeros";
      for (const char* part : {d.scale, needs_zeros ? d.zero_points : d.scale}) {
        if (s.find(module + part)) continue;
        reporter.add("incomplete-module", s.at(i, module), "expected {} beside its codes, found none", part);
        break;
      }
    }
  }
}

/// True if a tensor is a part of an INT4 linear, which the codes beside it show.
bool is_of_int4(const LintInput& s, std::string_view tensor) {
  const std::string module(module_of(tensor));
  for (const char* codes : {".qweight", ".weight_packed"}) {
    const auto at = s.find(module + codes);
    if (at && s.tensors[*at].dtype == DType::kI32) return true;
  }
  return false;
}

/// Reports settings of Quark and AutoRound that call codes another number. Other rules compare those of other
/// producers.
void check_numbers(const LintInput& s, const std::vector<CodedModule>& coded, LintReporter& reporter) {
  const std::string method = quantization_method(s.quantization);
  if (method != "quark" && method != "auto-round") return;
  SourceGroups configured(s.quantization);
  std::map<std::string, std::pair<std::string, size_t>>
      found;  // by what is wrong: its first module, how many
  for (const CodedModule& m : coded) {
    if (m.format->global_scale || (m.format->integers && m.suffix == ".weight")) continue;
    const std::string problem = contradiction_of(configured.configured(), m.name, m.format);
    if (!problem.empty()) ++found.try_emplace(problem, m.name, 0).first->second.second;
  }
  for (const auto& [problem, where] : found) {
    const size_t colon = problem.find(": ");
    const std::string key = problem.substr(0, colon);
    reporter.add("config-format",
                 s.setting(s.quantization_key.empty() ? key : s.quantization_key + "." + key), "{}; see {}{}",
                 problem.substr(colon + 2), where.first, and_more(where.second, " and {} more"));
  }
}

/// Reports all zero points that contradict the config in one finding. Returns the names of their modules.
std::set<std::string> check_zero_points(const LintInput& s, const std::vector<Linear>& linears,
                                        WeightReader& reader, LintReporter& reporter) {
  std::string first, key;
  std::set<std::string> found;
  for (const Linear& m : linears) {
    if (!m.zero_points || !s.whole[s.find(reader.checkpoint().tensors()[*m.zero_points].name).value()])
      continue;
    try {
      reader.check_zero_points(m);
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      found.insert(m.name);
      if (found.size() > 1) continue;
      first = e.what();
      key = m.symmetry.empty() ? "checkpoint_format" : m.symmetry.substr(0, m.symmetry.find(':'));
    }
  }
  if (found.empty()) return found;
  const std::string place = s.quantization_key.empty() ? key : s.quantization_key + "." + key;
  reporter.add("config-format", s.setting(place),
               first + (and_more(found.size(), "; so do {} more modules")));
  return found;
}

/// Reports INT4 modules that no conversion can read because their tensors contradict each other or the
/// config.
void check_int4_values(const LintInput& s, bool headers_only, LintReporter& reporter) {
  if (std::none_of(s.tensors.begin(), s.tensors.end(), [](auto& t) { return t.dtype == DType::kI32; }))
    return;
  std::optional<Checkpoint> c;
  std::vector<Linear> linears;
  Problems problems;
  try {
    c.emplace(Checkpoint::open(s.path));
    linears = find_weight_modules(*c, problems);
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    return;  // other rules report this
  }
  const auto report = [&](const std::string& line) {
    for (const Shard& shard : s.shards) {
      if (!line.starts_with(shard.name + ": ")) continue;
      const std::string rest = line.substr(shard.name.size() + 2), tensor = rest.substr(0, rest.find(": "));
      if (!s.find(tensor) || !is_of_int4(s, tensor)) return;
      // Integers of other widths are not damaged.
      const bool unread = rest.find("expected integers of 4 bits") != rest.npos;
      // All modules of another width, and all shapes that are written in another way, are one finding each.
      const bool is_shape = tensor.ends_with(".weight_shape");
      reporter.add(unread ? "unsupported-format" : "module-shape", {shard.name, tensor},
                   without_where(rest, tensor) + (unread ? kNotSupported : ""),
                   {.key = unread     ? "bits"
                           : is_shape ? "weight_shape"
                                      : "",
                    .cause = unread ? "config-format" : ""});
      return;
    }
  };
  for (const std::string& line : problems.lines()) report(line);
  if (headers_only) return;
  WeightReader reader(*c);
  const std::set<std::string> refused = check_zero_points(s, linears, reader, reporter);
  if (!problems.empty()) return;
  std::vector<float> row;
  for (const Linear& m : linears) {
    if (!m.format->integers || !m.group_index || refused.contains(m.name)) continue;
    row.resize(static_cast<size_t>(m.k));
    try {
      reader.read_rows(m, 0, 0, 1, row);
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      report(e.what());
    }
  }
}

}  // namespace

void lint_complete(const LintInput& s, const std::vector<CodedModule>& coded, bool headers_only,
                   LintReporter& reporter) {
  check_complete(s, reporter);
  check_fp8_complete(s, coded, reporter);
  check_int4_complete(s, reporter);
  check_numbers(s, coded, reporter);
  check_int4_values(s, headers_only, reporter);
}

}  // namespace twofour
