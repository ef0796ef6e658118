#pragma once
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "formats/error.h"

namespace twofour {

/// Runs `f` on a thread of its own. Throws Error if the system cannot start a thread. A limit on processes
/// also counts threads.
template <class F>
std::jthread start_thread(F&& f) {
  try {
    return std::jthread(std::forward<F>(f));
  } catch (const std::system_error& e) {
    throw Error(fmt::format(
        "threads: expected the system to start another, found that it cannot ({}); use a smaller -j",
        e.code().message()));
  }
}

/// Runs `loop` on `threads` threads, one of which is the caller's, and waits for all. `loop` must not throw.
/// If the system starts too few threads, calls `stop`, which must end the running loops, and throws Error.
template <class Loop, class Stop>
void run_on_threads(int threads, const Loop& loop, const Stop& stop) {
  std::vector<std::jthread> pool;
  try {
    for (int i = 1; i < threads; ++i) pool.push_back(start_thread(loop));
  } catch (...) {
    stop();
    throw;
  }
  loop();
}

/// While this object lives, OpenMP loops that its thread starts run only on that thread.
class SingleThreaded {
 public:
  SingleThreaded() { omp_set_num_threads(1); }
  ~SingleThreaded() { omp_set_num_threads(before_); }
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  int before_ = omp_get_max_threads();
};

/// Calls work(i) for every i < count on as many threads as OpenMP would use. A thread takes the next i as
/// soon as it is free. Each thread calls `make_worker()` once, which returns its `work`. Makes all calls,
/// then throws the exception of the failed call with the lowest i, which is the same for any number of
/// threads. Throws Error if the system starts too few threads. OpenMP's runtime would end the program.
template <class MakeWorker>
void parallel_workers(size_t count, MakeWorker&& make_worker) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  int64_t failed = INT64_MAX;
  const auto note_failure = [&](int64_t i) {
    const std::lock_guard lock(mutex);
    if (i < failed) {
      failed = i;
      error = std::current_exception();
    }
  };
  const auto loop = [&] {
    std::optional<decltype(make_worker())> work;
    try {
      work.emplace(make_worker());
    } catch (...) {
      return note_failure(-1);
    }
    for (size_t i = next++; i < count; i = next++) {
      try {
        (*work)(i);
      } catch (...) {
        note_failure(static_cast<int64_t>(i));
      }
    }
  };
  const auto threads = std::min<size_t>(count, static_cast<size_t>(omp_get_max_threads()));
  if (threads < 2) {
    loop();
  } else {
    const auto alone = [&] {
      const SingleThreaded guard;
      loop();
    };
    run_on_threads(static_cast<int>(threads), alone, [&] { next = count; });
  }
  if (error) std::rethrow_exception(error);
}

/// Calls f(i) for every i < count like parallel_workers(), for an `f` that needs no state of its thread.
template <class F>
void parallel_for(size_t count, F&& f) {
  parallel_workers(count, [&] { return [&](size_t i) { f(i); }; });
}

}  // namespace twofour
