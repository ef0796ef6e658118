#include "lib/source/hub/remote_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <mutex>

#include "formats/error.h"
#include "formats/safetensors.h"
#include "lib/base/findings/given_urls.h"
#include "lib/base/findings/shown_url.h"
#include "lib/base/io/descriptor.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/parallel.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// Bytes are fetched in blocks of kBlock, and at least kAtOnce bytes in one request. Most headers of weight
/// files are smaller.
constexpr uint64_t kBlock = 64u << 10, kAtOnce = 4 * kBlock;
constexpr uint64_t kSmallFile = 1u << 20;
/// The number of headers that are requested at the same time.
constexpr int kConnections = 8;

constexpr std::string_view kWeights = ".safetensors";

}  // namespace

/// One file of a remote source. Bytes that were fetched by ranges are stored in the placeholder file.
class RemoteSourceFile : public RemoteFile {
 public:
  RemoteSourceFile(RemoteObject object, const fs::path& path, const Fetcher& fetcher, DownloadCache* cache)
      : object_(std::move(object)),
        path_(path),
        fetcher_(fetcher),
        cache_(cache),
        here_(static_cast<size_t>((object_.size + kBlock - 1) / kBlock)),
        missing_(here_.size()) {
    fs::create_directories(path_.parent_path());
    const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) throw_io_error(path_, "create", errno);
    const bool sized = ::ftruncate(fd, static_cast<off_t>(object_.size)) == 0;
    const int error = errno;
    ::close(fd);
    if (!sized) throw_io_error(path_, "resize", error);
  }
  ~RemoteSourceFile() override {
    if (fd_ >= 0) ::close(fd_);
  }

  uint64_t size() const override { return object_.size; }
  int64_t version() const override {
    if (!object_.is_pinned()) return kUnknownVersion;
    const std::string contents = object_.sha256 + object_.etag + object_.modified;
    return static_cast<int64_t>(hash_text(fmt::format("{} {}", contents, object_.size)).low >> 1);
  }
  const RemoteObject& object() const { return object_; }
  bool is_weights() const { return object_.name.ends_with(kWeights); }
  void read_whole() { whole_ = true; }

  /// Reads bytes. A failure is not about the content, so it becomes a ReadError. No command takes it for
  /// damage of the file.
  void read(uint64_t offset, std::span<uint8_t> out) override {
    try {
      read_bytes(offset, out);
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      throw ReadError(e.what());
    }
  }

  /// Fetches the header of a weight file, and the bytes that come with it.
  void read_header() {
    std::vector<uint8_t> head(std::min(object_.size, kSafetensorsPrefix));
    read(0, head);
    uint64_t length = 0;
    for (size_t i = head.size(); i-- > 0;) length = length << 8 | head[i];
    // The file is not safetensors.
    if (head.size() < kSafetensorsPrefix || length > object_.size - head.size()) return;
    const std::lock_guard lock(mutex_);
    fetch(0, std::min(length, kSafetensorsMaxHeader) + head.size());
  }

 private:
  void read_bytes(uint64_t offset, std::span<uint8_t> out) {
    if (out.empty()) return;
    if (whole_ && (is_weights() || object_.size > kSmallFile)) {
      if (!object_.is_pinned()) check_ranges();
      return cache_->read(object_, redirects_, fetcher_, offset, out);
    }
    const std::lock_guard lock(mutex_);
    if (fd_ < 0) {
      fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
      if (fd_ < 0) throw ReadError(path_, errno, "open");
    }
    fetch(offset, out.size());
    read_at(fd_, path_, offset, out);
  }
  /// Throws Error if the whole downloaded file differs from ranges that were fetched earlier.
  void check_ranges() {
    const std::lock_guard lock(mutex_);
    std::vector<uint8_t> range(kBlock), whole(kBlock);
    for (uint64_t b = 0; !is_compared_ && b < here_.size(); ++b) {
      if (!here_[b]) continue;
      range.resize(std::min(kBlock, object_.size - b * kBlock));
      whole.resize(range.size());
      read_at(fd_, path_, b * kBlock, range);
      cache_->read(object_, redirects_, fetcher_, b * kBlock, whole);
      if (range != whole) refuse_change(object_, "the bytes that were read", "before", "others");
    }
    is_compared_ = true;
  }

  /// Fetches the missing bytes of the range.
  void fetch(uint64_t offset, uint64_t bytes) {
    const uint64_t end = (offset + bytes + kBlock - 1) / kBlock;
    for (uint64_t b = offset / kBlock; b < end; ++b) {
      if (here_[b]) continue;
      uint64_t last = b + 1;
      const uint64_t most = std::min<uint64_t>(std::max(end, b + kAtOnce / kBlock), here_.size());
      while (last < most && !here_[last]) ++last;
      uint64_t at = b * kBlock;
      const uint64_t stop = std::min(last * kBlock, object_.size);
      fetcher_.read(object_, redirects_, at, stop - at, [&](std::span<const uint8_t> piece) {
        write_at(fd_, path_, at, piece);
        at += piece.size();
      });
      std::fill(here_.begin() + static_cast<ptrdiff_t>(b), here_.begin() + static_cast<ptrdiff_t>(last),
                true);
      missing_ -= last - b;
      if (missing_ == 0) check_whole();
    }
  }

  /// Compares the bytes with the listed hash once all of them are fetched. For a small file, this happens
  /// before any byte is returned.
  void check_whole() {
    if (!object_.has_hash()) return;
    ContentHasher hasher(object_);
    const auto read = [&](uint64_t at, std::span<uint8_t> piece) { read_at(fd_, path_, at, piece); };
    read_in_pieces(object_.size, 1u << 20, read,
                   [&](uint64_t, std::span<const uint8_t> piece) { hasher.update(piece); });
    const std::string problem = hasher.problem();
    if (problem.empty()) return;
    std::fill(here_.begin(), here_.end(), false);
    missing_ = here_.size();
    throw Error(fmt::format("{}: {}", object_.shown, problem));
  }

  const RemoteObject object_;
  const fs::path path_;
  const Fetcher& fetcher_;
  DownloadCache* const cache_;
  RedirectCache redirects_;
  std::atomic<bool> whole_{false};
  std::mutex mutex_;
  int fd_ = -1;
  std::vector<bool> here_;    ///< blocks that have been fetched
  bool is_compared_ = false;  ///< these blocks have been compared with the whole file
  size_t missing_;            ///< number of blocks that have not been fetched
};

