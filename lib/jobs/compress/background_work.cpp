#include "lib/jobs/compress/background_work.h"

#include <utility>

#include "lib/base/threads/parallel.h"

namespace twofour {

void BackgroundWork::start(std::function<void()> work) {
  wait();
  thread_ = start_thread([this, work = std::move(work)] {
    try {
      work();
    } catch (...) {
      error_ = std::current_exception();
    }
  });
}

std::chrono::steady_clock::duration BackgroundWork::wait() {
  const auto begin = std::chrono::steady_clock::now();
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return std::chrono::steady_clock::now() - begin;
}

void BackgroundWork::abandon() {
  if (thread_.joinable()) thread_.join();
  error_ = nullptr;
}

}  // namespace twofour
