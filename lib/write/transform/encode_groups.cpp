#include "lib/write/transform/encode_groups.h"

#include <algorithm>
#include <memory>
#include <mutex>

#include "lib/base/findings/problems.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/job_queue.h"

namespace twofour {

void encode_groups(const Checkpoint& source, const std::vector<GroupEncoding*>& groups, int jobs,
                   Compute compute, Progress& progress) {
  uint64_t largest = 1;
  for (const GroupEncoding* one : groups)
    largest = std::max(largest, one->group->worker_bytes() + source.reader_bytes());
  const uint64_t fit = std::max<uint64_t>(1, MemoryLimits{}.solving_buffers / largest);
  const int workers = static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(std::max(jobs, 1)), fit));
  compute.threads = std::min((std::max(jobs, 1) + workers - 1) / workers, kSolverThreads);
  JobQueue<GroupEncoding*> queue(groups);
  Problems problems;
  std::mutex mutex;
  const auto make_worker = [&] {
    const auto worker = std::make_shared<Worker>(source, compute);
    const auto encoder = std::make_shared<Encoder>(*worker);
    return [&, worker, encoder](GroupEncoding* const& one) {
      check_interrupt();
      const uint64_t before = encoder->bytes_read();
      one->results = encoder->encode(*one->group, one->write);
      progress.done += encoder->bytes_read() - before;
      const std::lock_guard lock(mutex);
      for (const EncodedResult& r : one->results) {
        for (const std::string& problem : r.problems) problems.add(problem);
      }
    };
  };
  queue.run(workers, make_worker, [] {});
  problems.refuse();
}

}  // namespace twofour
