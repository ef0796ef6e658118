#include "lib/run/runtime/c_guard.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <thread>

#include "lib/base/findings/error_kinds.h"
#include "lib/base/findings/shown_url.h"
#include "lib/run/runtime/twofour.h"

namespace twofour {
namespace {

thread_local std::string last_error;
thread_local ErrorKind last_kind = ErrorKind::kOther;

/// Calls that run now, on all threads.
std::atomic<int> calls{0};
/// True in a process that fork() made while a call ran.
bool is_forked_in_call = false;
/// True if this thread has made a call.
thread_local bool has_called = false;
/// True if this thread had made a call when fork() copied it to this process.
thread_local bool is_copied = false;

/// Runs on the only thread of the child.
void after_fork_in_child() {
  is_copied = has_called;
  is_forked_in_call = is_forked_in_call || calls.load() > 0;
  calls = 0;
}
[[maybe_unused]] const int fork_is_watched = ::pthread_atfork(nullptr, nullptr, after_fork_in_child);

class Call {
 public:
  Call() {
    ++calls;
    has_called = true;
  }
  ~Call() { --calls; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

void check_fork() {
  if (is_forked_in_call)
    throw Error(
        "expected a process that was not forked during a call of this library, found one that was, in which "
        "locks may stay taken; start processes another way, in Python by multiprocessing's spawn");
}

void note(ErrorKind kind, const char* message) {
  last_kind = kind;
  try {
    last_error = with_shown_urls(message);
  } catch (...) {
    last_error.clear();
  }
}

}  // namespace

int guarded_here(const std::function<void()>& work) noexcept {
  const Call call;
  try {
    check_fork();
    work();
    return TWOFOUR_OK;
  } catch (const std::bad_alloc&) {
    last_kind = ErrorKind::kOther;
    last_error = "out of memory";  // short enough to need no allocation
  } catch (const Error& e) {
    note(kind_of(e), e.what());
  } catch (const std::exception& e) {
    note(ErrorKind::kOther, e.what());
  } catch (...) {
    note(ErrorKind::kOther, "unknown error");
  }
  return TWOFOUR_ERROR;
}

int guarded_on(Device device, const std::function<void()>& work) noexcept {
  if (!is_copied || device == Device::cuda) return guarded_here(work);
  return guarded_here([&] {
    std::exception_ptr failure;
    std::thread([&] {
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
    }).join();
    if (failure) std::rethrow_exception(failure);
  });
}

int guarded(const std::function<void()>& work) noexcept { return guarded_on(Device::cpu, work); }

Device device_of(int device, int& index) {
  const bool has_index = device >= TWOFOUR_CUDA_DEVICE(0);
  if (device != TWOFOUR_CPU && device != TWOFOUR_CUDA && !has_index) {
    throw Error(fmt::format(
        "device: expected TWOFOUR_CPU, TWOFOUR_CUDA or TWOFOUR_CUDA_DEVICE(index), found {}", device));
  }
  if (has_index) index = device - TWOFOUR_CUDA_DEVICE(0);
  return device == TWOFOUR_CPU ? Device::cpu : Device::cuda;
}

char* copied(const std::string& text) {
  auto* const to = static_cast<char*>(std::malloc(text.size() + 1));
  if (to == nullptr) throw std::bad_alloc();
  std::memcpy(to, text.c_str(), text.size() + 1);
  return to;
}

}  // namespace twofour

using namespace twofour;

const char* twofour_last_error() { return last_error.c_str(); }

int twofour_last_error_kind() {
  switch (last_kind) {
    case ErrorKind::kNotFound:
      return TWOFOUR_NOT_FOUND;
    case ErrorKind::kExists:
      return TWOFOUR_EXISTS;
    case ErrorKind::kArgument:
      return TWOFOUR_ARGUMENT;
    case ErrorKind::kOther:
      break;
  }
  return TWOFOUR_OTHER;
}

void twofour_free(char* text) { std::free(text); }
