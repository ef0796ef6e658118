#include "lib/jobs/tasks/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "formats/error.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/findings/problems.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/stopwatch.h"
#include "lib/jobs/convert/conversion.h"
#include "lib/jobs/tasks/split.h"
#include "lib/jobs/tasks/task_directory.h"
#include "lib/write/output/output_directory.h"
#include "lib/write/output/shard_record.h"
#include "lib/write/plan/config_texts.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The journal line for a complete artifact, from which only the tasks' own files remain to be removed.
constexpr const char* kMerged = "merged";

/// The last line of the journal. Empty if there is none.
std::string last_note(const fs::path& destination) {
  const JournalState state = journal_state(destination);
  if (state != JournalState::kOurs && state != JournalState::kMarked) return {};
  const Journal journal(destination, Sharing::kAlone);
  return journal.lines().empty() ? std::string() : journal.lines().back();
}

/// Reads the record of a file. Empty if there is none. Throws Error if it is not usable; the task of that
/// file must then run again.
std::optional<ShardRecord> read_record(const Plan& plan, const TaskFile& tasks, uint32_t file) {
  const std::string& name = plan.files[file].name;
  const std::string where = (tasks.destination / name).string();
  const auto text = read_task_record(tasks.destination, tasks, name);
  if (!text) return std::nullopt;
  ShardRecord record = parse_shard_record(where, plan, *text);
  if (record.file != file)
    throw Error(
        fmt::format("{}: expected its record, found that of {}", where, plan.files[record.file].name));
  return record;
}

/// Says which of the plan's files have no record, and which tasks have these files.
std::string text_of_missing(const PlannedSource& planned, const TaskFile& tasks,
                            const std::vector<uint32_t>& missing) {
  std::string text = fmt::format("{}: expected a record of the task that finished it, found none{}",
                                 (tasks.destination / planned.plan.files[missing[0]].name).string(),
                                 and_more(missing.size(), ", and none of {} more files"));
  const size_t count = noted_count(tasks.destination);
  if (count == 0) return text + "; no task has started";
  const TaskSplit split = split_tasks(planned.source, planned.plan, count);
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    const bool is_missing = std::any_of(split.files[i].begin(), split.files[i].end(), [&](uint32_t file) {
      return std::binary_search(missing.begin(), missing.end(), file);
    });
    if (is_missing) names.push_back(fmt::format("{}/{}", i, count));
  }
  constexpr size_t kShown = 8;
  const size_t all = names.size();
  names.resize(std::min(all, kShown));
  return fmt::format("{}; run {} {}{}", text, all == 1 ? "task" : "tasks", fmt::join(names, ", "),
                     and_more(all, " and {} more", kShown));
}

/// Throws Error if something that is not a file has the name of a weight file, since the finished file could
/// not get its name.
void check_places(const Plan& plan, const fs::path& destination, const std::vector<uint32_t>& files) {
  Problems problems;
  std::error_code error;
  for (const uint32_t f : files) {
    const fs::path path = destination / plan.files[f].name;
    const fs::file_status status = fs::symlink_status(path, error);
    if (!fs::exists(status) || fs::is_regular_file(status)) continue;
    problems.add(fmt::format("{}: expected a weight file or nothing of that name, found {}", path.string(),
                             fs::is_directory(status) ? "a directory" : "something else"));
  }
  problems.refuse();
}

/// Marks the files to write. These are the given files, except those that are finished and undamaged.
std::vector<bool> unfinished(const Plan& plan, const TaskFile& tasks, const std::vector<uint32_t>& files,
                             Progress& progress) {
  std::vector<bool> wanted(plan.files.size());
  std::vector<ShardRecord> records;
  for (const uint32_t f : files) {
    wanted[f] = true;
    try {
      auto record = read_record(plan, tasks, f);
      if (!record) continue;
      records.push_back(std::move(*record));
      progress.total += plan.files[f].data_bytes;
    } catch (const ReadError&) {
      throw;
    } catch (const Error&) {
    }
  }
  progress.phase = "checking existing files";
  const auto wrong = check_shards(tasks.destination, plan, records, progress);
  for (size_t i = 0; i < records.size(); ++i) {
    if (wrong[i].empty()) wanted[records[i].file] = false;
  }
  return wanted;
}

}  // namespace

TaskResult run_task(const PlannedSource& planned, const TaskFile& tasks, size_t index, size_t count,
                    const ConvertOptions& options, Progress& progress) {
  const Stopwatch watch;
  const Checkpoint& source = planned.source;
  const Plan& plan = planned.plan;
  const std::vector<uint32_t> files = split_tasks(source, plan, count).files.at(index);
  TaskDirectory directory(tasks);
  directory.note_count(count);
  check_places(plan, tasks.destination, files);
  const std::vector<bool> wanted = unfinished(plan, tasks, files, progress);
  TaskResult result;
  ConvertOptions with_kept = options;
  with_kept.kept = planned.kept.get();
  Conversion conversion(source, plan, with_kept, directory.own(), progress, wanted,
                        [&](ShardRecord&& record) {
                          directory.publish(plan.files[record.file].name, format_shard_record(plan, record));
                          ++result.files;
                          result.bytes_written += plan.files[record.file].size();
                        });
  progress.total += conversion.total_bytes();
  conversion.run();
  result.files_kept = files.size() - result.files;
  result.bytes_read = conversion.bytes_read();
  result.bytes_verified = conversion.bytes_verified();
  result.findings = conversion.io_findings();
  const Findings computed = source.computed_findings();
  result.findings.insert(result.findings.end(), computed.begin(), computed.end());
  result.seconds = watch.seconds();
  return result;
}

ConvertResult merge_tasks(const PlannedSource& planned, const TaskFile& tasks, Progress& progress) {
  const Checkpoint& source = planned.source;
  const Plan& plan = planned.plan;
  if (!last_note(tasks.destination).empty()) {
    throw Error(
        fmt::format("{}: expected a directory that tasks wrote, found one that another run left unfinished",
                    tasks.destination.string()));
  }
  OutputDirectory directory(tasks.destination, tasks.source, Existing::kResume);
  progress.phase = "reading records";
  std::vector<ShardRecord> records;
  std::set<std::string> names{kTasksFolder};
  Problems problems;
  std::vector<uint32_t> missing;
  for (uint32_t f = 0; f < plan.files.size(); ++f) {
    names.insert(plan.files[f].name);
    try {
      auto record = read_record(plan, tasks, f);
      if (!record) {
        missing.push_back(f);
        continue;
      }
      records.push_back(std::move(*record));
      open_shard(directory.path(), plan.files[f]);
    } catch (const Error& e) {
      problems.add(e.what());
    }
  }
  if (!missing.empty()) problems.add(text_of_missing(planned, tasks, missing));
  problems.refuse();
  check_task_files(directory.path());
  // Removes the files of a merge that was killed.
  directory.clear(artifact_files(plan), names);
  ConvertResult result = complete_artifact(source, plan, directory, std::move(records), progress);
  // A directory without a journal must not have the tasks' folder. A directory without the tasks' folder must
  // be recognized by this line.
  directory.note(kMerged);
  remove_task_files(directory.path());
  directory.finish();
  return result;
}

bool finish_merge(const fs::path& destination) {
  if (last_note(destination) != kMerged) return false;
  OutputDirectory directory(destination, {}, Existing::kResume);
  remove_task_files(destination);
  directory.finish();
  return true;
}

}  // namespace twofour
