#include "lib/jobs/convert/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/error.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/problems.h"
#include "lib/base/findings/version.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/base/io/links.h"
#include "lib/base/io/page_cache.h"
#include "lib/base/io/remote_file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/parallel.h"
#include "lib/base/threads/stopwatch.h"
#include "lib/jobs/convert/conversion.h"
#include "lib/jobs/convert/resume.h"
#include "lib/write/output/file_batch.h"
#include "lib/write/output/manifest_writer.h"
#include "lib/write/output/output_directory.h"
#include "lib/write/plan/config_texts.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// If there are more files than this, all are flushed together. Flushing a single file waits for the disk,
/// even if the file is small.
constexpr size_t kFlushedAlone = 32;

/// Copies the content of `in` by calls of write(at, piece).
template <class Write>
Hash128 copy_through(const InputFile& in, Write&& write) {
  Hasher hasher;
  const auto read = [&](uint64_t at, std::span<uint8_t> piece) { in.read(at, piece); };
  read_in_pieces(in.size(), 1u << 20, read, [&](uint64_t at, std::span<const uint8_t> piece) {
    write(at, piece);
    hasher.update(piece);
  });
  return hasher.digest();
}

Hash128 copy_flushed(const InputFile& in, const fs::path& to) {
  AtomicFile out(to);
  const Hash128 hash =
      copy_through(in, [&](uint64_t at, std::span<const uint8_t> piece) { out.write(at, piece); });
  out.commit();
  return hash;
}

Hash128 copy_unflushed(const InputFile& in, const fs::path& to) {
  UnflushedFile out(to);
  const Hash128 hash = copy_through(in, [&](uint64_t, std::span<const uint8_t> piece) { out.write(piece); });
  out.commit();
  return hash;
}

/// Copies files from a directory into one that is being written, on all threads, and returns the hash of
/// each. `names` are relative names. When this returns, all of them are on disk. A few files are flushed one
/// by one, many are flushed together. Throws Error if a file cannot be read or written.
std::map<std::string, Hash128> copy_files(const fs::path& from, const std::vector<std::string>& names,
                                          Links links, OutputDirectory& to) {
  std::vector<fs::path> paths;
  for (const std::string& name : names) paths.push_back(to.add(name));
  std::vector<Hash128> hashes(names.size());
  const bool alone = names.size() <= kFlushedAlone;
  parallel_for(names.size(), [&](size_t i) {
    check_interrupt();
    const InputFile in = open_below(from, from / names[i], links);
    hashes[i] = alone ? copy_flushed(in, paths[i]) : copy_unflushed(in, paths[i]);
  });
  // If the machine crashes before this point, the directory still has its journal. So files that are not on
  // disk never count as complete.
  if (!alone) flush_file_system(to.path());
  std::map<std::string, Hash128> copied;
  for (size_t i = 0; i < names.size(); ++i) copied[names[i]] = hashes[i];
  return copied;
}

/// Reads files back, on all threads and from the disk rather than the page cache. Throws Error if a file
/// differs from what was written. The Error names the first such file by name.
void verify_files(const fs::path& directory, const std::map<std::string, Hash128>& files) {
  std::vector<const std::pair<const std::string, Hash128>*> all;
  for (const auto& file : files) all.push_back(&file);
  parallel_for(all.size(), [&](size_t i) {
    check_interrupt();
    const auto& [name, expected] = *all[i];
    const InputFile file(directory / name);
    // All files are flushed. Dropping the pages makes reads come from the disk rather than the page cache.
    if (!is_in_memory(file.descriptor())) drop_pages(file.descriptor());
    const Hash128 found = hash_range(file, 0, file.size(), [](uint64_t) {});
    if (found == expected) return;
    throw Error(fmt::format("{}: expected hash {} as written, found {} when read back", file.path().string(),
                            expected.hex(), found.hex()));
  });
}

void report_folds(const std::vector<ModuleReport>& modules, Findings& findings) {
  for (const ModuleReport& m : modules) {
    if (!m.quality || m.quality->fold_energy == 0) continue;
    findings.push_back(
        {Severity::kWarning, "fold-loss", m.name,
         fmt::format(
             "rounding the folded block scales changed the affected weights by {:.3g} in relative norm",
             std::sqrt(m.quality->fold_error / m.quality->fold_energy))});
  }
}

bool has_changed(const Conversion& conversion) {
  try {
    conversion.check_inputs();
  } catch (const Error&) {
    return true;
  }
  return false;
}

