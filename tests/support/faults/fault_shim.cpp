// Loaded before the C library into a run of the program: makes one of its calls fail, or ends the program
// there. TWOFOUR_FAULT is "CALL ACTION N": the Nth CALL (pread, pwrite, fsync, rename, unlink or fallocate,
// each with what else comes to the same, or pthread_create, whose error is EAGAIN) does what ACTION says:
// EIO, ENOSPC or "kill", which is SIGKILL before anything is done. "pwrite flip N" writes another first byte.
// "pread short 0" and "pwrite short 0" let every call transfer only a part. Of pread, TWOFOUR_FAULT_FILE
// leaves only calls on files of that name. "dlopen short 0" opens no library. "open run N" runs the shell
// command TWOFOUR_FAULT_COMMAND before the Nth opening of a file of the name in TWOFOUR_FAULT_FILE.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

enum class Fault { kNone, kFail, kShort, kFlip, kRun };

Fault fault_of(const char* call) {
  static std::atomic<long> count;
  const char* text = std::getenv("TWOFOUR_FAULT");
  char wanted[16], action[16];
  long at = 0;
  if (text == nullptr || std::sscanf(text, "%15s %15s %ld", wanted, action, &at) != 3) return Fault::kNone;
  if (std::strcmp(call, wanted) != 0) return Fault::kNone;
  if (std::strcmp(action, "short") == 0) return Fault::kShort;
  if (++count != at) return Fault::kNone;
  if (std::strcmp(action, "flip") == 0) return Fault::kFlip;
  if (std::strcmp(action, "run") == 0) return Fault::kRun;
  if (std::strcmp(action, "kill") == 0) kill(getpid(), SIGKILL);
  errno = std::strcmp(action, "EIO") == 0 ? EIO : ENOSPC;
  return Fault::kFail;
}

/// True if a path ends in the name that faults are for.
bool is_meant(const char* path) {
  const char* wanted = std::getenv("TWOFOUR_FAULT_FILE");
  const char* slash = std::strrchr(path, '/');
  return wanted != nullptr && std::strcmp(slash != nullptr ? slash + 1 : path, wanted) == 0;
}

/// True if a descriptor's file has the name that faults are for.
bool is_meant(int fd) {
  const char* wanted = std::getenv("TWOFOUR_FAULT_FILE");
  if (wanted == nullptr) return true;
  char link[64], path[4096];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length < 0) return false;
  path[length] = 0;
  return is_meant(path);
}

/// Before a file is opened.
void before_open(const char* path) {
  if (!is_meant(path) || fault_of("open") != Fault::kRun) return;
  unsetenv("LD_PRELOAD");
  if (std::system(std::getenv("TWOFOUR_FAULT_COMMAND")) != 0) std::abort();
}

bool fails(const char* call) { return fault_of(call) == Fault::kFail; }

/// One byte less than half: pieces that end where nobody expects it.
size_t part_of(size_t bytes) { return bytes > 3 ? bytes / 2 - 1 : bytes; }

/// The same, where a file open with O_DIRECT transfers whole blocks only.
size_t part_of(int fd, size_t bytes) {
  constexpr size_t kBlock = 4096;
  if ((fcntl(fd, F_GETFL) & O_DIRECT) == 0) return part_of(bytes);
  return std::max(kBlock, part_of(bytes) / kBlock * kBlock);
}

/// The C library's own function.
template <class F>
F* next(const char* name, F*) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}
#define NEXT(name) next(#name, &name)

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  before_open(path);
  return NEXT(open)(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return open(path, flags, mode);
}

ssize_t pread(int fd, void* to, size_t bytes, off_t at) {
  const Fault f = is_meant(fd) ? fault_of("pread") : Fault::kNone;
  return f == Fault::kFail ? -1 : NEXT(pread)(fd, to, f == Fault::kShort ? part_of(fd, bytes) : bytes, at);
}
ssize_t pread64(int fd, void* to, size_t bytes, off64_t at) { return pread(fd, to, bytes, at); }

ssize_t pwrite(int fd, const void* from, size_t bytes, off_t at) {
  const Fault f = fault_of("pwrite");
  if (f == Fault::kFlip && bytes > 0) {
    std::vector<char> other(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    other[0] = static_cast<char>(other[0] ^ 1);
    return NEXT(pwrite)(fd, other.data(), bytes, at);
  }
  return f == Fault::kFail ? -1 : NEXT(pwrite)(fd, from, f == Fault::kShort ? part_of(fd, bytes) : bytes, at);
}
ssize_t pwrite64(int fd, const void* from, size_t bytes, off64_t at) { return pwrite(fd, from, bytes, at); }

int fsync(int fd) { return fails("fsync") ? -1 : NEXT(fsync)(fd); }
int syncfs(int fd) { return fails("fsync") ? -1 : NEXT(syncfs)(fd); }
int fdatasync(int fd) { return fails("fsync") ? -1 : NEXT(fdatasync)(fd); }

int rename(const char* from, const char* to) noexcept {
  return fails("rename") ? -1 : NEXT(rename)(from, to);
}

int unlink(const char* path) noexcept { return fails("unlink") ? -1 : NEXT(unlink)(path); }

int unlinkat(int folder, const char* path, int flags) noexcept {
  return fails("unlink") ? -1 : NEXT(unlinkat)(folder, path, flags);
}

int remove(const char* path) noexcept { return fails("unlink") ? -1 : NEXT(remove)(path); }

int fallocate(int fd, int mode, off_t at, off_t bytes) {
  return fails("fallocate") ? -1 : NEXT(fallocate)(fd, mode, at, bytes);
}
int fallocate64(int fd, int mode, off64_t at, off64_t bytes) { return fallocate(fd, mode, at, bytes); }

int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*run)(void*), void* with) noexcept {
  return fails("pthread_create") ? EAGAIN : NEXT(pthread_create)(thread, how, run, with);
}

void* dlopen(const char* file, int how) noexcept {
  return file != nullptr && fault_of("dlopen") == Fault::kShort ? nullptr : NEXT(dlopen)(file, how);
}

}  // extern "C"
