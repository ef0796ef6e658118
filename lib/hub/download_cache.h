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

#include "lib/hub/fetcher.h"
#include "lib/io/descriptor.h"
#include "lib/io/hash.h"
#include "lib/threads/progress.h"

namespace twofour {

/// Whole files in a folder, downloaded as they are needed and removed as others need the room. Files that an
/// earlier run left, whole or begun, are continued, but those of objects that nothing pins: these are
/// removed at the end. One run at a time has a folder. Safe from several threads.
class DownloadCache {
 public:
  /// Makes the folder if it is absent. At most `limit` bytes of files are in it. Throws Error where another
  /// run has it.
  DownloadCache(const std::filesystem::path& folder, uint64_t limit);
  ~DownloadCache();
  DownloadCache(const DownloadCache&) = delete;
  DownloadCache& operator=(const DownloadCache&) = delete;

  /// While a file is downloaded, the phase of `progress` says so; nullptr: none. It outlives all reading.
  void show(Progress* progress) { progress_ = progress; }

  /// Fills `out` from byte `offset` of an object, which is downloaded first if it is not here. Its hash is
  /// compared where it is known; where nothing pins it and it is downloaded again, both downloads. Throws
  /// Error where it does not fit, and where it is needed once more and again after it was removed for others.
  void read(const RemoteObject& object, RedirectCache& redirects, const Fetcher& fetcher, uint64_t offset,
            std::span<uint8_t> out);

  /// Removes an object after its last reader, also one of an earlier run.
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
  std::map<std::string, int> downloads_;                ///< how often each was begun
  /// By name, what nothing pins: its contents, once they were whole.
  std::map<std::string, std::optional<Hash128>> unpinned_;
  uint64_t clock_ = 0;
  Progress* progress_ = nullptr;
  int active_ = 0;               ///< downloads
  const char* phase_ = nullptr;  ///< before them
};

/// The name of an object in the folder: its own, and what identifies its contents.
std::string cached_name(const RemoteObject& object);

}  // namespace twofour
