#include "lib/look/inspect/inspect.h"
#include "lib/recipe/artifact/open_unpacked.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <unordered_map>
#include <utility>

#include "formats/error.h"
#include "formats/layouts/layout_ops.h"
#include "formats/layouts/layouts.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/problems.h"
#include "lib/base/io/file.h"
#include "lib/recipe/artifact/artifact_modules.h"
#include "lib/recipe/selection/output_matrix.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

/// Folds the names of items that have the same `key`, so that only items with equal properties share a group.
template <class Key, class Name, class Make>
void fold_by(size_t count, Key key, Name name, Make make) {
  std::map<std::string, std::vector<size_t>> kinds;
  for (size_t i = 0; i < count; ++i) kinds[key(i)].push_back(i);
  for (const auto& [text, members] : kinds) {
    std::vector<std::string> names;
    for (const size_t i : members) names.push_back(name(i));
    for (auto& [folded, positions] : fold_names(names)) {
      std::vector<size_t> indices;
      for (const size_t p : positions) indices.push_back(members[p]);
      make(folded, indices);
    }
  }
}

uint64_t module_bytes(const Checkpoint& c, const Nvfp4Linear& m) {
  return c.tensors()[m.codes].bytes() + c.tensors()[m.block_scale].bytes() +
         c.tensors()[m.global_scale].bytes();
}

std::string describe_scales(const Checkpoint& c, const Linear& m) {
  const std::string type(dtype_name(c.tensors()[*m.scale].dtype));
  if (m.format->integers) {
    const char* packing = m.packing == Int4Packing::kAwq    ? "AWQ"
                          : m.packing == Int4Packing::kGptq ? "GPTQ"
                                                            : "compressed-tensors";
    return fmt::format("{}, groups of {}{}, {} scales", packing, m.scale_cols,
                       m.group_index ? " in a separate order" : "", type);
  }
  const bool is_mx = is_mxfp8(c, m);
  if (!is_mx && m.scale_rows == 1 && m.scale_cols == m.k) return fmt::format("rows, {} scales", type);
  if (!is_mx && m.scale_rows == m.n && m.scale_cols == m.k) return fmt::format("tensor, {} scale", type);
  return fmt::format("blocks of {} x {}, {} scales", m.scale_rows, m.scale_cols, type);
}

/// Adds quantized modules in formats other than NVFP4, and counts the modules of all formats. Modules that
/// cannot be read become notes.
void add_other_modules(const Checkpoint& c, const std::vector<Linear>& all,
                       const std::function<bool(const Linear&)>& wanted, InspectReport& report) {
  std::vector<const Linear*> modules;
  std::set<size_t> counted;  // pieces of an embedding share a scale
  for (const Linear& m : all) {
    if (!m.format->coded || !wanted(m)) continue;
    ++report.formats[m.format->name];
    if (!m.nvfp4) modules.push_back(&m);
  }
  const auto described = [&](const Linear& m) {
    return fmt::format("{}{}, {}", m.is_table ? "embedding in " : "", m.format->name, describe_scales(c, m));
  };
  fold_by(
      modules.size(),
      [&](size_t i) {
        const Linear& m = *modules[i];
        return fmt::format("{} {} {} {}", described(m), m.e, m.n, m.k);
      },
      [&](size_t i) { return modules[i]->name; },
      [&](const std::string& name, const std::vector<size_t>& members) {
        const Linear& m = *modules[members[0]];
        ModuleGroup group{name, described(m), m.e, m.n, m.k, members.size()};
        for (const size_t i : members) {
          for (const size_t tensor : modules[i]->tensors()) {
            if (counted.insert(tensor).second) group.bytes += c.tensors()[tensor].bytes();
          }
        }
        report.other_modules.push_back(std::move(group));
      });
}

/// The checkpoint that an artifact in a layout was made from, if twofour.json records it.
std::optional<Checkpoint> open_view(const Checkpoint& c, Findings& findings) {
  try {
    if (c.is_directory() && holds_layout(c)) return open_source(c.path());
  } catch (const ReadError&) {
    throw;
  } catch (const Error& e) {
    findings.push_back({Severity::kWarning, "no-source-view", c.path().string(), e.what()});
  }
  return std::nullopt;
}

