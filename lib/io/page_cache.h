#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

namespace twofour {

/// How the bytes of large files pass.
enum class Io {
  kCached,    ///< through the page cache, which keeps them
  kBuffered,  ///< through the page cache, which gives up again what it did not hold before
  kDirect,    ///< past the page cache (O_DIRECT), but for pieces that are small; else as kBuffered
};

/// Whether an open file is in memory only, with nothing to write back and nothing to drop.
bool is_in_memory(int fd);

/// What is said about the page cache is said for parts of files of this many bytes. The kernel keeps files in
/// folios of up to as much, aligned to their size, and gives up whole ones only.
inline constexpr uint64_t kCacheWindow = 2u << 20;

/// Which windows of a file have a page in the page cache, by cachestat(2); nullopt where the kernel has no
/// such call (before Linux 6.5).
std::optional<std::vector<bool>> resident_by_cachestat(int fd, uint64_t size);
/// The same, by mincore(2), which looks at every page.
std::vector<bool> resident_by_mincore(int fd, uint64_t size);
/// The same, the fast way first. Of a file that is neither ours nor writable to us the kernel says nothing:
/// then all windows count as resident.
std::vector<bool> resident_windows(int fd, uint64_t size);

/// Windows of files that reading brought into the page cache, in the order of their reading. Beyond `limit`
/// bytes the oldest are given up, so that what is read twice soon, and pages that two pieces share, come from
/// the disk once. Safe from several threads.
class ReadWindows {
 public:
  explicit ReadWindows(uint64_t limit = 256u << 20) : limit_(limit / kCacheWindow) {}
  void add(int fd, uint64_t window);
  /// Gives up all windows of a file that is about to be closed.
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

/// Sends what was written to a file on its way to the disk, window by window as each is full, and gives up
/// the pages of those that arrived: no more than some windows of the file wait in the page cache. Each byte
/// must be written once. Safe from several threads.
class WriteWindows {
 public:
  explicit WriteWindows(uint64_t file_size);
  /// Bytes [offset, offset + bytes) were written. Returns 0, or errno of a write-back that failed.
  int written(int fd, uint64_t offset, uint64_t bytes);

 private:
  const uint64_t size_;
  std::vector<std::atomic<uint32_t>> filled_;  ///< bytes of each window
  std::mutex mutex_;
  std::deque<uint64_t> underway_;
};

/// Gives up the clean pages of bytes [begin, begin + bytes) of a file; of all with bytes 0.
void drop_pages(int fd, uint64_t begin = 0, uint64_t bytes = 0);

}  // namespace twofour
