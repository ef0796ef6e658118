#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

namespace twofour {

/// The way that the bytes of large files take.
enum class Io {
  kCached,    ///< through the page cache, which retains them
  kBuffered,  ///< through the page cache, which drops pages that it did not hold before
  kDirect,    ///< bypassing the page cache (O_DIRECT), except for small pieces; otherwise as kBuffered
};

/// True if an open file is in memory only, with nothing to write back and nothing to drop.
bool is_in_memory(int fd);

/// The page cache is queried and advised in parts of files of this many bytes. The kernel caches files in
/// folios of up to this size, aligned to their size, and drops only whole folios.
inline constexpr uint64_t kCacheWindow = 2u << 20;

/// The windows of a file that have a page in the page cache, by cachestat(2); nullopt if the kernel has no
/// such call (before Linux 6.5).
std::optional<std::vector<bool>> resident_by_cachestat(int fd, uint64_t size);
/// The same, by mincore(2), which looks at every page.
std::vector<bool> resident_by_mincore(int fd, uint64_t size);
/// The same, by the fastest way that works. If we neither own a file nor may write to it, the kernel reports
/// nothing: then all windows count as resident.
std::vector<bool> resident_windows(int fd, uint64_t size);

/// Windows of files that reading brought into the page cache, in the order of reading. Beyond `limit` bytes
/// the oldest are dropped. Bytes that are soon read again, and pages that two pieces share, come from the
/// disk only once. Safe from several threads.
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

/// Starts writing a file to the disk, each window as soon as it is full, and drops the pages of the windows
/// that arrived: only a few windows of the file wait in the page cache. Each byte must be written once. Safe
/// from several threads.
class WriteWindows {
 public:
  explicit WriteWindows(uint64_t file_size);
  /// Notes that bytes [offset, offset + bytes) were written. Returns 0, or errno of a failed write-back.
  int written(int fd, uint64_t offset, uint64_t bytes);

 private:
  const uint64_t size_;
  std::vector<std::atomic<uint32_t>> filled_;  ///< bytes of each window
  std::mutex mutex_;
  std::deque<uint64_t> underway_;
};

/// Drops the clean pages of bytes [begin, begin + bytes) of a file from the page cache; all of them if
/// `bytes` is 0.
void drop_pages(int fd, uint64_t begin = 0, uint64_t bytes = 0);

}  // namespace twofour
