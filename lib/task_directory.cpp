#include "lib/task_directory.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "formats/error.h"
#include "lib/file.h"
#include "lib/output_directory.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlanName = "plan.json";
/// A plan holds a line or two for each file of the source.
constexpr uint64_t kMaxPlan = 256u << 20;
/// A record holds a hash for each tensor and slice.
constexpr uint64_t kMaxRecord = 1u << 30;

fs::path record_in(const fs::path& destination, const std::string& file) {
  return destination / kTasksFolder / (file + ".json");
}

void rename_or_throw(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) throw Error(fmt::format("{}: cannot rename into place: {}", to.string(), error.message()));
}

}  // namespace

fs::path task_plan_in(const fs::path& destination) { return destination / kTasksFolder / kPlanName; }

std::optional<std::string> read_task_record(const fs::path& destination, const TaskPlan& plan,
                                            const std::string& file) {
  const fs::path path = record_in(destination, file);
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(path, error))) return std::nullopt;
  const std::string text = read_text(path, kMaxRecord);
  const size_t line = text.find('\n');
  if (line != plan.id().hex().size()) return std::nullopt;  // damaged
  if (text.substr(0, line) != plan.id().hex()) {
    throw Error(fmt::format("{}: expected a record of plan {}, found one of another plan", path.string(),
                            plan.id().hex()));
  }
  return text.substr(line + 1);
}

void remove_task_files(const fs::path& destination) {
  std::error_code error;
  fs::remove_all(destination / kTasksFolder, error);
  if (error) {
    throw Error(fmt::format("{}: cannot remove: {}", (destination / kTasksFolder).string(), error.message()));
  }
}

TaskDirectory::TaskDirectory(const TaskPlan& plan)
    : path_(plan.destination), tasks_(path_ / kTasksFolder), id_(plan.id().hex()) {
  OutputDirectory::check(path_, plan.source, Existing::kResume);
  if (is_complete_output(path_)) {
    throw Error(fmt::format("{}: expected a directory that tasks are to write, found a complete artifact",
                            path_.string()));
  }
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) throw Error(fmt::format("{}: cannot create: {}", path_.string(), error.message()));
  marker_ = lock_marker(path_, LOCK_SH);
  try {
    join(plan);
  } catch (...) {
    ::close(marker_);
    throw;
  }
}

void TaskDirectory::join(const TaskPlan& plan) {
  std::error_code error;
  if (fs::file_size(path_ / kUnfinishedMarker, error) > 0) {
    throw Error(fmt::format(
        "{}: expected a directory that tasks are to write, found what another run left unfinished",
        path_.string()));
  }
  if (fs::is_symlink(fs::symlink_status(tasks_, error))) {
    throw Error(fmt::format("{}: expected a folder of our own, found a symbolic link", tasks_.string()));
  }
  fs::create_directory(tasks_, error);
  if (error) throw Error(fmt::format("{}: cannot create: {}", tasks_.string(), error.message()));
  std::string own = (tasks_ / "task-XXXXXX").string();
  if (::mkdtemp(own.data()) == nullptr) {
    throw Error(fmt::format("{}: cannot create: {}", own, system_message(errno)));
  }
  own_ = own;
  try {
    const fs::path shared = task_plan_in(path_);
    if (!fs::exists(shared, error)) {
      // Of tasks that get here together each writes the same.
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
  ::close(marker_);
}

void TaskDirectory::publish(const std::string& file, const std::string& record) {
  // The record must not be on disk before the name is.
  rename_or_throw(own_ / file, path_ / file);
  sync_directory(path_);
  const fs::path to = record_in(path_, file);
  write_text(own_ / to.filename(), fmt::format("{}\n{}", id_, record));
  rename_or_throw(own_ / to.filename(), to);
  sync_directory(tasks_);
}

}  // namespace twofour
