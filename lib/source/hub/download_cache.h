#pragma once
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "lib/base/io/descriptor.h"
#include "lib/base/io/hash.h"
#include "lib/base/threads/progress.h"
#include "lib/source/hub/fetcher.h"

namespace twofour {

/// A folder of downloaded files. Files are downloaded as they are needed, and removed when other files need
/// the space. Files that an earlier run left, complete or not, are reused. The files of objects that nothing
/// pins are removed at the end of the run. Only one run at a time may use a folder. Several threads may use
/// the cache at once.
class DownloadCache {
 public:
  /// Creates the folder if it does not exist. `limit` is the largest total size of its files in bytes. Throws
  /// Error if another run uses the folder.
  DownloadCache(const std::filesystem::path& folder, uint64_t limit);
  ~DownloadCache();
  DownloadCache(const DownloadCache&) = delete;
  DownloadCache& operator=(const DownloadCache&) = delete;

  /// Shows downloads as a phase of `progress`, which must outlive all reading. Null to show no downloads.
  void show(Progress* progress) { progress_ = progress; }

  /// Fills `out` with the bytes of an object from `offset` on. Downloads the object first if it is not in the
  /// cache, and checks its hash if the hash is known. If nothing pins the object and it is downloaded again,
  /// both downloads are compared. Throws Error if the object does not fit into the folder, or if it is needed
  /// again too often after it made room for others.
  void read(const RemoteObject& object, RedirectCache& redirects, const Fetcher& fetcher, uint64_t offset,
            std::span<uint8_t> out);

  /// Removes an object after its last reader has finished. A file that an earlier run left is removed, too.
  void remove(const RemoteObject& object);

 private:
  struct File;
  std::shared_ptr<File> whole(const RemoteObject& object, RedirectCache& redirects, const Fetcher& fetcher);
  void make_room(std::unique_lock<std::mutex>& lock, const RemoteObject& object, const std::string& name);
  void begin_phase();
  void end_phase();
  void download(const RemoteObject& object, RedirectCache& redirects, const Fetcher& fetcher, File& file);
  void check_same_again(const RemoteObject& object, const Hash128& found);

  const std::filesystem::path folder_;
  const uint64_t limit_;
  const LockedFile lock_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<File>> files_;  ///< files, by name in the folder
  std::map<std::string, int> downloads_;  ///< for each name, the number of times that a download began
  /// The hash of the contents, once a download is complete, for each name of an object that nothing pins.
  std::map<std::string, std::optional<Hash128>> unpinned_;
  uint64_t clock_ = 0;
  Progress* progress_ = nullptr;
  int active_ = 0;               ///< number of running downloads
  const char* phase_ = nullptr;  ///< phase of progress_ that the downloads interrupt
};

/// Returns the name of an object's file in the folder. It consists of the object's own name and a hash that
/// identifies the contents.
std::string cached_name(const RemoteObject& object);

}  // namespace twofour
