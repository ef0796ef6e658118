#pragma once
#include <cstdint>
#include <filesystem>
#include <span>

namespace twofour {

/// A file of intermediate results of one run, written in any order and read back. It stays for a run that
/// resumes this one. Safe from several threads.
class WorkFile {
 public:
  /// Opens a file of `size` bytes. An existing file keeps its bytes; a new file is sparse and reads as zeros.
  /// Never follows a link.
  WorkFile(const std::filesystem::path& path, uint64_t size);
  WorkFile(const WorkFile&) = delete;
  WorkFile& operator=(const WorkFile&) = delete;
  ~WorkFile();

  const std::filesystem::path& path() const { return path_; }
  void write(uint64_t offset, std::span<const uint8_t> bytes) const;
  void read(uint64_t offset, std::span<uint8_t> out) const;
  /// Flushes written bytes to disk.
  void flush() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace twofour
