#include "lib/base/io/temporary_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "formats/error.h"
#include "lib/base/io/descriptor.h"
#include "lib/base/io/file.h"

namespace twofour {

namespace fs = std::filesystem;

namespace {

constexpr int kMostTries = 1000;

[[noreturn]] void refuse_taken(const fs::path& temporary) {
  throw Error(fmt::format("{}: expected no other process that writes this file, found one: wait for it",
                          temporary.string()));
}

/// Removes the file that a killed process left. Does nothing if the file is already gone.
void remove_left(const fs::path& temporary) {
  const int fd = ::open(temporary.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return;
  if (fd < 0) throw_io_error(temporary, "replace", errno);
  struct stat st {};
  const bool is_file = ::fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
  const LockState lock = is_file ? lock_file(fd) : LockState::kNone;
  const int failed = !is_file ? EEXIST : lock == LockState::kNone ? errno : 0;
  if (lock == LockState::kHeld && has_name(fd, temporary)) ::unlink(temporary.c_str());
  ::close(fd);
  if (lock == LockState::kTaken) refuse_taken(temporary);
  if (failed != 0) throw_io_error(temporary, "replace", failed);
}

}  // namespace

int create_temporary(const fs::path& temporary) {
  // Other processes make a few attempts fail. All attempts fail if the file system renumbers files each time.
  for (int i = 0; i < kMostTries; ++i) {
    const int fd = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 && errno != EEXIST) throw_io_error(temporary, "create", errno);
    if (fd < 0) {
      remove_left(temporary);
      continue;
    }
    // On a file system without locks, the file belongs to this process, which created it. With locks, another
    // process may have taken the file for an abandoned one before it was locked here.
    const LockState lock = lock_file(fd);
    if (lock == LockState::kNone || (lock == LockState::kHeld && has_name(fd, temporary))) return fd;
    ::close(fd);
  }
  refuse_taken(temporary);
}

void commit_temporary(int fd, const fs::path& temporary, const fs::path& path) {
  // The copied descriptor holds the lock. Closing can report a write that failed late, above all on network
  // file systems.
  const int lock = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  // Without locks, another process may have taken the name.
  const bool is_ours = has_name(fd, temporary);
  std::error_code none;
  const bool is_taken = !is_ours && fs::exists(fs::symlink_status(temporary, none));
  const char* failed = nullptr;
  if (::close(fd) != 0) {
    failed = "close";
  } else if (is_taken) {
    if (lock >= 0) ::close(lock);
    refuse_taken(temporary);
  } else if (::rename(temporary.c_str(), path.c_str()) != 0) {
    failed = "rename into place";
  }
  const int error = errno;
  if (failed != nullptr && is_ours) ::unlink(temporary.c_str());
  if (lock >= 0) ::close(lock);
  if (failed != nullptr) throw_io_error(path, failed, error);
}

void discard_temporary(int fd, const fs::path& temporary) {
  if (has_name(fd, temporary)) ::unlink(temporary.c_str());
  ::close(fd);
}

}  // namespace twofour