/// Reports weights that became 0 since a producer's arithmetic has no scale for them.
void report_lost(const std::vector<ModuleReport>& results, const Recipe& recipe, Findings& findings) {
  uint64_t lost = 0;
  size_t matrices = 0;
  std::string first;
  for (const ModuleReport& one : results) {
    if (!one.encoded || one.encoded->lost == 0) continue;
    lost += one.encoded->lost;
    if (matrices++ == 0) first = one.name;
  }
  if (lost == 0) return;
  findings.push_back({Severity::kWarning, "weights-lost", first,
                      fmt::format("{} weights in {} become 0, these among them: compressed-tensors gives "
                                  "blocks of F16 weights below 2^-14 no scale; {} does",
                                  lost, counted(matrices, "matrix", "matrices"),
                                  recipe.rules[0].name(keys::kArithmetic, "modelopt"))});
}

/// Reports the findings of single matrices, and the comparison of matrices that have given scales.
void report_encoded(const std::vector<ModuleReport>& results, Findings& findings) {
  constexpr size_t kShown = 20;  // the manifest has all
  uint64_t bytes = 0, wrong = 0;
  size_t modules = 0;
  for (const ModuleReport& one : results) {
    if (!one.encoded) continue;
    const EncodedResult& r = *one.encoded;
    findings.insert(findings.end(), r.findings.begin(), r.findings.end());
    bytes += r.kept.bytes;
    wrong += r.kept.codes + r.kept.scales;
    if (r.kept.codes + r.kept.scales == 0 || ++modules > kShown) continue;
    findings.push_back(
        {Severity::kWarning, "not-returned", one.name,
         fmt::format("{} bytes of codes and {} block scales differ from the reference checkpoint's, {}",
                     r.kept.codes, r.kept.scales, r.kept.first)});
  }
  if (bytes == 0) return;
  findings.push_back(
      {wrong > 0 ? Severity::kWarning : Severity::kNote, "kept-global-scales",
       spelled(keys::kKeepGlobalScale, Author::kPrompt),
       fmt::format("{} of {} bytes of codes and block scales equal the reference checkpoint's{}",
                   bytes - wrong, bytes,
                   wrong == 0     ? ""
                   : modules == 1 ? ", 1 module differs"
                                  : fmt::format(", {} modules differ", modules))});
}

/// Writes the missing files of `directory`; the index and twofour.json come last. It does not call finish()
/// of the directory.
ConversionRecord write_artifact(const Checkpoint& source, const Plan& plan, const ConvertOptions& options,
                                OutputDirectory& directory, std::vector<ShardRecord>& records,
                                Progress& progress, ConvertResult& result) {
  std::map<std::string, Hash128> files;
  const auto write = [&](const std::string& name, const std::string& text) {
    write_text(directory.add(name), text);
    files[name] = hash_text(text);
  };
  std::vector<std::string> copied;
  for (const auto& [name, bytes] : plan.auxiliary_files) {
    copied.push_back(name);
  }
  files = copy_files(source.path(), copied, plan.recipe.links, directory);
  source.check_same_files();  // files that are read from now on are open
  if (options.kept != nullptr) options.kept->checkpoint().check_same_files();
  for (const auto& [name, text] : plan.config.texts) write(name, text);
  for (const OutputFile& file : plan.files) {
    directory.add(file.name);
    files[file.name] = hash_text(file.header);
  }
  std::vector<bool> wanted(plan.files.size(), true);
  for (const ShardRecord& record : records) {
    wanted[record.file] = false;
    ++result.files_kept;
    result.bytes_kept += plan.files[record.file].size();
  }
  Conversion conversion(source, plan, options, directory.path(), progress, wanted, [&](ShardRecord&& record) {
    directory.note(format_shard_record(plan, record));
    if (is_pinned(source)) directory.keep();  // otherwise no run could resume
    result.bytes_written += plan.files[record.file].size();
    records.push_back(std::move(record));
  });
  progress.total += conversion.total_bytes();
  try {
    conversion.run();
  } catch (const Error&) {
    // Output is useless if its source is bad or has changed.
    if (conversion.refused() || has_changed(conversion)) directory.discard();
    throw;
  }
  for (const Shard& shard : source.shards()) result.source_bytes += shard.file.size();
  result.bytes_read = conversion.bytes_read();
  result.bytes_verified = conversion.bytes_verified();
  for (const Findings& found : {conversion.io_findings(), source.computed_findings()}) {
    result.findings.insert(result.findings.end(), found.begin(), found.end());
  }
  ConversionRecord record = join_records(plan, records);
  progress.phase = "finishing";
  write(kIndexName, artifact_index(plan));
  if (!plan.readme.empty()) write(plan.readme, artifact_readme(source, plan, record));
  record.files = files;
  record.remote = remote_note(source.path());
  files[kManifestName] = write_manifest(directory.add(kManifestName), source, plan, record);
  if (options.verify) {
    for (const OutputFile& file : plan.files) files.erase(file.name);  // each was verified before
    verify_files(directory.path(), files);
  }
  return record;
}

