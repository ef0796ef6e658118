#include "lib/io/work_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "formats/error.h"
#include "lib/io/file.h"

namespace twofour {

WorkFile::WorkFile(const std::filesystem::path& path, uint64_t size) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd_ < 0) throw_io_error(path, "create", errno);
  if (::ftruncate(fd_, static_cast<off_t>(size)) == 0) return;
  const int error = errno;
  ::close(fd_);
  throw_io_error(path, "resize", error);
}

WorkFile::~WorkFile() { ::close(fd_); }

void WorkFile::write(uint64_t offset, std::span<const uint8_t> bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_io_error(path_, "write", errno);
    offset += static_cast<uint64_t>(put);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
}

void WorkFile::read(uint64_t offset, std::span<uint8_t> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw ReadError(path_, errno);
    if (got == 0) {
      throw Error(fmt::format("{}: expected {} more bytes at {}, found the end of the file", path_.string(),
                              out.size(), offset));
    }
    offset += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
}

void WorkFile::flush() const {
  if (::fdatasync(fd_) != 0) throw_io_error(path_, "flush", errno);
}

}  // namespace twofour
