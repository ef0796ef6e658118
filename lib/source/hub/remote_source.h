#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/io/remote_file.h"
#include "lib/source/hub/download_cache.h"
#include "lib/source/hub/listing.h"
#include "lib/source/hub/placeholder_folder.h"

namespace twofour {

/// The folder for whole downloaded files, and the largest number of bytes that they may take.
struct CacheOptions {
  std::filesystem::path folder;
  uint64_t limit = 0;
};

class RemoteSourceFile;

/// A source that may be remote, as a path on this machine. For hf:// and https:// the path is a folder of
/// files that have the right names and sizes but no bytes. While this object lives, InputFile fetches the
/// bytes that are read. The destructor removes the folder.
class RemoteSource {
 public:
  /// A path is used as it is. For a URL, the constructor lists the files and reads the headers of weight
  /// files, several at once. Without `cache`, only ranges of files are fetched. Throws Error like
  /// list_remote().
  explicit RemoteSource(const std::string& source, const std::optional<CacheOptions>& cache = std::nullopt,
                        const RetryPolicy& policy = {});
  ~RemoteSource();
  RemoteSource(const RemoteSource&) = delete;
  RemoteSource& operator=(const RemoteSource&) = delete;

  bool is_remote() const { return folder_ != nullptr; }
  /// The directory or file that the source names.
  const std::filesystem::path& path() const { return path_; }

  /// From now on, reads come from the cache if they are of a weight file, or of another file above 1 MiB. The
  /// whole file is downloaded into the cache first. `progress` shows downloads and must outlive all reading.
  void download_whole_files(Progress* progress = nullptr);
  /// Removes this source's files from the cache. Call it after the last read of them.
  void remove_downloads();

 private:
  void read_headers() const;

  std::filesystem::path path_;
  std::unique_ptr<const PlaceholderFolder> placeholders_;
  std::unique_ptr<const Fetcher> fetcher_;
  std::unique_ptr<DownloadCache> cache_;
  std::vector<std::shared_ptr<RemoteSourceFile>> files_;
  std::unique_ptr<RemoteFolder> folder_;
};

/// Throws Error, with advice, if `source` is a URL. Commands that read whole checkpoints call this function.
/// `why` is the reason in the message.
void refuse_remote(const std::string& source, const char* why);

}  // namespace twofour
