#include "lib/prove/validate/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/base/io/file.h"
#include "lib/prove/expected/expected_readme.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/loader_lookup.h"
#include "lib/source/linears/linears.h"
#include "lib/write/output/manifest_writer.h"
#include "lib/write/plan/config_texts.h"

namespace twofour {

namespace fs = std::filesystem;

void differ(ValidateReport& report, const char* id, std::string where, std::string message) {
  report.differences.push_back({Severity::kError, id, std::move(where), std::move(message)});
}

Hash128 hash_tensor(const Checkpoint& c, size_t tensor, uint64_t begin, uint64_t bytes, Progress& progress) {
  Hasher hasher;
  const auto read = [&](uint64_t at, std::span<uint8_t> piece) { c.read(tensor, begin + at, piece); };
  read_in_pieces(bytes, 1u << 20, read, [&](uint64_t, std::span<const uint8_t> piece) {
    hasher.update(piece);
    progress.done += piece.size();
  });
  return hasher.digest();
}

void check_names(const Checkpoint& artifact, const Manifest& manifest, ValidateReport& report) {
  for (const auto& [name, output] : manifest.outputs) {
    if (!artifact.find(name))
      differ(report, "missing-tensor", name, "listed in twofour.json, found in no file");
  }
  for (const Finding& f : artifact.findings()) {
    // An artifact may have the incomplete modules of its source. Other findings concern the artifact's own
    // index and files.
    // A repair copies weight files that it cannot judge, and lists them.
    const bool is_kept = f.id == "unindexed-file" && manifest.recipe.edit.kind == Edit::Kind::kRepair &&
                         manifest.files.contains(f.where);
    if (f.id != "incomplete-module" && !is_kept) differ(report, f.id.c_str(), f.where, f.message);
  }
}

namespace {

/// A part of a line, around the byte at `at`.
std::string excerpt(std::string_view text, size_t at) {
  constexpr size_t kBefore = 40, kLength = 80;
  const size_t newline = text.rfind('\n', at == 0 ? 0 : at - 1);
  const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
  const size_t begin = std::max(line, at < kBefore ? 0 : at - kBefore);
  const std::string_view rest = text.substr(std::min(begin, text.size()), kLength);
  return std::string(rest.substr(0, rest.find('\n')));
}

void check_readme(const Checkpoint& artifact, const Manifest& manifest, ValidateReport& report) {
  const std::string& name = manifest.readme;
  if (name.empty()) return;
  if (name != "README.md" && name != "TWOFOUR.md")
    return differ(report, "readme", kManifestName,
                  fmt::format("expected README.md or TWOFOUR.md as the description of the artifact, found {}",
                              json_quote_short(name)));
  if (is_absent(artifact.path() / name)) return;  // a missing file, which is reported
  const InputFile file(artifact.path() / name);
  const std::string expected = expected_readme(artifact, manifest);
  std::string found(std::min<uint64_t>(file.size(), expected.size() + 1), '\0');
  file.read(0, {reinterpret_cast<uint8_t*>(found.data()), found.size()});
  if (found == expected) return;
  const auto at = static_cast<size_t>(
      std::mismatch(expected.begin(), expected.end(), found.begin(), found.end()).first - expected.begin());
  const auto line =
      1 + std::count(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  differ(report, "readme", name,
         fmt::format("line {}: expected ...{}..., which follows from twofour.json and config, found ...{}...",
                     line, excerpt(expected, at), excerpt(found, at)));
}

}  // namespace

void check_listed_files(const Checkpoint& artifact, const Manifest& manifest, ValidateReport& report) {
  std::map<std::string, Hash128> found;
  for (const Shard& s : artifact.shards()) found[s.name] = s.header_hash;
  for (const auto& entry : fs::recursive_directory_iterator(artifact.path())) {
    const std::string name = entry.path().lexically_relative(artifact.path()).string();
    if (entry.is_regular_file() && name != kManifestName && !found.count(name))
      found[name] = hash_file(entry.path());
  }
  for (const auto& [name, hash] : manifest.files) {
    const auto it = found.find(name);
    if (it == found.end()) {
      differ(report, "missing-file", name, "listed in twofour.json, found none");
    } else if (it->second != hash) {
      differ(report, "file", name,
             fmt::format("expected {} (twofour.json), found {}", hash.hex(), it->second.hex()));
    }
  }
  for (const auto& [name, hash] : found) {
    if (!manifest.files.count(name)) differ(report, "extra-file", name, "expected no such file, found one");
  }
  if (manifest.integrity_error.empty()) check_readme(artifact, manifest, report);
}

void check_files(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                 const Manifest& manifest, ValidateReport& report) {
  for (const OutputFile& file : plan.files) {
    const auto it = std::find_if(artifact.shards().begin(), artifact.shards().end(),
                                 [&](auto& s) { return s.name == file.name; });
    if (it == artifact.shards().end()) {
      differ(report, "missing-file", file.name, "expected it (the plan), found none");
    } else if (it->header_hash != hash_text(file.header)) {
      differ(report, "header", file.name,
             "expected the header that follows from source and recipe, found another");
    }
  }
  const std::set<std::string> expected = artifact_files(plan);
  for (const auto& [name, hash] : manifest.files) {
    if (expected.count(name)) continue;
    differ(report, "extra-file", name,
           "unexpected file: listed in twofour.json, but this source and recipe do not produce it");
  }
  const auto check_text = [&](const char* name, const std::string& text) {
    std::error_code error;
    if (!fs::exists(artifact.path() / name, error)) {
      differ(report, "missing-file", name, "expected in the artifact, found none");
    } else if (const InputFile file(artifact.path() / name);
               file.size() != text.size() || read_text(file.path(), text.size()) != text) {
      differ(report, "file", name, "expected the text that follows from source and recipe, found another");
    }
  };
  const auto count = [](const Checkpoint& c) {
    size_t tensors = 0;
    for (const Shard& shard : c.shards()) tensors += shard.tensor_count;
    return tensors;
  };
  const std::string readme = expected_readme_name(source.path(), count(source), manifest.recipe);
  if (manifest.readme != readme) {
    const auto shown = [](const std::string& name) { return name.empty() ? "none" : name; };
    differ(
        report, "readme", kManifestName,
        fmt::format("expected {} as the description of the artifact, which follows from source and recipe, "
                    "found {}",
                    shown(readme), shown(manifest.readme)));
  }
  check_text(kIndexName, artifact_index(plan));
  for (const auto& [name, text] : plan.config.texts) check_text(name.c_str(), text);
  for (const auto& [name, bytes] : plan.auxiliary_files) {
    std::error_code error;
    if (!fs::exists(artifact.path() / name, error)) {
      differ(report, "missing-file", name, "expected a copy of the source's file, found none");
    } else if (!same_contents(source.path() / name, artifact.path() / name)) {
      differ(report, "file", name, "expected a copy of the source's file, found other contents");
    }
  }
}

void check_manifest(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                    const Manifest& manifest, std::map<uint32_t, Json> results, Progress& progress,
                    ValidateReport& report) {
  progress.phase = "manifest";
  if (manifest.format < kFirstDerivedFormat) {
    report.notes.push_back({Severity::kNote, "older-manifest", kManifestName,
                            fmt::format("has format {}, older than {}: its hashes and recipe were compared "
                                        "with the artifact, its text was not derived again",
                                        manifest.format, kFirstDerivedFormat)});
    return;
  }
  ConversionRecord record;
  // Tensors and files were compared with these hashes before.
  for (const OutputTensor& t : plan.tensors) record.outputs.push_back(manifest.outputs.at(t.info.name).hash);
  record.files = manifest.files;
  record.remote = manifest.remote;
  record.results = std::move(results);
  const InputFile file(artifact.path() / kManifestName);
  uint64_t position = 0;
  bool differs = false;
  const auto compare = [&](std::string_view expected) {
    if (differs || expected.empty()) return;
    std::string found(std::min<uint64_t>(expected.size(), file.size() - position), '\0');
    file.read(position, {reinterpret_cast<uint8_t*>(found.data()), found.size()});
    if (found != expected) {
      differs = true;
      const auto at = static_cast<size_t>(
          std::mismatch(found.begin(), found.end(), expected.begin(), expected.end()).first - found.begin());
      differ(report, "manifest", kManifestName,
             fmt::format("byte {}: expected ...{}..., found ...{}...", position + at, excerpt(expected, at),
                         excerpt(found, at)));
    }
    position += found.size();
  };
  format_manifest(source, plan, record, {manifest.version, manifest.commit, manifest.format}, compare);
  if (!differs && position < file.size()) {
    differ(report, "manifest", kManifestName,
           fmt::format("expected {} bytes, found {}", position, file.size()));
  }
}

namespace {

/// Modules that engines read in a different format from the tensors' format. Limits of engines do not count.
std::vector<LookupFinding> find_conflicts(const Checkpoint& c) {
  std::vector<LookupFinding> conflicts;
  if (holds_layout(c)) return conflicts;
  Problems problems;
  std::vector<LoadedModule> modules;
  for (const Linear& m : find_weight_modules(c, problems)) modules.push_back(loaded_module(c, m));
  if (!problems.empty()) return conflicts;
  const auto entry = quantization_entry(c.config());
  const LoadedConfig config = loaded_config(c.config(), {entry ? entry->value : Json(), c.hf_quant_config()});
  for (LookupFinding& f : check_lookups(config, modules)) {
    if (!f.is_limit && !f.is_split) conflicts.push_back(std::move(f));
  }
  return conflicts;
}

}  // namespace

void check_engines(const Checkpoint& artifact, const Checkpoint* source, ValidateReport& report) {
  const std::vector<LookupFinding> conflicts = find_conflicts(artifact);
  if (conflicts.empty()) return;
  // A conversion keeps errors that its source's config has.
  const bool is_ours = source != nullptr && find_conflicts(*source).empty();
  for (const LookupFinding& f : conflicts) {
    const std::string where = f.module.empty() ? "config.json" : f.module;
    if (is_ours) {
      differ(report, "engine-lookup", where, f.message);
    } else {
      report.notes.push_back({Severity::kWarning, "engine-lookup", where, f.message});
    }
  }
}

}  // namespace twofour
