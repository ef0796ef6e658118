#include "lib/io/file_batch.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lib/io/file.h"

namespace twofour {

namespace fs = std::filesystem;

UnflushedFile::UnflushedFile(const fs::path& path)
    : path_(path), temporary_(path.parent_path() / temporary_name(path.filename().string())) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd_ < 0) throw_io_error(temporary_, "create", errno);
}

UnflushedFile::~UnflushedFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void UnflushedFile::write(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_io_error(path_, "write", errno);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
}

void UnflushedFile::commit() {
  // Closing can report a write that failed late, on network file systems above all.
  const char* failed = nullptr;
  if (::close(std::exchange(fd_, -1)) != 0) {
    failed = "close";
  } else if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    failed = "rename into place";
  }
  if (failed == nullptr) return;
  const int error = errno;
  ::unlink(temporary_.c_str());
  throw_io_error(path_, failed, error);
}

void flush_file_system(const fs::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_io_error(directory, "open", errno);
  const int result = ::syncfs(fd), error = errno;
  ::close(fd);
  if (result != 0) throw_io_error(directory, "flush", error);
}

}  // namespace twofour
