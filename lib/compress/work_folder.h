#pragma once
#include <filesystem>
#include <optional>

#include "lib/io/descriptor.h"

namespace twofour {

/// The folder of a compression at work, which one process has at a time: it holds the lock of a file in it.
/// On file systems without locks nothing keeps others out.
class WorkFolder {
 public:
  /// Creates the folder if it is absent. Throws Error if another process holds it.
  explicit WorkFolder(const std::filesystem::path& path);

  /// Removes what is in it.
  void clear() const;
  /// Removes the folder.
  void remove() const;

  static constexpr const char* kLock = "lock";

 private:
  std::filesystem::path path_;
  std::optional<LockedFile> lock_;
};

}  // namespace twofour
