#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "lib/jobs/convert/convert.h"
#include "lib/jobs/tasks/task_plan.h"

namespace twofour {

/// The result of one task.
struct TaskResult {
  size_t files = 0, files_kept = 0;  ///< number of weight files that were written, and of files that were
                                     ///< found finished and undamaged
  uint64_t bytes_read = 0, bytes_written = 0, bytes_verified = 0;
  double seconds = 0;
  Findings findings;  ///< files that were not read or written in the requested way
};

/// Writes the files of a shared conversion that task `index` of `count`, at least one, is given by
/// split_tasks(). Files that are finished already are read and compared with their hashes instead. Throws
/// Error like convert(), if the destination belongs to another plan, and if something other than a file has
/// the name of one. Files that are finished by then stay.
TaskResult run_task(const PlannedSource& planned, const TaskFile& plan, size_t index, size_t count,
                    const ConvertOptions& options, Progress& progress);

/// Completes a destination after all its tasks. It compares their records and files with the plan, and then
/// writes the files without weights, the index and twofour.json. Weights are not read. Throws Error if a task
/// is running, if a weight file has no valid record or differs from its planned size and header, if records
/// disagree, and if there is a file that no task writes. The Error names the tasks that did not finish. If
/// the process is killed at any moment, this function or finish_merge() can be called again.
ConvertResult merge_tasks(const PlannedSource& planned, const TaskFile& plan, Progress& progress);

/// Finishes a merge that was killed while it removed the tasks' own files. Returns false if `destination` is
/// not in that state.
bool finish_merge(const std::filesystem::path& destination);

}  // namespace twofour
