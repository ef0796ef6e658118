#include "lib/base/threads/passive_waiting.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

namespace twofour {
namespace {

/// Processor time in seconds that OpenMP's threads take while their first one sleeps for 1 s in all.
double seconds_beside_sleep() {
  const std::clock_t begin = std::clock();
  for (int i = 0; i < 500; ++i) {
#pragma omp parallel num_threads(omp_get_num_procs())
    static_cast<void>(omp_get_thread_num());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

TEST_CASE("OpenMP's threads sleep while there is no work for them") {
  if (omp_get_num_procs() < 2 || std::getenv("OMP_WAIT_POLICY") != nullptr ||
      std::getenv("GOMP_SPINCOUNT") != nullptr) {
    std::puts("skipped: one processor, or an environment that decides how threads wait");
    return;
  }
  const PassiveWaiting waiting;
  seconds_beside_sleep();
  CHECK(seconds_beside_sleep() < 0.3 * (omp_get_num_procs() - 1));
}

}  // namespace
}  // namespace twofour
