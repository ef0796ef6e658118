#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "lib/convert/convert.h"
#include "lib/tasks/task_plan.h"

namespace twofour {

/// What one task did.
struct TaskResult {
  size_t files = 0, files_kept = 0;  ///< weight files written, and found finished and sound
  uint64_t bytes_read = 0, bytes_written = 0, bytes_verified = 0;
  double seconds = 0;
  Findings findings;  ///< how files passed, where it was not as asked
};

/// Writes the files of a shared conversion that a task is given (positions in Plan::files) but for those that
/// are finished already, which are read and compared with their hashes. Throws Error on what convert() throws
/// on, where the destination is not this plan's and where something that is no file has the name of one;
/// files that are finished by then stay.
TaskResult run_task(const PlannedSource& planned, const TaskFile& plan, const std::vector<uint32_t>& files,
                    const ConvertOptions& options, Progress& progress);

/// Completes a destination after all its tasks: compares their records and the files with the plan, then
/// writes what is not weights, the index and twofour.json. Weights are not read. Throws Error where a task is
/// at work, a weight file has no sound record or not the size and header planned, where records disagree and
/// where there is a file that no task writes. Killed at any moment, it can be called again, or
/// finish_merge().
ConvertResult merge_tasks(const PlannedSource& planned, const TaskFile& plan, Progress& progress);

/// Finishes a merge that was killed when it had only to take away what tasks kept. False where `destination`
/// is in no such state.
bool finish_merge(const std::filesystem::path& destination);

}  // namespace twofour
