#pragma once
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

#include "lib/jobs/tasks/task_plan.h"
#include "lib/write/output/journal.h"

namespace twofour {

/// The path of the task plan in a destination.
std::filesystem::path task_plan_in(const std::filesystem::path& destination);

/// The record that a task made of a finished weight file. Empty if there is none. Throws Error if it is
/// damaged or belongs to a different plan.
std::optional<std::string> read_task_record(const std::filesystem::path& destination, const TaskFile& plan,
                                            const std::string& file);

/// The number of tasks that the tasks of a destination noted, the largest if they disagree. 0 if none did.
size_t noted_count(const std::filesystem::path& destination);

/// Throws Error if a destination has files that are not the tasks' own. The Error names these files.
void check_task_files(const std::filesystem::path& destination);
/// Calls check_task_files(), then removes the tasks' own files from a destination.
void remove_task_files(const std::filesystem::path& destination);

/// A destination that several tasks write at the same time, on one machine or on many. The tasks share only
/// the file system. A file gets its name when it is complete and on disk; its record follows. So a task may
/// be killed at any moment. It may also run twice, even at the same time.
class TaskDirectory {
 public:
  /// Creates the directory, or enters it beside other tasks of the same plan. Throws Error if it belongs to
  /// anything else, and while it is being merged.
  explicit TaskDirectory(const TaskFile& plan);
  TaskDirectory(const TaskDirectory&) = delete;
  TaskDirectory& operator=(const TaskDirectory&) = delete;
  ~TaskDirectory();

  /// The folder of only this task. Files are written there before they are published. This object's
  /// destructor removes it.
  const std::filesystem::path& own() const { return own_; }
  /// Notes in how many tasks this one's command divides the files. merge names missing tasks by it.
  void note_count(size_t tasks);
  /// Gives a finished file in own() its name in the destination, and then stores its record.
  void publish(const std::string& file, const std::string& record);

 private:
  void join(const TaskFile& plan);

  std::filesystem::path path_, tasks_, own_;
  std::string id_;
  std::optional<Journal> journal_;  ///< holds a shared lock
};

}  // namespace twofour
