#include "lib/base/io/work_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "lib/base/io/descriptor.h"
#include "lib/base/io/file.h"

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
  write_at(fd_, path_, offset, bytes);
}

void WorkFile::read(uint64_t offset, std::span<uint8_t> out) const { read_at(fd_, path_, offset, out); }

void WorkFile::flush() const {
  if (::fdatasync(fd_) != 0) throw_io_error(path_, "flush", errno);
}

}  // namespace twofour
