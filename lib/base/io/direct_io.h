#pragma once
#include <cstdint>
#include <filesystem>
#include <span>

namespace twofour {

/// The smallest piece, in bytes, that bypasses the page cache. For fewer bytes, the request costs the disk
/// more than the transfer.
inline constexpr uint64_t kDirectMinimum = 64u << 10;
/// The size in bytes of the aligned buffer of each thread that uses direct I/O.
inline constexpr uint64_t kDirectBuffer = 1u << 20;

/// A second descriptor of an open file, for transfers that bypass the page cache. Direct transfers need
/// offsets, lengths and memory in whole pages, so bytes pass through an aligned buffer, one per thread. Safe
/// from several threads.
class DirectFile {
 public:
  DirectFile() = default;
  /// Opens the file at `path`, which `fd` has open, a second time. If the file system has no direct I/O,
  /// is_open() is false afterwards. A read tests this, since some file systems accept the flag and refuse the
  /// transfer.
  DirectFile(const std::filesystem::path& path, int fd, bool writable);
  DirectFile(DirectFile&& other) noexcept;
  DirectFile& operator=(DirectFile&& other) noexcept;
  ~DirectFile();
  bool is_open() const { return fd_ >= 0; }

  /// Reads from byte `offset`. Returns the number of bytes of `out`, from its beginning, that were filled. It
  /// is smaller than `out` if the file ends or refuses direct I/O. Throws Error on I/O errors.
  size_t read(const std::filesystem::path& path, uint64_t offset, std::span<uint8_t> out) const;
  /// Writes whole pages. Returns the number of written bytes, which is smaller if the file refuses direct
  /// I/O. Throws Error on I/O errors.
  size_t write(const std::filesystem::path& path, uint64_t offset, std::span<const uint8_t> pages) const;

  /// Offsets and lengths must be multiples of this. It is a multiple of the page size, because pages that a
  /// direct transfer shares with a buffered one could not be dropped from the page cache.
  static uint64_t alignment();

 private:
  int fd_ = -1;
};

}  // namespace twofour
