#include "lib/convert/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lib/checkpoint/quantization_config.h"
#include "lib/convert/conversion.h"
#include "lib/error_lines.h"
#include "lib/threads/interrupt.h"
#include "lib/artifact/manifest.h"
#include "lib/io/page_cache.h"
#include "lib/read_in_pieces.h"
#include "lib/convert/resume.h"
#include "lib/threads/stopwatch.h"
#include "lib/findings/version.h"

namespace twofour {
namespace {

/// Copies a file and says what was copied.
Hash128 copy_sidecar(const std::filesystem::path& from, const std::filesystem::path& to) {
  const InputFile in(from);
  AtomicFile out(to);
  Hasher hasher;
  const auto read = [&](uint64_t at, std::span<uint8_t> piece) { in.read(at, piece); };
  read_in_pieces(in.size(), 1u << 20, read, [&](uint64_t at, std::span<const uint8_t> piece) {
    out.write(at, piece);
    hasher.update(piece);
  });
  out.commit();
  return hasher.digest();
}

/// Reads back the files that hold no weights. Throws Error on those that are not as they were written.
void verify_files(const std::filesystem::path& directory, const std::map<std::string, Hash128>& files) {
  for (const auto& [name, expected] : files) {
    const InputFile file(directory / name);
    // All of them are flushed: the disk is to answer, and not the page cache.
    if (!is_in_memory(file.descriptor())) drop_pages(file.descriptor());
    const Hash128 found = hash_range(file, 0, file.size(), [](uint64_t) {});
    if (found == expected) continue;
    throw Error(fmt::format("{}: expected hash {} as written, found {} when read back", file.path().string(),
                            expected.hex(), found.hex()));
  }
}

void report_folds(const Plan& plan, const std::vector<Quality>& quality, Findings& findings) {
  for (size_t t = 0; t < quality.size(); ++t) {
    if (quality[t].fold_energy == 0) continue;
    findings.push_back(
        {Severity::kWarning, "fold-loss", plan.targets[t].name,
         fmt::format(
             "rounding the folded block scales changed the weights concerned by {:.3g} in relative norm",
             std::sqrt(quality[t].fold_error / quality[t].fold_energy))});
  }
}

/// What names a checkpoint: its directory, or its one file.
std::filesystem::path given_path(const Checkpoint& checkpoint) {
  return checkpoint.is_directory() ? checkpoint.path() : checkpoint.path() / checkpoint.shards().front().name;
}

bool has_changed(const Checkpoint& source) {
  try {
    for (const Shard& shard : source.shards()) shard.file.check_unchanged();
  } catch (const Error&) {
    return true;
  }
  return false;
}

/// What single matrices had to tell, and how those with kept scales compare.
void report_encoded(const Plan& plan, const std::vector<EncodedResult>& results, Findings& findings) {
  constexpr size_t kShown = 20;  // the manifest has all
  uint64_t bytes = 0, wrong = 0;
  size_t modules = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const EncodedResult& r = results[i];
    findings.insert(findings.end(), r.findings.begin(), r.findings.end());
    bytes += r.kept.bytes;
    wrong += r.kept.codes + r.kept.scales;
    if (r.kept.codes + r.kept.scales == 0 || ++modules > kShown) continue;
    findings.push_back({Severity::kWarning, "not-returned", plan.matrices[i].name,
                        fmt::format("{} bytes of codes and {} block scales are not the kept checkpoint's, {}",
                                    r.kept.codes, r.kept.scales, r.kept.first)});
  }
  if (bytes == 0) return;
  findings.push_back(
      {wrong > 0 ? Severity::kWarning : Severity::kNote, "kept-global-scales", "--keep-global-scale",
       fmt::format("{} of {} bytes of codes and block scales are the kept checkpoint's{}", bytes - wrong,
                   bytes, wrong > 0 ? fmt::format(", {} modules differ", modules) : "")});
}

/// Writes what is missing in `directory`, index and twofour.json last. What remains is to finish it.
ConversionRecord write_artifact(const Checkpoint& source, const Plan& plan, const ConvertOptions& options,
                                OutputDirectory& directory, std::vector<ShardRecord>& records,
                                Progress& progress, ConvertResult& result) {
  std::map<std::string, Hash128> files;
  const auto write = [&](const std::string& name, const std::string& text) {
    write_text(directory.add(name), text);
    files[name] = hash_text(text);
  };
  for (const auto& [name, bytes] : plan.sidecars) {
    if (is_copied_sidecar(source, plan, name))
      files[name] = copy_sidecar(source.path() / name, directory.add(name));
  }
  for (const auto& [name, text] : artifact_texts(source, plan)) write(name, text);
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
    directory.keep();
    result.bytes_written += plan.files[record.file].size();
    records.push_back(std::move(record));
  });
  progress.total += conversion.total_bytes();
  try {
    conversion.run();
    for (const Shard& shard : source.shards()) shard.file.check_unchanged();
  } catch (const Error&) {
    // What was made of a bad source, or of one that changed, is of no use to anybody.
    if (conversion.refused() || has_changed(source)) directory.discard();
    throw;
  }
  result.bytes_read = conversion.bytes_read();
  result.bytes_verified = conversion.bytes_verified();
  const Findings io = conversion.io_findings();
  result.findings.insert(result.findings.end(), io.begin(), io.end());
  ConversionRecord record = join_records(source, plan, records);
  progress.phase = "finishing";
  write(kIndexName, artifact_index(plan));
  record.files = files;
  files[kManifestName] = write_manifest(directory.add(kManifestName), source, plan, record);
  if (options.verify) {
    for (const OutputFile& file : plan.files) files.erase(file.name);  // verified when each was finished
    verify_files(directory.path(), files);
  }
  return record;
}

