#pragma once
#include <filesystem>
#include <set>
#include <string>
#include <string_view>

namespace twofour {

/// A directory being written. From the first file to finish() it holds a marker by which every command knows
/// it as unfinished. The destructor takes away what was written unless finish() was called, so that a failed
/// run leaves nothing that looks complete.
class OutputDirectory {
 public:
  /// `path` must be absent or empty. With `force` it may also be one that twofour wrote, which is emptied
  /// first. Refuses a symbolic link, and a directory that is, holds or lies in `source`.
  OutputDirectory(const std::filesystem::path& path, const std::filesystem::path& source, bool force);
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;
  ~OutputDirectory();

  const std::filesystem::path& path() const { return path_; }
  /// Where a file of that relative name goes; its parent folders are made. Remembers it as ours.
  std::filesystem::path add(const std::string& relative);
  /// Flushes the directory and takes the marker away. Everything else must be in place.
  void finish();

  /// Throws what the constructor would, without changing anything.
  static void check(const std::filesystem::path& path, const std::filesystem::path& source, bool force);

 private:
  void take_marker();
  void release(bool remove_marker);

  std::filesystem::path path_;
  /// Holds the lock that keeps other runs out; -1 once finished.
  int marker_ = -1;
  bool created_ = false;
  std::set<std::filesystem::path> files_, folders_;
};

}  // namespace twofour
