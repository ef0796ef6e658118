#pragma once
#include <cstddef>
#include <string>

namespace twofour {

/// Which of how many tasks a process is.
struct TaskNumber {
  size_t index, count;
  std::string from;  ///< what said so: "--task", "SLURM_ARRAY_TASK_ID"
};

/// By the option --task, "i/n" with i from 0, if it is given; else by the environment: the completion index
/// of a Kubernetes Job, which needs `tasks`, the index in a Slurm array, or the rank in a Slurm step. `tasks`
/// is their number where it is given (else 0); an array's index then counts from 0 whatever part of the array
/// runs. Throws Error where nothing says it, and on what makes no sense.
TaskNumber find_task(const std::string& task, size_t tasks);

}  // namespace twofour
