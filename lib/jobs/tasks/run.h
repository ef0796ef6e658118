#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "lib/jobs/convert/convert.h"
#include "lib/jobs/tasks/task_plan.h"

namespace twofour {

/// The result of one task.
struct TaskResult {
  size_t files = 0, files_kept = 0;  ///< weight files written, and found finished and sound
  uint64_t bytes_read = 0, bytes_written = 0, bytes_verified = 0;
  double seconds = 0;
  Findings findings;  ///< on files that were not read or written as asked
};

/// Writes the files of a shared conversion that a task is given (positions in Plan::files). Files that are
/// finished already are read and compared with their hashes instead. Throws Error like convert(), if the
/// destination is not this plan's, and if something that is no file has the name of one; files that are
/// finished by then stay.
TaskResult run_task(const PlannedSource& planned, const TaskFile& plan, const std::vector<uint32_t>& files,
                    const ConvertOptions& options, Progress& progress);

/// Completes a destination after all its tasks: compares their records and the files with the plan, then
/// writes the files without weights, the index and twofour.json. Weights are not read. Throws Error if a task
/// is running, if a weight file has no sound record or not its planned size and header, if records disagree,
/// and if there is a file that no task writes. If it is killed at any moment, it can be called again, or
/// finish_merge().
ConvertResult merge_tasks(const PlannedSource& planned, const TaskFile& plan, Progress& progress);

/// Finishes a merge that was killed while removing the tasks' own files. False if `destination` is not in
/// that state.
bool finish_merge(const std::filesystem::path& destination);

}  // namespace twofour
