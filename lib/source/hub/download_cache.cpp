#include "lib/source/hub/download_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "formats/error.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/shown_url.h"
#include "lib/base/io/descriptor.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/base/threads/interrupt.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockName = ".twofour-cache";
/// The largest number of downloads of one file. More downloads would mean that files which are read together
/// do not fit into the folder.
constexpr int kMostDownloads = 2;
constexpr uint64_t kPiece = 1u << 20;
constexpr const char* kDownloading = "downloading";

/// Hashes the first `bytes` bytes.
void hash_begin(int fd, const fs::path& path, uint64_t bytes, ContentHasher& hasher) {
  const auto read = [&](uint64_t at, std::span<uint8_t> piece) { read_at(fd, path, at, piece); };
  read_in_pieces(bytes, kPiece, read,
                 [&](uint64_t, std::span<const uint8_t> piece) { hasher.update(piece); });
}

/// Opens a complete file that an earlier run left. Returns false if it is absent, if its size or hash
/// differs, or if nothing identifies its contents.
bool open_left(const RemoteObject& object, const fs::path& path, int& fd) {
  if (!object.is_pinned()) return false;
  fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  struct stat st {};
  bool is_right = ::fstat(fd, &st) == 0 && static_cast<uint64_t>(st.st_size) == object.size;
  if (is_right && object.has_hash()) {
    ContentHasher hasher(object);
    hash_begin(fd, path, object.size, hasher);
    is_right = hasher.problem().empty();
  }
  if (!is_right) ::close(std::exchange(fd, -1));
  return is_right;
}

/// The path of the lock of a folder, which is created if it is absent.
fs::path path_of_lock(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(fmt::format("{}: cannot create: {}", folder.string(), error.message()));
  return folder / kLockName;
}

/// True if a file's name is a result of cached_name(), or the temporary name of a file that is still being
/// downloaded.
bool is_cached_name(const std::string& name) {
  const std::string whole = name_of_temporary(name);
  const std::string& base = whole.empty() ? name : whole;
  const size_t dot = base.rfind('.');
  return dot != base.npos && base.size() - dot == 33 &&
         base.find_first_not_of("0123456789abcdef", dot + 1) == base.npos;
}

}  // namespace

std::string cached_name(const RemoteObject& object) {
  // A SHA-256 identifies the contents. Without it, the URL and header fields identify them.
  const std::string contents = !object.sha256.empty() ? object.sha256
                                                      : fmt::format("{} {} {}", shown_url(object.url.text()),
                                                                    object.etag, object.modified);
  // Only the beginning of a long name is used, so that any file system accepts the result.
  constexpr size_t kMostOfName = 100;
  return fmt::format("{}.{}", fs::path(object.name).filename().string().substr(0, kMostOfName),
                     hash_text(fmt::format("{} {}", contents, object.size)).hex());
}

struct DownloadCache::File {
  enum class State { kAbsent, kLoading, kWhole };
  State state = State::kAbsent;
  bool reserved = false;  ///< true while the file is loaded and space is reserved for it
  uint64_t bytes = 0;     ///< space that the file takes up now, or will take up
  uint64_t last_use = 0;  ///< DownloadCache::clock_ at the last use
  int readers = 0;
  int fd = -1;
  fs::path path;

  ~File() {
    if (fd >= 0) ::close(fd);
  }
};

DownloadCache::DownloadCache(const fs::path& folder, uint64_t limit)
    : folder_(folder), limit_(limit), lock_(path_of_lock(folder)) {
  if (lock_.is_taken()) {
    throw Error(
        fmt::format("{}: expected a cache that no other run uses, found one in use; give each run its own {}",
                    folder_.string(), options::kCache));
  }
  for (const auto& [name, bytes] : files_below(folder_)) {
    if (!is_cached_name(name)) continue;
    const std::string whole = name_of_temporary(name);
    auto& file = files_[whole.empty() ? name : whole];
    if (!file) file = std::make_shared<File>();
    file->path = folder_ / (whole.empty() ? name : whole);
    file->bytes = std::max(file->bytes, bytes);
  }
}

DownloadCache::~DownloadCache() {
  std::error_code ignored;
  for (const auto& [name, contents] : unpinned_) {
    fs::remove(folder_ / name, ignored);
    fs::remove(folder_ / temporary_name(name), ignored);
  }
}

void DownloadCache::begin_phase() {
  if (active_++ == 0 && progress_ != nullptr) phase_ = progress_->phase.exchange(kDownloading);
}

void DownloadCache::end_phase() {
  const char* expected = kDownloading;
  if (--active_ == 0 && progress_ != nullptr) progress_->phase.compare_exchange_strong(expected, phase_);
}

void DownloadCache::remove(const RemoteObject& object) {
  const std::string name = cached_name(object);
  const std::lock_guard lock(mutex_);
  std::error_code ignored;
  fs::remove(folder_ / name, ignored);
  fs::remove(folder_ / temporary_name(name), ignored);
  files_.erase(name);
}

