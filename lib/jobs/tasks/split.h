#pragma once
#include <cstdint>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/plan.h"

namespace twofour {

/// The output files of a plan, divided among tasks that may run on different machines.
struct TaskSplit {
  std::vector<std::vector<uint32_t>> files;  ///< for each task, ascending indices in Plan::files
  std::vector<uint64_t> bytes;               ///< for each task, the bytes that it reads from the source plus
                                             ///< the bytes that it writes
  uint64_t alone = 0;                        ///< bytes that a single task would read and write
  uint64_t largest() const;                  ///< bytes of the largest task
  /// The bytes of the largest task divided by the mean of all tasks. The best value is 1.
  double balance() const;
  /// The bytes of all tasks divided by the bytes of a single task. It is above 1 if parts of a matrix are in
  /// files of two tasks, since both read the matrix.
  double overhead() const;
};

/// Divides the files of `plan` among `tasks` tasks, at least one, so that they read and write about equally
/// many bytes. The same plan and number of tasks give the same result on any machine. Some tasks may get no
/// files.
TaskSplit split_tasks(const Checkpoint& source, const Plan& plan, size_t tasks);

}  // namespace twofour
