#include "lib/jobs/tasks/task_directory.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "formats/error.h"
#include "formats/module_names.h"
#include "lib/base/findings/problems.h"
#include "lib/base/io/file.h"
#include "lib/write/output/destination.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlanName = "plan.json";
constexpr const char* kRecordEnd = ".json";
constexpr const char* kTaskFolder = "task-";  ///< the name of a task's own folder begins with this
constexpr const char* kCount = "tasks-";      ///< the name of a note of the number of tasks begins with this
/// The largest number of tasks.
constexpr int64_t kMostTasks = 1'000'000;
/// The largest size of a plan in bytes. A plan has one or two lines per file of the source.
constexpr uint64_t kMaxPlan = 256u << 20;
/// The largest size of a record in bytes. A record has a hash per tensor and slice.
constexpr uint64_t kMaxRecord = 1u << 30;

fs::path record_in(const fs::path& destination, const std::string& file) {
  return destination / kTasksFolder / (file + kRecordEnd);
}

void rename_or_throw(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) throw Error(fmt::format("{}: cannot rename into place: {}", to.string(), error.message()));
}

}  // namespace

fs::path task_plan_in(const fs::path& destination) { return destination / kTasksFolder / kPlanName; }

std::optional<std::string> read_task_record(const fs::path& destination, const TaskFile& plan,
                                            const std::string& file) {
  const fs::path path = record_in(destination, file);
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return std::nullopt;
  const std::string line = read_text(path, kMaxRecord);
  const std::string_view text = text_of_line(line);
  const std::string id = plan.id().hex();
  if (text.size() <= id.size()) {
    throw Error(fmt::format("{}: expected the record that a task wrote, found a damaged one", path.string()));
  }
  if (text.substr(0, id.size()) != id) {
    throw Error(
        fmt::format("{}: expected a record of plan {}, found one of another plan", path.string(), id));
  }
  return std::string(text.substr(id.size()));
}

size_t noted_count(const fs::path& destination) {
  size_t most = 0;
  std::error_code error;
  for (fs::directory_iterator it(destination / kTasksFolder, error), end; !error && it != end;
       it.increment(error)) {
    std::string name = it->path().filename().string();
    if (!name.starts_with(kCount) || !name.ends_with(kRecordEnd)) continue;
    name = name.substr(0, name.size() - std::strlen(kRecordEnd)).substr(std::strlen(kCount));
    if (const auto count = parse_index(name); count && *count <= kMostTasks)
      most = std::max(most, static_cast<size_t>(*count));
  }
  return most;
}

void check_task_files(const fs::path& destination) {
  const fs::path tasks = destination / kTasksFolder;
  Problems problems;
  std::error_code error;
  for (fs::directory_iterator it(tasks, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string(), whole = name_of_temporary(name);
    const fs::file_status status = it->symlink_status(error);
    const bool ours = fs::is_directory(status) ? name.starts_with(kTaskFolder)
                                               : fs::is_regular_file(status) &&
                                                     (whole.empty() ? name : whole).ends_with(kRecordEnd);
    if (ours) continue;
    problems.add(fmt::format("{}: expected only files of tasks, found something else", it->path().string()));
  }
  if (error == std::errc::no_such_file_or_directory) return;
  if (error) throw Error(fmt::format("{}: cannot list: {}", tasks.string(), error.message()));
  problems.refuse();
}

void remove_task_files(const fs::path& destination) {
  check_task_files(destination);
  const fs::path tasks = destination / kTasksFolder;
  std::error_code error;
  fs::remove_all(tasks, error);
  if (error) throw Error(fmt::format("{}: cannot remove: {}", tasks.string(), error.message()));
}

TaskDirectory::TaskDirectory(const TaskFile& plan)
    : path_(plan.destination), tasks_(path_ / kTasksFolder), id_(plan.id().hex()) {
  if (!plan.kept.empty()) check_apart_from_kept(path_, plan.kept);
  check_destination(path_, plan.source, Existing::kResume);
  if (is_complete_output(path_)) {
    throw Error(fmt::format("{}: expected a directory for tasks, found a complete artifact", path_.string()));
  }
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) throw Error(fmt::format("{}: cannot create: {}", path_.string(), error.message()));
  journal_.emplace(path_, Sharing::kTogether);
  join(plan);
}

void TaskDirectory::join(const TaskFile& plan) {
  std::error_code error;
  bool of_tasks = fs::exists(tasks_, error);
  if (!of_tasks) {
    of_tasks = true;
    for (const auto& entry : fs::directory_iterator(path_))
      of_tasks = of_tasks && entry.path().filename() == kJournalName;
    // The files may belong to a task that entered meanwhile. It makes the folder of tasks first.
    of_tasks = of_tasks || fs::exists(tasks_, error);
  }
  if (!of_tasks || !journal_->is_current() || !journal_->lines().empty()) {
    throw Error(fmt::format("{}: expected a directory for tasks, found one that another run left unfinished",
                            path_.string()));
  }
  journal_->begin();
  if (fs::is_symlink(fs::symlink_status(tasks_, error))) {
    throw Error(
        fmt::format("{}: expected a folder that twofour created, found a symbolic link", tasks_.string()));
  }
  fs::create_directory(tasks_, error);
  if (error) throw Error(fmt::format("{}: cannot create: {}", tasks_.string(), error.message()));
  std::string own = (tasks_ / (std::string(kTaskFolder) + "XXXXXX")).string();
  if (::mkdtemp(own.data()) == nullptr) {
    throw Error(fmt::format("{}: cannot create: {}", own, system_message(errno)));
  }
  own_ = own;
  try {
    const fs::path shared = task_plan_in(path_);
    if (!fs::exists(shared, error)) {
      // Tasks that reach this at the same time write the same text.
      write_text(own_ / kPlanName, format_task_plan(plan));
      rename_or_throw(own_ / kPlanName, shared);
      sync_directory(tasks_);
    }
    check_same_plan(path_.string(), parse_task_plan(shared.string(), read_text(shared, kMaxPlan)), plan);
  } catch (...) {
    fs::remove_all(own_, error);
    throw;
  }
}

TaskDirectory::~TaskDirectory() {
  std::error_code ignored;
  fs::remove_all(own_, ignored);
}

void TaskDirectory::note_count(size_t tasks) {
  const std::string name = fmt::format("{}{}{}", kCount, tasks, kRecordEnd);
  write_text(own_ / name, "{}\n");
  rename_or_throw(own_ / name, tasks_ / name);
}

void TaskDirectory::publish(const std::string& file, const std::string& record) {
  // The name of the file must be on disk before the record.
  rename_or_throw(own_ / file, path_ / file);
  sync_directory(path_);
  const fs::path to = record_in(path_, file);
  write_text(own_ / to.filename(), seal_line(id_ + record));
  rename_or_throw(own_ / to.filename(), to);
  sync_directory(tasks_);
}

}  // namespace twofour
