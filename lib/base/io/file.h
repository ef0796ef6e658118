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

/// An I/O error: the system could not open or read an existing file. It is not a malformed file: code that
/// tolerates damaged files must let this one through.
struct ReadError : Error {
  using Error::Error;
  /// "PATH: cannot read: input/output error", from errno.
  ReadError(const std::filesystem::path& path, int error, const char* doing = "read");
};

/// A regular file open for reading; symbolic links to one are followed, FIFOs and devices refused. Reads
/// never map the file, so one that shrinks meanwhile is an Error, not a SIGBUS. The bytes of a RemoteFile are
/// read from their server. Reading is safe from several threads.
class InputFile {
 public:
  /// `windows` is shared by files that are read together; by default a file has its own.
  explicit InputFile(const std::filesystem::path& path, Io io = Io::kCached,
                     std::shared_ptr<ReadWindows> windows = nullptr);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }
  /// True if its bytes are elsewhere, so that its descriptor has none.
  bool is_remote() const { return remote_ != nullptr; }
  /// True if something distinguishes its contents from others of the same name and size, in this run or
  /// another: its times, or an ETag of the server.
  bool is_pinned() const;
  /// For mmap; the file still owns it.
  int descriptor() const { return fd_; }
  /// The time of the last write to it, as of its opening: nanoseconds since 1970.
  int64_t modified() const { return modified_; }
  /// The time of the last change of its contents or status, as of its opening, likewise. No program can set
  /// it, so it reveals a write that was followed by restoring modified().
  int64_t status_changed() const { return status_changed_; }
  /// The way in which bytes are read: kCached if the file system has no direct I/O or the file is in memory.
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
  std::shared_ptr<ReadWindows> windows_;  ///< none: the page cache retains the pages that are read
  std::vector<bool> resident_;            ///< windows that were in the page cache when the file was opened
  std::shared_ptr<RemoteFile> remote_;    ///< the source of the bytes; none: this file
};

/// The temporary name of an unfinished file: ".NAME.unfinished", in the same folder.
std::string temporary_name(const std::string& name);
/// The final name of a file with this temporary name; empty if `name` is not a temporary name.
std::string name_of_temporary(std::string_view name);

/// A file that appears under its name only on commit(); until then it has a temporary name in the same
/// folder, which the destructor removes. Never writes through a link. Writing is safe from several threads.
class AtomicFile {
 public:
  /// Unless it is cached, resize() must come before the first byte, and each byte is written once.
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
  /// Flushes to disk. Unless it is cached, the file's pages are dropped from the page cache, so that read()
  /// returns what the disk holds.
  void flush();
  /// Reads written bytes back; unless it is cached, bypasses the page cache if the file system supports it.
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

/// The status of a path; symbolic links are followed. Throws Error if nothing is there, ReadError if the
/// system does not report it.
std::filesystem::file_status status_of(const std::filesystem::path& path);

/// True if nothing is there; false if the system does not report it, so that opening it reports why.
bool is_absent(const std::filesystem::path& path);

/// The folder for temporary files: TMPDIR, else /tmp. Throws Error if it is no folder.
std::filesystem::path temporary_folder();

/// Throws Error: "PATH: cannot read: input/output error".
[[noreturn]] void throw_io_error(const std::filesystem::path& path, const char* doing, int error);

/// "permission denied", from errno.
std::string system_message(int error);

/// Passes `bytes` bytes through one buffer of `step` bytes: read(at, piece) fills it, use(at, piece) receives
/// it.
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

/// Every regular file, or link to one, below a directory: relative names, with sizes. Links to directories
/// are not followed. Throws Error if a directory cannot be listed.
std::map<std::string, uint64_t> files_below(const std::filesystem::path& directory);

/// Names in a directory that end in `suffix` and do not begin with a dot, sorted. Files that cannot be opened
/// are listed too. Throws Error if the directory cannot be listed.
std::vector<std::string> list_files(const std::filesystem::path& directory, std::string_view suffix);

}  // namespace twofour
