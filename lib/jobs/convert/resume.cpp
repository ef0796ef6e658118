#include "lib/jobs/convert/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>

#include "formats/error.h"
#include "lib/base/findings/finding.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/problems.h"
#include "lib/base/findings/version.h"
#include "lib/prove/validate/checks.h"
#include "lib/prove/validate/validate.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/write/plan/config_texts.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

// The entry of a file. It includes ctime, which changes whenever the content changes. A modification time can
// be set back; ctime cannot.
Json file_entry(const InputFile& file) {
  return {{"bytes", file.size()}, {"modified", file.modified()}, {"ctime", file.status_changed()}};
}

/// The entry of the weight files of a checkpoint.
Json weights_entry(const Checkpoint& checkpoint) {
  Json files = Json::object();
  for (const Shard& s : checkpoint.shards()) {
    Json& entry = files[s.name] = file_entry(s.file);
    entry["header"] = s.header_hash.hex();
  }
  return files;
}

Json find_or_null(const Json& json, const std::string& key) {
  const auto it = json.find(key);
  return it == json.end() ? Json(nullptr) : *it;
}

std::string shown(const Json& json) {
  constexpr size_t kShown = 80;
  const std::string text = json.is_null() ? "none" : json_line(json);
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

struct Change {
  std::string where;
  Json then, now;
};

/// The first place where two documents differ. Keys of the first document come before keys that only the
/// second document has.
std::optional<Change> first_change(const Json& then, const Json& now, const std::string& where) {
  if (then == now) return std::nullopt;
  if (then.is_array() && now.is_array() && then.size() == now.size()) {
    for (size_t i = 0; i < then.size(); ++i) {
      const std::string place = then.size() == 1 ? where : fmt::format("{}: {}", where, i);
      if (auto change = first_change(then.at(i), now.at(i), place)) return change;
    }
  }
  if (!then.is_object() || !now.is_object()) return Change{where, then, now};
  const auto below = [&](const std::string& key) {
    return first_change(find_or_null(then, key), find_or_null(now, key),
                        where.empty() ? key : where + ": " + key);
  };
  for (const Json* document : {&then, &now}) {
    for (const auto& [key, value] : document->items()) {
      if (auto change = below(key)) return change;
    }
  }
  return std::nullopt;  // both have the same keys in different order
}

/// The part of a fingerprint that a finished artifact also stores.
Json lasting_fingerprint(const Recipe& recipe, const std::vector<Manifest::SourceFile>& files) {
  Json source = Json::object();
  for (const auto& f : files) source[f.name] = {{"bytes", f.bytes}, {"header", f.header.hex()}};
  return {{"recipe", recipe_to_json(recipe)}, {"source", std::move(source)}};
}

/// Checks that planning read the same global scales as the run that made the artifact. They decide folding.
void check_stored_bits(const std::string& where, const std::vector<uint32_t>& then, const Checkpoint& source,
                       const Plan& plan) {
  size_t at = 0;
  for (const auto& transformation : plan.transformations) {
    for (const auto& [tensor, bits] : transformation->stored_scales()) {
      const bool is_known = at < then.size();
      if (!is_known || (bits && then[at] != *bits)) {
        const std::string name = source.where(tensor);
        const Json before = is_known ? Json(std::bit_cast<float>(then[at])) : Json(nullptr);
        check_fingerprint(where, Json::object({{name, before}}),
                          Json::object({{name, bits ? Json(std::bit_cast<float>(*bits)) : Json("another")}}));
      }
      ++at;
    }
  }
}

/// Throws Error on a directory that has files but an empty journal.
void refuse_without_journal(const fs::path& directory) {
  Problems problems;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename() == kJournalName) continue;
    problems.add(fmt::format(
        "{}: cannot resume: the journal is empty, so it is unknown which run wrote {}; move it away first",
        directory.string(), json_quote_short(entry.path().filename().string())));
  }
  problems.refuse();
}

/// True if a journal line is the line of a run. Lines of synth, of tasks and of their merge are not.
bool is_fingerprint(const std::string& line) { return line.starts_with('{'); }

}  // namespace

Json fingerprint(const Checkpoint& source, const Plan& plan, const ReferenceCheckpoint* kept) {
  Json files = weights_entry(source);
  if (source.is_directory()) {
    std::set<std::string> others{kIndexName, kManifestName, "config.json", "hf_quant_config.json"};
    for (const auto& [name, bytes] : plan.auxiliary_files) others.insert(name);
    for (const Shard& s : source.shards()) others.erase(s.name);
    // operator[] would search all names for each file.
    Json::Object& entries = files.items();
    for (const std::string& name : others) {
      std::error_code error;
      if (fs::exists(source.path() / name, error))
        entries.emplace_back(name, file_entry(InputFile(source.path() / name)));
    }
  }
  Json json = {{"tool", {{"version", version()}, {"commit", version_commit()}}},
               {"recipe", recipe_to_json(plan.recipe)},
               {"source", std::move(files)}};
  if (plan.recipe.edit.kind == Edit::Kind::kRepair) json["repair"] = source.source_note();
  if (kept != nullptr) json["kept"] = weights_entry(kept->checkpoint());
  return json;
}

