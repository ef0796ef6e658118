#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "lib/base/threads/parallel.h"

namespace twofour {

/// Runs jobs in order on several threads. A job may add further jobs, which run before the waiting ones. The
/// first exception stops the queue, and run() throws it.
template <class Job>
class JobQueue {
 public:
  explicit JobQueue(std::vector<Job> jobs) : waiting_(jobs.begin(), jobs.end()) {}

  void add(Job job) {
    const std::lock_guard lock(mutex_);
    urgent_.push_back(std::move(job));
    changed_.notify_one();
  }

  /// Calls `make_worker()` on each thread, which returns the function that runs a job there. After the first
  /// exception, calls `on_error` once, before it joins the threads. `on_error` must wake jobs that wait for
  /// other jobs. Throws Error if the system starts fewer than `threads` threads.
  void run(int threads, const std::function<std::function<void(const Job&)>()>& make_worker,
           const std::function<void()>& on_error) {
    const auto note_error = [&] {
      const std::lock_guard lock(mutex_);
      if (!error_) {
        error_ = std::current_exception();
        on_error();
      }
      changed_.notify_all();
    };
    const auto loop = [&] {
      try {
        const auto work = make_worker();
        while (auto job = take()) {
          work(*job);
          release();
        }
      } catch (...) {
        note_error();
      }
    };
    run_on_threads(threads, loop, note_error);  // after the stop, threads begin no further job
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::optional<Job> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || !urgent_.empty() || !waiting_.empty() || running_ == 0; });
    auto& from = urgent_.empty() ? waiting_ : urgent_;
    if (error_ || from.empty()) {
      changed_.notify_all();
      return std::nullopt;
    }
    std::optional<Job> job(std::move(from.front()));
    from.pop_front();
    ++running_;
    return job;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> waiting_, urgent_;
  int running_ = 0;
  std::exception_ptr error_;
};

}  // namespace twofour
