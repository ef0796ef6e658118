#pragma once
#include <cstdint>
#include <exception>

namespace twofour {

/// Calls f(i) for i < count on all of OpenMP's threads, each as soon as one is free. Nothing may throw out of
/// such a region, so all calls are made, and then what the first that failed threw is thrown: the same for
/// any number of threads.
template <class F>
void parallel_for(size_t count, F&& f) {
  std::exception_ptr error;
  const auto end = static_cast<int64_t>(count);
  int64_t failed = end;
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < end; ++i) {
    try {
      f(static_cast<size_t>(i));
    } catch (...) {
#pragma omp critical
      if (i < failed) {
        failed = i;
        error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace twofour
