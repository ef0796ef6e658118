#pragma once
#include <cstdint>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/plan.h"

namespace twofour {

/// A plan's output files, dealt out to tasks that may run on different machines.
struct TaskSplit {
  std::vector<std::vector<uint32_t>> files;  ///< of each task, positions in Plan::files, ascending
  std::vector<uint64_t> bytes;               ///< of each task, read from the source and written
  uint64_t alone = 0;                        ///< bytes that one task would read and write
  uint64_t largest() const;                  ///< bytes of the largest task
  /// The largest task's bytes divided by the mean; 1 is perfect.
  double balance() const;
  /// Bytes of all tasks divided by those of one task alone: the cost of matrices with parts in two tasks'
  /// files, which both read.
  double overhead() const;
};

/// Deals the files of `plan` out to `tasks` tasks (one at least) of about equally many bytes read and
/// written. The same plan and count give the same split on any machine. Tasks may end up without files.
TaskSplit split_tasks(const Checkpoint& source, const Plan& plan, size_t tasks);

}  // namespace twofour