/// Reports the result of each module, from the record of all files.
void report_modules(const Checkpoint& source, const Plan& plan, const ConversionRecord& record,
                    ConvertResult& result) {
  for (size_t t = 0; t < plan.transformations.size(); ++t) {
    std::vector<ModuleReport> made = plan.transformations[t]->report(source, record.result(t));
    std::move(made.begin(), made.end(), std::back_inserter(result.modules));
  }
  report_folds(result.modules, result.findings);
  report_encoded(result.modules, result.findings);
  report_lost(result.modules, plan.recipe, result.findings);
}

}  // namespace

std::filesystem::path given_path(const Checkpoint& checkpoint) {
  return checkpoint.is_directory() ? checkpoint.path() : checkpoint.path() / checkpoint.shards().front().name;
}

std::vector<PlannedFile> planned_files(const Checkpoint& source, const Plan& plan) {
  std::vector<PlannedFile> files;
  for (const auto& [name, bytes] : plan.auxiliary_files) files.push_back({name, bytes});
  for (const auto& [name, text] : plan.config.texts) files.push_back({name, text.size()});
  files.push_back({kIndexName, artifact_index(plan).size()});
  ConversionRecord record;
  record.remote = remote_note(source.path());
  record.outputs.resize(plan.tensors.size());
  for (size_t t = 0; t < plan.transformations.size(); ++t) {
    Json result = plan.transformations[t]->empty_result();
    if (!result.is_null()) record.results.emplace(static_cast<uint32_t>(t), std::move(result));
  }
  if (!plan.readme.empty()) files.push_back({plan.readme, artifact_readme(source, plan, record).size()});
  for (const OutputFile& f : plan.files) record.files[f.name] = {};
  for (const PlannedFile& f : files) record.files[f.name] = {};
  PlannedFile manifest{kManifestName, 0, false};
  format_manifest(source, plan, record, {version(), version_commit()},
                  [&](std::string_view text) { manifest.bytes += text.size(); });
  files.push_back(std::move(manifest));
  return files;
}

ConvertResult convert(const Checkpoint& source, const Plan& plan, const Destination& destination,
                      const ConvertOptions& options, Progress& progress) {
  const Stopwatch watch;
  const std::filesystem::path& path = destination.path();
  ConvertResult result;
  result.findings = plan.findings;
  if (destination.existing() == Existing::kResume && is_complete_output(path)) {
    result.was_complete = true;
    result.bytes_verified = verify_complete(path, source, plan, options.jobs, progress);
  } else {
    OutputDirectory directory(destination);
    std::vector<ShardRecord> records = begin_or_resume(directory, source, plan, options.kept, progress);
    const auto what_stays = [&] {
      return fmt::format("{}: {} of {} weight files are finished and kept; {} continues from there",
                         path.string(), records.size(), plan.files.size(), options::kResume);
    };
    try {
      ConversionRecord record = write_artifact(source, plan, options, directory, records, progress, result);
      if (options.before_end) options.before_end(progress);
      directory.finish();
      report_modules(source, plan, record, result);
    } catch (const Interrupted& e) {
      if (!directory.keeps()) throw;
      throw Interrupted(fmt::format("{}\n{}", e.what(), what_stays()));
    } catch (const Error& e) {
      if (!directory.keeps()) throw;
      std::vector<std::string> lines = lines_of(e);
      lines.push_back(what_stays());
      throw ErrorLines(std::move(lines));
    }
  }
  result.seconds = watch.seconds();
  return result;
}

ConvertResult convert(const Checkpoint& source, const Plan& plan, const std::filesystem::path& destination,
                      const ConvertOptions& options, Progress& progress) {
  if (options.kept != nullptr) check_apart_from_kept(destination, given_path(options.kept->checkpoint()));
  return convert(source, plan, Destination(destination, given_path(source), options.existing), options,
                 progress);
}

ConvertResult complete_artifact(const Checkpoint& source, const Plan& plan, OutputDirectory& directory,
                                std::vector<ShardRecord> records, Progress& progress) {
  const Stopwatch watch;
  ConvertResult result;
  result.findings = plan.findings;
  report_modules(source, plan, write_artifact(source, plan, {}, directory, records, progress, result),
                 result);
  result.seconds = watch.seconds();
  return result;
}

}  // namespace twofour
