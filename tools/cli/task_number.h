#pragma once
#include <cstddef>
#include <string>

namespace twofour {

/// The task of a process, and the number of tasks.
struct TaskNumber {
  size_t index, count;
  std::string from;  ///< the source of the number: "--task", "SLURM_ARRAY_TASK_ID"
};

/// Finds the task of this process. `task` is the value of --task, "i/n" with i from 0. If it is empty, the
/// environment decides. It has the completion index of a Kubernetes Job, which needs `tasks`, the index in a
/// Slurm array, or the rank in a Slurm step. `tasks` is the number of tasks, or 0 if it is not given. If it
/// is given, the index in an array counts from 0, even if only a part of the array runs. Throws Error if
/// there is no task, and on impossible values.
TaskNumber find_task(const std::string& task, size_t tasks);

}  // namespace twofour
