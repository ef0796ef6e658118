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

/// Complete files in a folder, downloaded as they are needed and removed when others need the space. Files
/// that an earlier run left, complete or not, are reused. Unpinned objects are the exception: their files are
/// removed at the end. Only one run at a time may use a folder. Safe from several threads.
class DownloadCache {
 public:
  /// Creates the folder if it is absent. It holds at most `limit` bytes of files. Throws Error if another run
  /// uses it.
  DownloadCache(const std::filesystem::path& folder, uint64_t limit);
  ~DownloadCache();
  DownloadCache(const DownloadCache&) = delete;
  DownloadCache& operator=(const DownloadCache&) = delete;

  /// Shows in the phase of `progress` that a file is being downloaded; nullptr: not shown. It must outlive
  /// all reading.
  void show(Progress* progress) { progress_ = progress; }

  /// Fills `out` from byte `offset` of an object, which is downloaded first if it is not in the cache. Its
  /// hash is checked if it is known. If nothing pins an object and it is downloaded again, both downloads are
  /// compared. Throws Error if it does not fit, or if it was removed for others and is needed again too
  /// often.
  void read(const RemoteObject& object, RedirectCache& redirects, const Fetcher& fetcher, uint64_t offset,
            std::span<uint8_t> out);

  /// Removes an object after its last reader; also a file that an earlier run left.
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
  std::map<std::string, std::shared_ptr<File>> files_;  ///< by name in the folder
  std::map<std::string, int> downloads_;                ///< number of times that each was begun
  /// Unpinned objects by name: the hash of their contents, once a download is complete.
  std::map<std::string, std::optional<Hash128>> unpinned_;
  uint64_t clock_ = 0;
  Progress* progress_ = nullptr;
  int active_ = 0;               ///< downloads
  const char* phase_ = nullptr;  ///< the phase before them
};

/// The name of an object in the folder: its own name and a hash that identifies its contents.
std::string cached_name(const RemoteObject& object);

}  // namespace twofour
