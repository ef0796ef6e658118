#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "lib/jobs/tasks/task_plan.h"
#include "lib/write/output/journal.h"

namespace twofour {

/// The path of the tasks' plan in a destination.
std::filesystem::path task_plan_in(const std::filesystem::path& destination);

/// A task's record of a finished weight file; nothing if there is none. Throws Error if it is damaged or of
/// another plan.
std::optional<std::string> read_task_record(const std::filesystem::path& destination, const TaskFile& plan,
                                            const std::string& file);

/// Throws Error naming the files in a destination that are not the tasks' own.
void check_task_files(const std::filesystem::path& destination);
/// Removes the tasks' own files from a destination, after that check.
void remove_task_files(const std::filesystem::path& destination);

/// A destination that several tasks write at the same time, on one machine or on many: they share only the
/// file system. A file appears under its name when it is complete and on disk, and its record after that. So
/// a task may be killed at any moment, and may run twice, even at the same time.
class TaskDirectory {
 public:
  /// Creates the directory, or joins tasks of the same plan. Throws Error if it belongs to anything else, and
  /// while it is merged.
  explicit TaskDirectory(const TaskFile& plan);
  TaskDirectory(const TaskDirectory&) = delete;
  TaskDirectory& operator=(const TaskDirectory&) = delete;
  ~TaskDirectory();

  /// A folder of this task alone, in which files are written before they are published. It is removed with
  /// this object.
  const std::filesystem::path& own() const { return own_; }
  /// Gives a finished file of own() its name in the destination and notes its record.
  void publish(const std::string& file, const std::string& record);

 private:
  void join(const TaskFile& plan);

  std::filesystem::path path_, tasks_, own_;
  std::string id_;
  std::optional<Journal> journal_;  ///< holds a shared lock
};

}  // namespace twofour
