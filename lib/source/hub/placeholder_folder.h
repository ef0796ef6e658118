#pragma once
#include <filesystem>

namespace twofour {

/// A new folder "twofour-remote-XXXXXX" in the system's temporary folder. Its files have names and sizes but
/// not their bytes. The destructor removes it. The constructor also removes the folders that killed runs
/// left.
class PlaceholderFolder {
 public:
  /// Throws Error if the folder cannot be created.
  PlaceholderFolder();
  ~PlaceholderFolder();
  PlaceholderFolder(const PlaceholderFolder&) = delete;
  PlaceholderFolder& operator=(const PlaceholderFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int lock_ = -1;  ///< descriptor whose lock marks the folder as in use
};

}  // namespace twofour
