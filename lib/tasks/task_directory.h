#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "lib/output/journal.h"
#include "lib/tasks/task_plan.h"

namespace twofour {

/// Where in a destination the plan of its tasks is kept.
std::filesystem::path task_plan_in(const std::filesystem::path& destination);

/// What is known of a finished weight file, as a task recorded it; nothing where there is no record. Throws
/// Error where it is damaged or of another plan.
std::optional<std::string> read_task_record(const std::filesystem::path& destination, const TaskFile& plan,
                                            const std::string& file);

/// Throws Error naming what there is beside what tasks keep in a destination.
void check_task_files(const std::filesystem::path& destination);
/// Takes away what tasks kept in a destination beside its files, after that check.
void remove_task_files(const std::filesystem::path& destination);

/// A destination that several tasks write at a time, on one machine or on many: they share nothing but the
/// file system. What a task writes appears under its name when it is whole and on disk, and only then its
/// record; so a task may be killed at any moment, and run twice, even at once.
class TaskDirectory {
 public:
  /// Creates the directory, or joins tasks of the same plan. Throws Error where it is anything else's, and
  /// while it is merged.
  explicit TaskDirectory(const TaskFile& plan);
  TaskDirectory(const TaskDirectory&) = delete;
  TaskDirectory& operator=(const TaskDirectory&) = delete;
  ~TaskDirectory();

  /// A folder of this task alone, in which files are written before they are published. It goes with this.
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