/// The sizes in bytes of modules in the files. In an artifact in a layout, a module has a share of tensors.
class ModuleSizes {
 public:
  /// `view` is the source of `c`. Null if `c` is not in a layout.
  ModuleSizes(const Checkpoint& c, const Checkpoint* view) : source_(view != nullptr ? *view : c) {
    if (view == nullptr) return;
    const ArtifactModules own = read_artifact_modules(c);
    for (const SourceLinear& m : own.modules) {
      const ArtifactMatrix& matrix = own.matrices[m.matrix];
      uint64_t bytes = c.tensors()[matrix.global_scale].bytes();
      for (const size_t part : matrix.parts) bytes += c.tensors()[part].bytes();
      const auto all = static_cast<uint64_t>(matrix.shape.e * matrix.shape.n);
      bytes_[m.name] = bytes / all * static_cast<uint64_t>(m.e * m.n) +
                       bytes % all * static_cast<uint64_t>(m.e * m.n) / all;
    }
  }
  uint64_t bytes(const Nvfp4Linear& m) const {
    const auto at = bytes_.find(m.name);
    return at != bytes_.end() ? at->second : module_bytes(source_, m);
  }

 private:
  const Checkpoint& source_;
  std::unordered_map<std::string, uint64_t> bytes_;
};

/// Adds the sizes of the default set in each layout. Adds nothing if nothing in the checkpoint can be
/// converted.
void add_layout_sizes(const Checkpoint& c, const ModuleSizes& sizes, InspectReport& report) {
  try {
    const auto targets = select_matrices(c, {});
    for (const OutputMatrix& t : targets) {
      for_each_layout([&]<class L>() {
        report.layout_bytes[L::name] += static_cast<uint64_t>(layout_bytes<L>(t.shape)) +
                                        static_cast<uint64_t>(t.shape.e) * sizeof(float);
      });
      double bytes = 0;
      for (const SourceRows& rows : t.sources) {
        const Nvfp4Linear& m = c.nvfp4_modules()[rows.module];
        bytes += static_cast<double>(sizes.bytes(m)) * static_cast<double>(rows.count) /
                 static_cast<double>(m.e * m.n);
      }
      report.default_set_bytes += static_cast<uint64_t>(std::llround(bytes));
    }
  } catch (const Error& e) {
    if (c.nvfp4_modules().empty()) return;
    for (std::string& line : lines_of(e)) {
      report.findings.push_back({Severity::kNote, "no-default-set", c.path().string(), std::move(line)});
    }
  }
}

}  // namespace

std::string describe_kind(const Checkpoint& c) {
  for (const Shard& s : c.shards()) {
    const auto it = s.metadata.find("twofour.layout");
    if (it != s.metadata.end()) return fmt::format("twofour artifact, layout {}", it->second);
  }
  if (c.nvfp4_modules().empty()) {
    const auto unread = find_unread_codes(c.tensors());
    if (!unread.empty())
      return fmt::format("checkpoint of {}, whose codes twofour does not read", unread[0].format);
    return "checkpoint without NVFP4 modules";
  }
  std::map<std::string_view, size_t> dialects;
  for (const Nvfp4Linear& m : c.nvfp4_modules()) ++dialects[m.dialect->name];
  std::string text = "NVFP4 checkpoint, ";
  for (const auto& [name, count] : dialects)
    text += fmt::format("{}{}", text.ends_with(", ") ? "" : " and ", name);
  return text;
}

uint64_t InspectReport::other_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, size] : other_files) bytes += size;
  return bytes;
}

namespace {

/// Throws Error on a pattern that matches no tensor and no module.
void check_patterns(const Checkpoint& c, const Checkpoint& source, const std::vector<Linear>& linears,
                    const std::vector<NamePattern>& only) {
  for (const NamePattern& p : only) {
    const bool used =
        std::any_of(c.tensors().begin(), c.tensors().end(), [&](auto& t) { return p.matches(t.name); }) ||
        std::any_of(source.nvfp4_modules().begin(), source.nvfp4_modules().end(),
                    [&](auto& m) { return p.matches(m.name); }) ||
        std::any_of(linears.begin(), linears.end(), [&](auto& m) { return p.matches(m.name); });
    if (!used)
      throw Error(fmt::format("{} '{}': expected to match a tensor or module, found none that it matches",
                              options::kTensor, p.text()));
  }
}

/// True if a name is to be shown.
using Wanted = std::function<bool(const std::string&)>;

void add_tensors(const Checkpoint& c, const Wanted& wanted, InspectReport& report) {
  std::vector<size_t> tensors;
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    if (wanted(c.tensors()[i].name)) tensors.push_back(i);
  }
  fold_by(
      tensors.size(), [&](size_t i) { return describe(c.tensors()[tensors[i]]); },
      [&](size_t i) { return c.tensors()[tensors[i]].name; },
      [&](const std::string& name, const std::vector<size_t>& members) {
        const TensorInfo& t = c.tensors()[tensors[members[0]]];
        report.tensors.push_back({name, t.dtype, t.shape, members.size(), t.bytes() * members.size()});
      });
}

