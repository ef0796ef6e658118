#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/hub/download_cache.h"
#include "lib/hub/listing.h"
#include "lib/hub/placeholder_folder.h"
#include "lib/io/remote_file.h"

namespace twofour {

/// Where whole files go, and how many bytes of them.
struct CacheOptions {
  std::filesystem::path folder;
  uint64_t limit = 0;
};

class RemoteSourceFile;

/// A source as a path on this machine. Of hf:// and https:// that is a folder of files that have their names
/// and sizes and no bytes; while this lives, InputFile asks for what is read of them. The folder goes with
/// it.
class RemoteSource {
 public:
  /// A path is left as it is. Of a URL, lists the files and reads the headers of weights, several at once.
  /// Without `cache` only ranges are read. Throws Error, as list_remote() does.
  explicit RemoteSource(const std::string& source, const std::optional<CacheOptions>& cache = std::nullopt,
                        const RetryPolicy& policy = {});
  ~RemoteSource();
  RemoteSource(const RemoteSource&) = delete;
  RemoteSource& operator=(const RemoteSource&) = delete;

  bool is_remote() const { return folder_ != nullptr; }
  /// The directory or the file that the source names.
  const std::filesystem::path& path() const { return path_; }

  /// From now on what is read of a weight file, or of another above 1 MiB, is read from the cache, into which
  /// the whole file is downloaded first. `progress` shows downloads and outlives all reading.
  void download_whole_files(Progress* progress = nullptr);
  /// Removes this source's files from the cache, once nothing needs them any more.
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

/// Throws Error, saying what to do, where `source` is a URL: for commands that read whole checkpoints.
void refuse_remote(const std::string& source, const char* why);

}  // namespace twofour
