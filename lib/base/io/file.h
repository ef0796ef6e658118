#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/error.h"
#include "lib/base/io/direct_io.h"
#include "lib/base/io/page_cache.h"
#include "lib/base/threads/interrupt.h"

namespace twofour {

class RemoteFile;

/// An I/O error. The system could not open or read an existing file. The file may be well formed, so code
/// that tolerates damaged files must not catch this error.
struct ReadError : Error {
  using Error::Error;
  /// Makes a message such as "PATH: cannot read: input/output error". `error` is an errno, and `doing` is the
  /// verb.
  ReadError(const std::filesystem::path& path, int error, const char* doing = "read");
};

/// A regular file that is open for reading. Symbolic links to a regular file are followed; FIFOs and devices
/// are refused. Reads never map the file, so a file that shrinks meanwhile causes an Error, not a SIGBUS. The
/// bytes of a RemoteFile are read from their server. Reading is safe from several threads.
class InputFile {
 public:
  /// `windows` is shared by files that are read together. By default, a file has its own.
  explicit InputFile(const std::filesystem::path& path, Io io = Io::kCached,
                     std::shared_ptr<ReadWindows> windows = nullptr);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }
  /// True if the bytes come from a RemoteFile. The descriptor then does not have them.
  bool is_remote() const { return remote_ != nullptr; }
  /// True if the contents can be told apart from other contents of the same name and size, in this run or
  /// another. The times of the file or the server's ETag do this.
  bool is_pinned() const;
  /// The descriptor, for mmap. The file still owns it.
  int descriptor() const { return fd_; }
  /// The time of the last write to the file before it was opened, in nanoseconds since 1970.
  int64_t modified() const { return modified_; }
  /// The time of the last change of the contents or status before the file was opened, in nanoseconds since
  /// 1970. No program can set it, so it reveals a write after which modified() was restored.
  int64_t status_changed() const { return status_changed_; }
  /// The way of reading. It is kCached if the file system has no direct I/O or the file is in memory.
  Io io() const;
  /// Throws Error if the file has been written to since it was opened.
  void check_unchanged() const;
  /// Fills `out` from byte `offset`. Throws Error on I/O errors and if the file ends early.
  void read(uint64_t offset, std::span<uint8_t> out) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  int64_t modified_ = 0, status_changed_ = 0;  ///< nanoseconds
  DirectFile direct_;
  std::shared_ptr<ReadWindows> windows_;  ///< if null, the page cache keeps the pages that are read
  std::vector<bool> resident_;            ///< windows that were in the page cache when the file was opened
  std::shared_ptr<RemoteFile> remote_;    ///< the source of the bytes; the file itself if null
};

/// The temporary name of an unfinished file: ".NAME.unfinished", in the same folder.
std::string temporary_name(const std::string& name);
/// The final name of a file with this temporary name. Empty if `name` is not a temporary name.
std::string name_of_temporary(std::string_view name);

/// A file that appears under its name only on commit(). Before, it has a temporary name in the same folder.
/// The destructor removes that name. Never writes through a link. Writing is safe from several threads.
class AtomicFile {
 public:
  /// Unless `io` is kCached, resize() must be called before the first write, and each byte must be written
  /// once.
  explicit AtomicFile(const std::filesystem::path& path, Io io = Io::kCached);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  const std::filesystem::path& path() const { return path_; }
  Io io() const { return io_; }
  /// Reserves space for a file of `size` bytes, so that a full disk is noticed before the work is done.
  void resize(uint64_t size);
  void write(uint64_t offset, std::span<const uint8_t> bytes);
  void write(uint64_t offset, std::string_view bytes);
  /// Flushes to disk. Unless io() is kCached, also drops the file's pages from the page cache, so that read()
  /// returns what the disk holds.
  void flush();
  /// Reads written bytes back. Unless io() is kCached, bypasses the page cache if the file system supports
  /// it.
  void read(uint64_t offset, std::span<uint8_t> out) const;
  /// Flushes the bytes that flush() did not, then renames. If that fails, removes the temporary file and
  /// throws Error.
  void commit();

 private:
  void write_through_cache(uint64_t offset, std::span<const uint8_t> bytes);

  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  Io io_ = Io::kCached;
  std::atomic<bool> flushed_{false};
  DirectFile direct_;
  std::unique_ptr<WriteWindows> writes_;
  std::unique_ptr<ReadWindows> reads_;
};

/// The whole contents of a small file. Throws Error if it is longer than `limit` bytes.
std::string read_text(const std::filesystem::path& path, uint64_t limit = 64u << 20);
std::string read_text(const InputFile& file, uint64_t limit = 64u << 20);

/// Writes a small file completely or not at all.
void write_text(const std::filesystem::path& path, std::string_view text);

/// True if two files hold the same bytes.
bool same_contents(const std::filesystem::path& a, const std::filesystem::path& b);

/// Flushes a directory's entries (created, renamed and removed names) to disk.
void sync_directory(const std::filesystem::path& directory);

/// The status of a path; symbolic links are followed. Throws Error if nothing exists at the path, and
/// ReadError if the system does not report its status.
std::filesystem::file_status status_of(const std::filesystem::path& path);

/// True if nothing exists at a path. False if the system does not report its status, so that opening the path
/// reports why.
bool is_absent(const std::filesystem::path& path);

/// The folder for temporary files, which is TMPDIR or by default /tmp. Throws Error if it is not a folder.
std::filesystem::path temporary_folder();

/// Throws Error with a message such as "PATH: cannot read: input/output error". `doing` is the verb; `error`
/// is an errno.
[[noreturn]] void throw_io_error(const std::filesystem::path& path, const char* doing, int error);

/// The system's message for an errno, such as "permission denied".
std::string system_message(int error);

/// Passes `bytes` bytes through one buffer of `step` bytes, piece by piece. read(at, piece) fills a piece
/// that begins at byte `at`, and use(at, piece) receives it.
template <class Read, class Use>
void read_in_pieces(uint64_t bytes, uint64_t step, Read&& read, Use&& use) {
  std::vector<uint8_t> buffer(std::min(step, bytes));
  for (uint64_t at = 0; at < bytes; at += step) {
    check_interrupt();
    const std::span<uint8_t> piece(buffer.data(), std::min(step, bytes - at));
    read(at, piece);
    use(at, piece);
  }
}

/// The sizes in bytes, by relative path, of all regular files below a directory and of links to regular
/// files. Links to directories are not followed. Throws Error if a directory cannot be listed.
std::map<std::string, uint64_t> files_below(const std::filesystem::path& directory);

/// Names in a directory that end in `suffix` and do not begin with a dot, sorted. Files that cannot be opened
/// are listed, too. Throws Error if the directory cannot be listed.
std::vector<std::string> list_files(const std::filesystem::path& directory, std::string_view suffix);

}  // namespace twofour
