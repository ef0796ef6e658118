#include "lib/task_run.h"

#include <fmt/format.h>

#include <optional>
#include <set>

#include "formats/error.h"
#include "lib/conversion.h"
#include "lib/output_directory.h"
#include "lib/problems.h"
#include "lib/shard_record.h"
#include "lib/stopwatch.h"
#include "lib/task_directory.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

std::optional<ShardRecord> find_record(const Plan& plan, const TaskPlan& tasks, uint32_t file) {
  const std::string& name = plan.files[file].name;
  const auto text = read_task_record(tasks.destination, tasks, name);
  if (!text) return std::nullopt;
  // A record that cannot be read is none: its task runs again.
  try {
    ShardRecord record = parse_shard_record(name, plan, *text);
    if (record.file == file) return record;
  } catch (const Error&) {
  }
  return std::nullopt;
}

/// Marks what is to be written: the files given, without those that are finished and sound.
std::vector<bool> unfinished(const Plan& plan, const TaskPlan& tasks, const std::vector<uint32_t>& files,
                             Progress& progress) {
  std::vector<bool> wanted(plan.files.size());
  std::vector<ShardRecord> records;
  for (const uint32_t f : files) {
    wanted[f] = true;
    if (auto record = find_record(plan, tasks, f)) {
      progress.total += plan.files[f].data_bytes;
      records.push_back(std::move(*record));
    }
  }
  progress.phase = "checking what is there";
  const auto wrong = check_shards(tasks.destination, plan, records, progress);
  for (size_t i = 0; i < records.size(); ++i) {
    if (wrong[i].empty()) wanted[records[i].file] = false;
  }
  return wanted;
}

}  // namespace

TaskResult run_task(const PlannedSource& planned, const TaskPlan& tasks, const std::vector<uint32_t>& files,
                    const ConvertOptions& options, Progress& progress) {
  const Stopwatch watch;
  const auto& [source, plan] = planned;
  TaskDirectory directory(tasks);
  const std::vector<bool> wanted = unfinished(plan, tasks, files, progress);
  TaskResult result;
  Conversion conversion(source, plan, options, directory.own(), progress, wanted, [&](ShardRecord&& record) {
    directory.publish(plan.files[record.file].name, format_shard_record(plan, record));
    ++result.files;
    result.bytes_written += plan.files[record.file].size();
  });
  progress.total += conversion.total_bytes();
  conversion.run();
  for (const Shard& shard : source.shards()) shard.file.check_unchanged();
  result.files_kept = files.size() - result.files;
  result.bytes_read = conversion.bytes_read();
  result.bytes_verified = conversion.bytes_verified();
  result.seconds = watch.seconds();
  return result;
}

ConvertResult merge_tasks(const PlannedSource& planned, const TaskPlan& tasks, Progress& progress) {
  const auto& [source, plan] = planned;
  OutputDirectory directory(tasks.destination, tasks.source, Existing::kResume);
  progress.phase = "reading records";
  std::vector<ShardRecord> records;
  std::set<std::string> names{kTasksFolder};
  Problems problems;
  for (uint32_t f = 0; f < plan.files.size(); ++f) {
    const std::string& name = plan.files[f].name;
    names.insert(name);
    if (auto record = find_record(plan, tasks, f)) {
      open_shard(directory.path(), plan.files[f]);
      records.push_back(std::move(*record));
    } else {
      problems.add(fmt::format("{}: expected a task to have finished it, found no record of it",
                               (directory.path() / name).string()));
    }
  }
  problems.refuse();
  // Of tasks that were killed, and of a merge that was.
  directory.keep_only(names);
  ConvertResult result = complete_artifact(source, plan, directory, std::move(records), progress);
  remove_task_files(directory.path());
  return result;
}

}  // namespace twofour
