#pragma once
#include <cstdint>
#include <filesystem>
#include <span>

namespace twofour {

/// One of many small files that are flushed together. It gets its name only by commit(), and is on disk after
/// flush_file_system(). Before commit() its content is in a file beside it, with the name temporary_name().
/// The destructor removes that temporary file.
class UnflushedFile {
 public:
  explicit UnflushedFile(const std::filesystem::path& path);
  UnflushedFile(const UnflushedFile&) = delete;
  UnflushedFile& operator=(const UnflushedFile&) = delete;
  ~UnflushedFile();
  /// Appends bytes. Throws Error on I/O errors.
  void write(std::span<const uint8_t> bytes);
  /// Renames the temporary file. Throws Error on I/O errors.
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  uint64_t size_ = 0;  ///< bytes written so far
};

/// Flushes all writes to the file system that holds `directory`: files, and names in any folder.
void flush_file_system(const std::filesystem::path& directory);

}  // namespace twofour
