#include "lib/base/io/page_cache.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace twofour {
namespace {

/// The size in bytes of a window that is handed to write-back at once, and the largest number of windows in
/// flight.
constexpr uint64_t kWriteWindow = 8u << 20;
constexpr size_t kWritesUnderway = 4;

size_t windows_in(uint64_t size) { return static_cast<size_t>((size + kCacheWindow - 1) / kCacheWindow); }

// The number of the call in linux/mman.h, which older headers lack. It is the same on all supported
// architectures.
constexpr long kCachestat = 451;
struct CachestatRange {
  uint64_t offset, bytes;
};
struct Cachestat {
  uint64_t cached, dirty, writeback, evicted, recently_evicted;  ///< pages
};

/// Pages of a range that are in the page cache, or -errno.
int64_t cached_pages(int fd, uint64_t offset, uint64_t bytes) {
  CachestatRange range{offset, bytes};
  Cachestat found{};
  if (::syscall(kCachestat, fd, &range, &found, 0u) != 0) return -errno;
  return static_cast<int64_t>(found.cached);
}

/// True if the kernel reported a failed write rather than an unsupported operation.
bool is_write_error(int error) { return error != ENOSYS && error != EINVAL && error != ESPIPE; }

int sync_range(int fd, uint64_t window, unsigned flags) {
  const auto begin = static_cast<off64_t>(window * kWriteWindow);
  while (::sync_file_range(fd, begin, kWriteWindow, flags) != 0) {
    if (errno == EINTR) continue;
    return is_write_error(errno) ? errno : 0;
  }
  return 0;
}

}  // namespace

bool is_in_memory(int fd) {
  struct statfs system {};
  return ::fstatfs(fd, &system) == 0 && (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC);
}

void drop_pages(int fd, uint64_t begin, uint64_t bytes) {
  // This is only advice. If it fails, the pages stay cached.
  ::posix_fadvise(fd, static_cast<off_t>(begin), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}

std::optional<std::vector<bool>> resident_by_cachestat(int fd, uint64_t size) {
  std::vector<bool> resident(windows_in(size));
  if (resident.empty()) return resident;
  const int64_t all = cached_pages(fd, 0, 0);
  if (all == -ENOSYS) return std::nullopt;
  if (all == 0) return resident;
  for (size_t w = 0; w < resident.size(); ++w) {
    resident[w] = cached_pages(fd, w * kCacheWindow, kCacheWindow) != 0;
  }
  return resident;
}

std::vector<bool> resident_by_mincore(int fd, uint64_t size) {
  std::vector<bool> resident(windows_in(size), true);
  if (resident.empty()) return resident;
  void* const map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return resident;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(kCacheWindow / page);
  for (size_t w = 0; w < resident.size(); ++w) {
    const uint64_t begin = w * kCacheWindow, bytes = std::min(kCacheWindow, size - begin);
    if (::mincore(static_cast<char*>(map) + begin, bytes, pages.data()) != 0) continue;
    const auto end = pages.begin() + static_cast<std::ptrdiff_t>((bytes + page - 1) / page);
    resident[w] = std::any_of(pages.begin(), end, [](unsigned char p) { return (p & 1) != 0; });
  }
  ::munmap(map, size);
  return resident;
}

std::vector<bool> resident_windows(int fd, uint64_t size) {
  auto resident = resident_by_cachestat(fd, size);
  return resident ? std::move(*resident) : resident_by_mincore(fd, size);
}

void ReadWindows::add(int fd, uint64_t window) {
  const Window added{fd, window};
  const std::lock_guard lock(mutex_);
  if (std::find(recent_.rbegin(), recent_.rend(), added) != recent_.rend()) return;
  recent_.push_back(added);
  if (recent_.size() <= limit_) return;
  const Window oldest = recent_.front();
  recent_.pop_front();
  drop_pages(oldest.fd, oldest.index * kCacheWindow, kCacheWindow);
}

void ReadWindows::give_up(int fd) {
  const std::lock_guard lock(mutex_);
  std::erase_if(recent_, [&](const Window& w) {
    if (w.fd == fd) drop_pages(fd, w.index * kCacheWindow, kCacheWindow);
    return w.fd == fd;
  });
}

WriteWindows::WriteWindows(uint64_t file_size)
    : size_(file_size), filled_(static_cast<size_t>((file_size + kWriteWindow - 1) / kWriteWindow)) {}

int WriteWindows::written(int fd, uint64_t offset, uint64_t bytes) {
  for (const uint64_t end = offset + bytes; offset < end;) {
    const uint64_t window = offset / kWriteWindow, begin = window * kWriteWindow;
    const uint64_t here = std::min(end, begin + kWriteWindow) - offset;
    offset += here;
    if (window >= filled_.size()) continue;
    const uint64_t full = std::min(kWriteWindow, size_ - begin);
    if ((filled_[window] += static_cast<uint32_t>(here)) != full) continue;
    if (const int error = sync_range(fd, window, SYNC_FILE_RANGE_WRITE)) return error;
    uint64_t oldest = 0;
    {
      const std::lock_guard lock(mutex_);
      underway_.push_back(window);
      if (underway_.size() <= kWritesUnderway) continue;
      oldest = underway_.front();
      underway_.pop_front();
    }
    // Writers wait for the disk here instead of filling the memory.
    constexpr unsigned kArrive =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (const int error = sync_range(fd, oldest, kArrive)) return error;
    drop_pages(fd, oldest * kWriteWindow, kWriteWindow);
  }
  return 0;
}

}  // namespace twofour