/// What became of each module, from the record of all files.
void report_modules(const Checkpoint& source, const Plan& plan, ConversionRecord record,
                    ConvertResult& result) {
  for (const Target& t : plan.targets) result.modules.push_back({t.name, t.shape});
  for (const ModulePlan& p : plan.modules) {
    const Nvfp4Module& m = source.nvfp4_modules()[p.module];
    result.modules.push_back({m.name, {m.e, m.n, m.k}});
  }
  for (const EncodedMatrix& m : plan.matrices) result.modules.push_back({m.name, {1, m.rows, m.k}});
  report_folds(plan, record.quality, result.findings);
  report_encoded(plan, record.matrices, result.findings);
  result.encoded = std::move(record.matrices);
  result.quality = std::move(record.quality);
}

}  // namespace

std::vector<PlannedFile> planned_files(const Checkpoint& source, const Plan& plan) {
  std::vector<PlannedFile> files;
  for (const auto& [name, bytes] : plan.sidecars) {
    if (is_copied_sidecar(source, plan, name)) files.push_back({name, bytes});
  }
  for (const auto& [name, text] : artifact_texts(source, plan)) files.push_back({name, text.size()});
  files.push_back({kIndexName, artifact_index(plan).size()});
  ConversionRecord record;
  record.outputs.resize(plan.tensors.size());
  for (const Target& t : plan.targets) record.slices.emplace_back(t.sources.size());
  record.modules.resize(plan.modules.size());
  record.quality.resize(plan.targets.size() + plan.modules.size());
  record.matrices.resize(plan.matrices.size());
  for (const OutputFile& f : plan.files) record.files[f.name] = {};
  for (const PlannedFile& f : files) record.files[f.name] = {};
  PlannedFile manifest{kManifestName, 0, false};
  format_manifest(source, plan, record, {version(), version_commit()},
                  [&](std::string_view text) { manifest.bytes += text.size(); });
  files.push_back(std::move(manifest));
  return files;
}

ConvertResult convert(const Checkpoint& source, const Plan& plan, const std::filesystem::path& destination,
                      const ConvertOptions& options, Progress& progress) {
  const Stopwatch watch;
  if (options.kept != nullptr)
    OutputDirectory::check_apart_from_kept(destination, given_path(options.kept->checkpoint()));
  ConvertResult result;
  result.findings = plan.findings;
  if (options.existing == Existing::kResume && is_complete_output(destination)) {
    result.was_complete = true;
    result.bytes_verified = verify_complete(destination, source, plan, options.jobs, progress);
  } else {
    OutputDirectory directory(destination, given_path(source), options.existing);
    std::vector<ShardRecord> records = begin_or_resume(directory, source, plan, options.kept, progress);
    const auto what_stays = [&] {
      return fmt::format("{}: {} of {} weight files are finished and stay; --resume goes on from there",
                         destination.string(), records.size(), plan.files.size());
    };
    try {
      ConversionRecord record = write_artifact(source, plan, options, directory, records, progress, result);
      directory.finish();
      report_modules(source, plan, std::move(record), result);
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
