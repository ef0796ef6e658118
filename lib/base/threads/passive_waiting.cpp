#include "lib/base/threads/passive_waiting.h"

#include <condition_variable>
#include <mutex>
#include <stop_token>

#include "lib/base/threads/parallel.h"

namespace twofour {
namespace {

/// Keeps a team of two threads until `stop` is requested.
void own_team(const std::stop_token& stop) {
  int threads = 0;
#pragma omp parallel num_threads(2) reduction(+ : threads)
  threads += 1;
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  stopped.wait(lock, stop, [] { return false; });
}

}  // namespace

PassiveWaiting::PassiveWaiting()
    : owner_(start_thread([](const std::stop_token& stop) { own_team(stop); })) {}

}  // namespace twofour
