#include "lib/base/io/descriptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "formats/error.h"
#include "lib/base/io/file.h"

namespace twofour {

void read_at(int fd, const std::filesystem::path& path, uint64_t offset, std::span<uint8_t> out) {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw ReadError(path, errno);
    if (got == 0) {
      throw Error(fmt::format(
          "{}: expected {} more bytes at {}, found the end of the file: it was truncated while being read",
          path.string(), out.size(), offset));
    }
    offset += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
}

void write_at(int fd, const std::filesystem::path& path, uint64_t offset, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_io_error(path, "write", errno);
    offset += static_cast<uint64_t>(put);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
}

bool has_name(int fd, const std::filesystem::path& path) {
  struct stat open {
  }, named{};
  return ::fstat(fd, &open) == 0 && ::lstat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

LockState lock_file(int fd, Sharing sharing) {
  if (::flock(fd, (sharing == Sharing::kAlone ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0) return LockState::kHeld;
  return errno == EWOULDBLOCK || errno == EINTR ? LockState::kTaken : LockState::kNone;
}

LockedFile::LockedFile(const std::filesystem::path& path, Sharing sharing) : path_(path) {
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  fd_ = ::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0644);
  if (fd_ < 0 && errno == EEXIST) {
    was_there_ = true;
    fd_ = ::open(path.c_str(), kFlags);
  }
  if (fd_ >= 0) {
    state_ = lock_file(fd_, sharing);
  } else if (errno != ENOENT) {
    throw_io_error(path, was_there_ ? "open" : "create", errno);
  }
}

LockedFile::~LockedFile() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace twofour