/// Removes unused files until there is room for `object`. The file that was used longest ago comes first.
void DownloadCache::make_room(std::unique_lock<std::mutex>& lock, const RemoteObject& object,
                              const std::string& name) {
  if (object.size > limit_) {
    throw Error(fmt::format("{}: expected space for {}, {} bytes, found {}", options::kCacheSize,
                            object.shown, object.size, limit_));
  }
  for (;;) {
    uint64_t taken = 0;
    bool others_move = false;
    auto oldest = files_.end();
    for (auto it = files_.begin(); it != files_.end(); ++it) {
      if (it->first == name) continue;
      const File& file = *it->second;
      taken += file.bytes;
      const bool is_busy = file.readers > 0 || file.reserved;
      others_move = others_move || is_busy;
      if (is_busy || file.bytes == 0) continue;
      if (oldest == files_.end() || file.last_use < oldest->second->last_use) oldest = it;
    }
    if (taken + object.size <= limit_) return;
    if (oldest != files_.end()) {
      std::error_code ignored;
      fs::remove(oldest->second->path, ignored);
      fs::remove(folder_ / temporary_name(oldest->first), ignored);
      oldest->second->bytes = 0;
      if (oldest->second->state != File::State::kLoading)
        files_.erase(oldest);  // otherwise the file itself waits for space
      continue;
    }
    if (!others_move)
      throw Error(fmt::format("{}: expected space for {} bytes, found no file to remove", folder_.string(),
                              object.size));
    changed_.wait_for(lock, std::chrono::milliseconds(200));
    check_interrupt();
  }
}

void DownloadCache::download(const RemoteObject& object, RedirectCache& redirects, const Fetcher& fetcher,
                             File& file) {
  if (open_left(object, file.path, file.fd)) return;
  const fs::path begun = folder_ / temporary_name(file.path.filename().string());
  file.fd = ::open(begun.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file.fd < 0) throw_io_error(begun, "create", errno);
  struct stat st {};
  if (::fstat(file.fd, &st) != 0) throw_io_error(begun, "look at", errno);
  uint64_t at = static_cast<uint64_t>(st.st_size);
  // Without a hash, the existing bytes cannot be checked.
  if (at > object.size || !object.has_hash()) at = 0;
  if (::ftruncate(file.fd, static_cast<off_t>(at)) != 0) throw_io_error(begun, "resize", errno);
  ContentHasher hasher(object);
  Hasher contents;
  if (at > 0) hash_begin(file.fd, begun, at, hasher);
  fetcher.read(object, redirects, at, object.size - at, [&](std::span<const uint8_t> piece) {
    write_at(file.fd, begun, at, piece);
    hasher.update(piece);
    if (!object.is_pinned()) contents.update(piece);
    at += piece.size();
  });
  if (const std::string problem = hasher.problem(); !problem.empty()) {
    std::error_code ignored;
    fs::remove(begun, ignored);
    throw Error(fmt::format("{}: {}", object.shown, problem));
  }
  if (!object.is_pinned()) check_same_again(object, contents.digest());
  if (::rename(begun.c_str(), file.path.c_str()) != 0) throw_io_error(begun, "rename into place", errno);
}

void DownloadCache::check_same_again(const RemoteObject& object, const Hash128& found) {
  const std::lock_guard lock(mutex_);
  std::optional<Hash128>& before = unpinned_.at(cached_name(object));
  if (!before) before = found;
  if (*before != found) refuse_change(object, "contents of XXH3-128", before->hex(), found.hex());
}

std::shared_ptr<DownloadCache::File> DownloadCache::whole(const RemoteObject& object,
                                                          RedirectCache& redirects, const Fetcher& fetcher) {
  const std::string name = cached_name(object);
  std::unique_lock lock(mutex_);
  for (;;) {
    auto& slot = files_[name];
    if (!slot) {
      slot = std::make_shared<File>();
      slot->path = folder_ / name;
    }
    const std::shared_ptr<File> file = slot;
    if (file->state == File::State::kLoading) {
      changed_.wait_for(lock, std::chrono::milliseconds(200));
      check_interrupt();
      continue;
    }
    file->last_use = ++clock_;
    if (file->state == File::State::kWhole) {
      ++file->readers;
      return file;
    }
    if (downloads_[name] == kMostDownloads) {
      throw Error(
          fmt::format("{}: expected space for the files that are read together, found that {} was removed "
                      "for others and needed again {} times; make it larger than {} bytes",
                      options::kCacheSize, object.shown, kMostDownloads, limit_));
    }
    ++downloads_[name];
    if (!object.is_pinned()) unpinned_.try_emplace(name);
    file->state = File::State::kLoading;
    begin_phase();
    try {
      make_room(lock, object, name);
      file->bytes = object.size;
      file->reserved = true;
      lock.unlock();
      download(object, redirects, fetcher, *file);
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      file->state = File::State::kAbsent;
      file->reserved = false;
      end_phase();
      if (file->fd >= 0) ::close(std::exchange(file->fd, -1));
      --downloads_[name];
      changed_.notify_all();
      throw;
    }
    lock.lock();
    file->state = File::State::kWhole;
    file->reserved = false;
    end_phase();
    ++file->readers;
    changed_.notify_all();
    return file;
  }
}

void DownloadCache::read(const RemoteObject& object, RedirectCache& redirects, const Fetcher& fetcher,
                         uint64_t offset, std::span<uint8_t> out) {
  const std::shared_ptr<File> file = whole(object, redirects, fetcher);
  const auto done = [&] {
    const std::lock_guard lock(mutex_);
    --file->readers;
    changed_.notify_all();
  };
  try {
    read_at(file->fd, file->path, offset, out);
  } catch (...) {
    done();
    throw;
  }
  done();
}

}  // namespace twofour