/// Adds the NVFP4 modules of `source`. `stats_jobs` threads read their weights; 0: none are read.
void add_nvfp4_modules(const Checkpoint& source, const ModuleSizes& sizes, const Wanted& wanted,
                       int stats_jobs, InspectReport& report) {
  std::vector<size_t> modules;
  for (size_t i = 0; i < source.nvfp4_modules().size(); ++i) {
    const Nvfp4Linear& m = source.nvfp4_modules()[i];
    if (wanted(m.name) || wanted(source.tensors()[m.codes].name)) modules.push_back(i);
  }
  const auto read = [&](size_t tensor, uint64_t offset, std::span<uint8_t> out) {
    source.read(tensor, offset, out);
  };
  fold_by(
      modules.size(),
      [&](size_t i) {
        const Nvfp4Linear& m = source.nvfp4_modules()[modules[i]];
        return fmt::format("{} {} {} {}", m.dialect->name, m.e, m.n, m.k);
      },
      [&](size_t i) { return source.nvfp4_modules()[modules[i]].name; },
      [&](const std::string& name, const std::vector<size_t>& members) {
        const Nvfp4Linear& m = source.nvfp4_modules()[modules[members[0]]];
        ModuleGroup group{name, m.dialect->name, m.e, m.n, m.k, members.size()};
        for (const size_t i : members) group.bytes += sizes.bytes(source.nvfp4_modules()[modules[i]]);
        if (stats_jobs > 0) {
          std::vector<Nvfp4Linear> of_group;
          for (const size_t i : members) of_group.push_back(source.nvfp4_modules()[modules[i]]);
          GroupStats read_stats = read_module_stats(of_group, source.tensors(), read, stats_jobs);
          group.stats = std::make_unique<WeightStats>(read_stats.total);
          group.members = std::move(read_stats.modules);
        }
        report.modules.push_back(std::move(group));
      });
}

}  // namespace

InspectReport inspect(const Checkpoint& c, const std::vector<NamePattern>& only, bool stats, int jobs) {
  InspectReport report;
  report.what = describe_kind(c);
  report.findings = c.findings();
  if (const auto unread = find_unread_codes(c.tensors()); !unread.empty()) {
    report.findings.push_back(
        {Severity::kWarning, "unread-codes", c.path().string(),
         fmt::format("{} of {} have codes that twofour does not read, the first {}",
                     counted(unread.size(), "module"), unread[0].format, unread[0].module)});
  }
  const std::optional<Checkpoint> view = open_view(c, report.findings);
  const Checkpoint& source = view ? *view : c;
  const ModuleSizes sizes(c, view ? &*view : nullptr);
  if (c.is_directory()) report.other_files = files_below(c.path());
  report.tensor_count = c.tensors().size();
  report.file_count = c.shards().size();
  for (const Shard& s : c.shards()) {
    report.data_bytes += s.data_bytes();
    report.header_bytes += s.data_begin;
    report.other_files.erase(s.name);
  }
  Problems problems;
  const std::vector<Linear> linears = find_weight_modules(source, problems);
  for (std::string& line : problems.lines())
    report.findings.push_back({Severity::kNote, "unread-module", c.path().string(), std::move(line)});
  check_patterns(c, source, linears, only);
  const auto wanted = [&](const std::string& name) { return only.empty() || any_matches(only, name); };
  add_tensors(c, wanted, report);
  add_nvfp4_modules(source, sizes, wanted, stats ? std::max(jobs, 1) : 0, report);
  add_other_modules(
      source, linears,
      [&](const Linear& m) { return wanted(m.name) || wanted(source.tensors()[m.weight].name); }, report);
  std::stable_sort(report.tensors.begin(), report.tensors.end(),
                   [](auto& a, auto& b) { return a.name < b.name; });
  std::stable_sort(report.modules.begin(), report.modules.end(),
                   [](auto& a, auto& b) { return a.name < b.name; });
  std::stable_sort(report.other_modules.begin(), report.other_modules.end(),
                   [](auto& a, auto& b) { return a.name < b.name; });
  add_layout_sizes(source, sizes, report);
  return report;
}

}  // namespace twofour
