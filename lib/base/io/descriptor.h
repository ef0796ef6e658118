#pragma once
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <span>

namespace twofour {

/// A time of a file in nanoseconds since 1970.
inline int64_t nanoseconds(const struct timespec& t) { return t.tv_sec * 1'000'000'000 + t.tv_nsec; }

/// Fills `out` from byte `offset` of an open file; `path` is for messages. Throws ReadError on I/O errors,
/// and Error if the file ends early.
void read_at(int fd, const std::filesystem::path& path, uint64_t offset, std::span<uint8_t> out);

/// Writes all of `bytes` to byte `offset` of an open file. Throws Error.
void write_at(int fd, const std::filesystem::path& path, uint64_t offset, std::span<const uint8_t> bytes);

/// True if an open file still has this name. Links are not followed.
bool has_name(int fd, const std::filesystem::path& path);

enum class Sharing {
  kAlone,     ///< no other process may hold the lock
  kTogether,  ///< other processes may share the lock
};
enum class LockState {
  kHeld,  ///< this process holds the lock until the file is closed
  kTaken,
  kNone,  ///< the file system has no locks
};
/// Locks an open file, without waiting.
LockState lock_file(int fd, Sharing sharing = Sharing::kAlone);

/// A file that is created if it is absent, and locked during the lifetime of this object.
class LockedFile {
 public:
  /// Throws Error if the file cannot be opened, except if its folder is absent.
  explicit LockedFile(const std::filesystem::path& path, Sharing sharing = Sharing::kAlone);
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;
  ~LockedFile();

  int descriptor() const { return fd_; }
  /// True if the file existed before; otherwise this object created it.
  bool was_there() const { return was_there_; }
  bool is_taken() const { return fd_ >= 0 && state_ == LockState::kTaken; }
  /// True if no other process has the lock, as far as the file system reports it, and the file still has its
  /// name. Another process that is done may have removed the file after it was opened here.
  bool is_ours() const { return fd_ >= 0 && state_ != LockState::kTaken && has_name(fd_, path_); }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  bool was_there_ = false;
  LockState state_ = LockState::kNone;
};

}  // namespace twofour
