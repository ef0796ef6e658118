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

/// The folder of whole files, and the most bytes that they may take.
struct CacheOptions {
  std::filesystem::path folder;
  uint64_t limit = 0;
};

class RemoteSourceFile;

/// A source as a path on this machine. For hf:// and https:// the path is a folder of files with the right
/// names and sizes and no bytes; while this object lives, InputFile fetches the bytes that are read. The
/// destructor removes the folder.
class RemoteSource {
 public:
  /// Leaves a path as it is. For a URL, lists the files and reads the headers of weights, several at once.
  /// Without `cache` only ranges are read. Throws Error, as list_remote() does.
  explicit RemoteSource(const std::string& source, const std::optional<CacheOptions>& cache = std::nullopt,
                        const RetryPolicy& policy = {});
  ~RemoteSource();
  RemoteSource(const RemoteSource&) = delete;
  RemoteSource& operator=(const RemoteSource&) = delete;

  bool is_remote() const { return folder_ != nullptr; }
  /// The directory or the file that the source names.
  const std::filesystem::path& path() const { return path_; }

  /// From now on, reads of a weight file, or of another file above 1 MiB, come from the cache, into which the
  /// whole file is downloaded first. `progress` shows downloads and must outlive all reading.
  void download_whole_files(Progress* progress = nullptr);
  /// Removes this source's files from the cache when nothing needs them any more.
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

/// Throws Error, with advice, if `source` is a URL: for commands that read whole checkpoints.
void refuse_remote(const std::string& source, const char* why);

}  // namespace twofour
