#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

namespace twofour {

/// The way in which the bytes of large files are read and written.
enum class Io {
  kCached,    ///< through the page cache, which retains them
  kBuffered,  ///< through the page cache, which drops pages that it did not hold before
  kDirect,    ///< bypassing the page cache (O_DIRECT) if possible; small pieces as with kBuffered
};

/// True if an open file is only in memory, so no page need be written back or dropped.
bool is_in_memory(int fd);

/// The page cache is queried and advised in parts of files of this many bytes. The kernel caches files in
/// folios of up to this size, aligned to their size, and drops only whole folios.
inline constexpr uint64_t kCacheWindow = 2u << 20;

/// Returns for each window of a file whether the page cache has a page of it, by cachestat(2). Empty if the
/// kernel lacks that call (before Linux 6.5).
std::optional<std::vector<bool>> resident_by_cachestat(int fd, uint64_t size);
/// Returns the same by mincore(2), which checks every page.
std::vector<bool> resident_by_mincore(int fd, uint64_t size);
/// Returns the same by the fastest call that works. If this user neither owns the file nor may write to it,
/// the kernel reports nothing, and all windows count as resident.
std::vector<bool> resident_windows(int fd, uint64_t size);

/// The windows of files that reads brought into the page cache, in the order of reading. Beyond `limit`
/// bytes, the oldest windows are dropped from the page cache. Thus, the disk delivers bytes that are soon
/// read again, and pages that two pieces share, only once. Safe from several threads.
class ReadWindows {
 public:
  explicit ReadWindows(uint64_t limit = 256u << 20) : limit_(limit / kCacheWindow) {}
  void add(int fd, uint64_t window);
  /// Drops all windows of a file that is about to be closed.
  void give_up(int fd);

 private:
  struct Window {
    int fd;
    uint64_t index;
    bool operator==(const Window&) const = default;
  };
  const size_t limit_;
  std::mutex mutex_;
  std::deque<Window> recent_;
};

/// Starts writing each window of a file to the disk as soon as it is full, and drops the pages of windows
/// that have reached the disk. Thus, only a few windows of the file wait in the page cache. Each byte must be
/// written once. Safe from several threads.
class WriteWindows {
 public:
  explicit WriteWindows(uint64_t file_size);
  /// Notes that bytes [offset, offset + bytes) were written. Returns 0, or errno of a failed write-back.
  int written(int fd, uint64_t offset, uint64_t bytes);

 private:
  const uint64_t size_;
  std::vector<std::atomic<uint32_t>> filled_;  ///< bytes written so far, by window
  std::mutex mutex_;
  std::deque<uint64_t> underway_;
};

/// Drops the clean pages of bytes [begin, begin + bytes) of a file from the page cache, or all of them if
/// `bytes` is 0.
void drop_pages(int fd, uint64_t begin = 0, uint64_t bytes = 0);

}  // namespace twofour
