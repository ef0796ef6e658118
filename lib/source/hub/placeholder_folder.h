#pragma once
#include <filesystem>

namespace twofour {

/// A new folder in the folder for temporary files, "twofour-remote-XXXXXX", for files that have names and
/// sizes but not their bytes. The destructor removes it; the constructor removes the folders of killed runs.
class PlaceholderFolder {
 public:
  /// Throws Error if it cannot be created.
  PlaceholderFolder();
  ~PlaceholderFolder();
  PlaceholderFolder(const PlaceholderFolder&) = delete;
  PlaceholderFolder& operator=(const PlaceholderFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int lock_ = -1;  ///< of the folder: held while it is in use
};

}  // namespace twofour
