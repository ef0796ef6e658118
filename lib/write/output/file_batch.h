#pragma once
#include <cstdint>
#include <filesystem>
#include <span>

namespace twofour {

/// One of many small files that are flushed together: it appears under its name only on commit(), and is on
/// disk after flush_file_system(). Until commit() the file has the name temporary_name() beside it; the
/// destructor removes that file.
class UnflushedFile {
 public:
  explicit UnflushedFile(const std::filesystem::path& path);
  UnflushedFile(const UnflushedFile&) = delete;
  UnflushedFile& operator=(const UnflushedFile&) = delete;
  ~UnflushedFile();
  /// Appends. Throws Error.
  void write(std::span<const uint8_t> bytes);
  /// Renames. Throws Error.
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  uint64_t size_ = 0;  ///< written so far
};

/// Flushes all writes to the file system of `directory`: files, and names in any folder.
void flush_file_system(const std::filesystem::path& directory);

}  // namespace twofour
