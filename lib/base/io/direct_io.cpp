#include "lib/base/io/direct_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "lib/base/io/file.h"

namespace twofour {
namespace {

/// No system has larger pages.
constexpr std::align_val_t kBufferAlignment{64u << 10};

struct Buffer {
  uint8_t* data = static_cast<uint8_t*>(::operator new(kDirectBuffer, kBufferAlignment));
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { ::operator delete(data, kBufferAlignment); }
};

/// The aligned buffer of this thread.
uint8_t* buffer() {
  thread_local Buffer buffer;
  return buffer.data;
}

bool is_same_file(int a, int b) {
  struct stat x {
  }, y{};
  return ::fstat(a, &x) == 0 && ::fstat(b, &y) == 0 && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

uint64_t down(uint64_t n) { return n / DirectFile::alignment() * DirectFile::alignment(); }
uint64_t up(uint64_t n) { return down(n + DirectFile::alignment() - 1); }

}  // namespace

uint64_t DirectFile::alignment() {
  static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return page;
}

DirectFile::DirectFile(const std::filesystem::path& path, int fd, bool writable) {
  if (is_in_memory(fd)) return;
  fd_ = ::open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_DIRECT | O_NONBLOCK | O_CLOEXEC);
  if (fd_ < 0) return;
  if (is_same_file(fd, fd_) && ::pread(fd_, buffer(), alignment(), 0) >= 0) return;
  ::close(std::exchange(fd_, -1));
}

DirectFile::DirectFile(DirectFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

DirectFile& DirectFile::operator=(DirectFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

DirectFile::~DirectFile() {
  if (fd_ >= 0) ::close(fd_);
}

size_t DirectFile::read(const std::filesystem::path& path, uint64_t offset, std::span<uint8_t> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const uint64_t begin = down(offset + done), skipped = offset + done - begin;
    const uint64_t bytes = std::min(kDirectBuffer, up(skipped + out.size() - done));
    const ssize_t got = ::pread(fd_, buffer(), bytes, static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EINVAL) break;
    if (got < 0) throw ReadError(path, errno);
    if (static_cast<uint64_t>(got) <= skipped) break;
    const size_t useful = std::min<size_t>(static_cast<size_t>(got) - skipped, out.size() - done);
    std::memcpy(out.data() + done, buffer() + skipped, useful);
    done += useful;
  }
  return done;
}

size_t DirectFile::write(const std::filesystem::path& path, uint64_t offset,
                         std::span<const uint8_t> pages) const {
  size_t done = 0;
  while (done < pages.size()) {
    const size_t bytes = std::min<size_t>(kDirectBuffer, pages.size() - done);
    std::memcpy(buffer(), pages.data() + done, bytes);
    const ssize_t put = ::pwrite(fd_, buffer(), bytes, static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EINVAL) break;
    if (put < 0) throw_io_error(path, "write", errno);
    // If a part does not end with a page, the rest of that page is written again.
    const size_t whole = down(static_cast<uint64_t>(put));
    if (whole == 0) break;
    done += whole;
  }
  return done;
}

}  // namespace twofour
