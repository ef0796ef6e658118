#pragma once
#include <cstdint>
#include <filesystem>
#include <span>

namespace twofour {

/// Pieces below this go through the page cache also where larger ones go past it: a request costs the disk
/// more than so few bytes.
inline constexpr uint64_t kDirectMinimum = 64u << 10;
/// What each thread that reads or writes directly takes for its aligned buffer.
inline constexpr uint64_t kDirectBuffer = 1u << 20;

/// A second descriptor of an open file, with transfers past the page cache. Offsets, lengths and memory
/// are whole pages there, so that bytes pass through an aligned buffer, one a thread. Safe from several
/// threads.
class DirectFile {
 public:
  DirectFile() = default;
  /// Of the file at `path` that `fd` has open. Is not open afterwards if the file system has no direct I/O,
  /// which a read shows: some take the flag and refuse the transfer.
  DirectFile(const std::filesystem::path& path, int fd, bool writable);
  DirectFile(DirectFile&& other) noexcept;
  DirectFile& operator=(DirectFile&& other) noexcept;
  ~DirectFile();
  bool is_open() const { return fd_ >= 0; }

  /// Reads from byte `offset`. Returns how many bytes of `out`, from its beginning, it filled: fewer where
  /// the file ends or refuses direct I/O. Throws Error on I/O errors.
  size_t read(const std::filesystem::path& path, uint64_t offset, std::span<uint8_t> out) const;
  /// Writes whole pages. Returns how many bytes it wrote: fewer where the file refuses direct I/O. Throws
  /// Error on I/O errors.
  size_t write(const std::filesystem::path& path, uint64_t offset, std::span<const uint8_t> pages) const;

  /// What offsets and lengths must be multiples of: pages, for those that a direct transfer shares with a
  /// buffered one could not be taken from the page cache.
  static uint64_t alignment();

 private:
  int fd_ = -1;
};

}  // namespace twofour
