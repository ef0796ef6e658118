#pragma once
#include <cstdint>
#include <exception>
#include <optional>

namespace twofour {

/// Calls work(i) for i < count on all of OpenMP's threads, each as soon as one is free; `make_worker()` gives
/// each thread a `work` of its own. Nothing may throw out of such a region, so all calls are made, and then
/// what the first that failed threw is thrown: the same for any number of threads.
template <class MakeWorker>
void parallel_workers(size_t count, MakeWorker&& make_worker) {
  std::exception_ptr error;
  const auto end = static_cast<int64_t>(count);
  int64_t failed = end;
  const auto note_failure = [&](int64_t i) {
#pragma omp critical
    if (i < failed) {
      failed = i;
      error = std::current_exception();
    }
  };
#pragma omp parallel
  {
    std::optional<decltype(make_worker())> work;
    try {
      work.emplace(make_worker());
    } catch (...) {
      note_failure(-1);
    }
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < end; ++i) {
      if (!work) continue;
      try {
        (*work)(static_cast<size_t>(i));
      } catch (...) {
        note_failure(i);
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

/// The same for calls of f(i) that share nothing of a thread's.
template <class F>
void parallel_for(size_t count, F&& f) {
  parallel_workers(count, [&] { return [&](size_t i) { f(i); }; });
}

}  // namespace twofour