RemoteSource::RemoteSource(const std::string& source, const std::optional<CacheOptions>& cache,
                           const RetryPolicy& policy)
    : path_(source) {
  if (!is_remote_address(source)) return;
  fetcher_ = std::make_unique<const Fetcher>(hub_settings(), policy);
  RemoteListing listing =
      list_remote(parse_remote_address(whole_url(source), fetcher_->settings()), *fetcher_);
  if (cache) cache_ = std::make_unique<DownloadCache>(cache->folder, cache->limit);
  placeholders_ = std::make_unique<const PlaceholderFolder>();
  const fs::path& root = placeholders_->path();
  std::map<std::string, std::shared_ptr<RemoteFile>> files;
  for (RemoteObject& object : listing.files) {
    const std::string name = object.name;
    files_.push_back(
        std::make_shared<RemoteSourceFile>(std::move(object), root / name, *fetcher_, cache_.get()));
    files[name] = files_.back();
  }
  folder_ = std::make_unique<RemoteFolder>(root, listing.name, std::move(listing.note), std::move(files));
  path_ = listing.file.empty() ? root : root / listing.file;
  read_headers();
}

RemoteSource::~RemoteSource() = default;

void RemoteSource::read_headers() const {
  std::vector<RemoteSourceFile*> weights;
  for (const auto& file : files_) {
    if (file->is_weights()) weights.push_back(file.get());
  }
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto loop = [&] {
    for (size_t i = next++; i < weights.size(); i = next++) {
      try {
        weights[i]->read_header();
      } catch (...) {
        next = weights.size();
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    }
  };
  run_on_threads(std::min(static_cast<int>(weights.size()), kConnections), loop,
                 [&] { next = weights.size(); });
  if (failure) std::rethrow_exception(failure);
}

void RemoteSource::download_whole_files(Progress* progress) {
  if (cache_ == nullptr) return;
  cache_->show(progress);
  for (const auto& file : files_) file->read_whole();
}

void RemoteSource::remove_downloads() {
  if (cache_ == nullptr) return;
  for (const auto& file : files_) cache_->remove(file->object());
}

void refuse_remote(const std::string& source, const char* why) {
  if (!is_remote_address(source)) return;
  throw Error(
      fmt::format("{}: {}; download it first, for example with: hf download", shown_url(source), why));
}

}  // namespace twofour