bool is_pinned(const Checkpoint& source) {
  return std::all_of(source.shards().begin(), source.shards().end(),
                     [](const Shard& s) { return s.file.is_pinned(); });
}

void check_pinned(const Checkpoint& source) {
  if (is_pinned(source)) return;
  throw Error(fmt::format(
      "{}: expected a server that sends ETag or Last-Modified, by which another run recognizes unchanged "
      "weight files, found neither; download the checkpoint first, or convert it in one run with {}",
      source.path().string(), options::kForce));
}

void check_fingerprint(const std::string& where, const Json& then, const Json& now,
                       const std::string& advice) {
  const auto change = first_change(then, now, "");
  if (!change) return;
  throw Error(
      fmt::format("{}: expected the same source, recipe and tool as before, found {} changed: "
                  "{} before, {} now; {}",
                  where, change->where, shown(change->then), shown(change->now), advice));
}

std::vector<ShardRecord> begin_or_resume(OutputDirectory& directory, const Checkpoint& source,
                                         const Plan& plan, const ReferenceCheckpoint* kept,
                                         Progress& progress) {
  const Json now = fingerprint(source, plan, kept);
  const std::string where = directory.path().string();
  const std::vector<std::string>& lines = directory.journal();
  if (!lines.empty() && lines.front() == kSynthNote) {
    throw Error(
        fmt::format("{}: expected an unfinished conversion, found an unfinished synth; {} replaces it", where,
                    options::kForce));
  }
  std::error_code error;
  if (fs::exists(directory.path() / kTasksFolder, error) ||
      (!lines.empty() && !is_fingerprint(lines.front()))) {
    throw Error(
        fmt::format("{}: expected an unfinished single run, found an unfinished plan; its tasks continue it "
                    "and merge completes it, {} replaces it",
                    where, options::kForce));
  }
  if (lines.empty()) {
    refuse_without_journal(directory.path());
    directory.note(json_line(now));
    return {};
  }
  const std::string journal = (directory.path() / kJournalName).string();
  check_fingerprint(where, Json::parse(lines.front()), now);
  check_pinned(source);
  std::map<uint32_t, ShardRecord> last;  // if an earlier resume found a file damaged, the file was written
                                         // again
  for (size_t i = 1; i < lines.size(); ++i) {
    ShardRecord record = parse_shard_record(journal, plan, lines[i]);
    last.insert_or_assign(record.file, std::move(record));
  }
  std::vector<ShardRecord> records, sound;
  for (auto& [file, record] : last) {
    progress.total += plan.files[file].data_bytes;
    records.push_back(std::move(record));
  }
  progress.phase = "checking existing files";
  const std::vector<std::string> wrong = check_shards(directory.path(), plan, records, progress);
  std::set<std::string> names;
  for (size_t i = 0; i < records.size(); ++i) {
    if (!wrong[i].empty()) continue;
    names.insert(plan.files[records[i].file].name);
    sound.push_back(std::move(records[i]));
  }
  directory.clear(artifact_files(plan), names);
  return sound;
}

void take_absent_settings(const fs::path& artifact, Recipe& recipe) {
  const auto lacks = [](const Rule& rule) { return !rule.shrink && rule.scale_search < 0; };
  if (!is_complete_output(artifact)) return;
  const Checkpoint complete = Checkpoint::open(artifact);
  const Recipe before = read_manifest(artifact / kManifestName, complete.tensors().size()).recipe;
  if (before.readme == Readme::kUnstated) recipe.readme = Readme::kUnstated;
  const std::vector<Rule>& then = before.rules;
  const bool solved = std::any_of(then.begin(), then.end(), [](const Rule& r) { return r.has_statistics(); });
  if (!solved || !std::all_of(then.begin(), then.end(), lacks)) return;
  for (Rule& rule : recipe.rules) rule.keeps_absent = lacks(rule);
}

uint64_t verify_complete(const fs::path& artifact, const Checkpoint& source, const Plan& plan, int jobs,
                         Progress& progress) {
  const Checkpoint complete = Checkpoint::open(artifact);
  const Manifest manifest = read_manifest(artifact / kManifestName, complete.tensors().size());
  std::vector<Manifest::SourceFile> files;
  for (const Shard& s : source.shards()) files.push_back({s.name, s.file.size(), s.header_hash});
  check_fingerprint(artifact.string(), lasting_fingerprint(manifest.recipe, manifest.sources),
                    lasting_fingerprint(plan.recipe, files));
  check_stored_bits(artifact.string(), manifest.raw_bits, source, plan);
  ValidateOptions options;
  options.jobs = jobs;
  ValidateReport report = validate(artifact, options, progress);
  check_files(complete, source, plan, manifest, report);
  if (!report.differences.empty()) {
    const Finding& first = report.differences.front();
    throw Error(
        fmt::format("{}: expected the complete artifact that follows from source and recipe, found {}, the "
                    "first: {}: {}; {} replaces it",
                    artifact.string(), counted(report.differences.size(), "difference"), first.where,
                    first.message, options::kForce));
  }
  complete.check_same_files();
  source.check_same_files();
  return report.bytes;
}

}  // namespace twofour
