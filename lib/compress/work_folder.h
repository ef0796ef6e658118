#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/json.h"
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

/// What state.json of a work folder says of the layers that are whole. It ends with the hash of its text.
struct WorkState {
  static constexpr const char* kName = "state.json";

  int64_t layers = 0;  ///< whole, the head being one
  Json run;            ///< what a run that goes on has in common with this one, see lib/convert/resume.h
  std::vector<std::string> statistics = {};  ///< hash of those of each whole layer
  std::string streams = {};                  ///< hash of those behind the last layer; empty: not needed

  /// Nothing where the folder has none. Throws Error where it is damaged, or of another version.
  static std::optional<WorkState> read(const std::filesystem::path& work);
  void write(const std::filesystem::path& work) const;
};

/// Throws Error unless a file of a work folder has as many bytes as it was left with.
void check_left_size(const std::filesystem::path& file, uint64_t bytes);
/// Throws Error unless `what`, which a file of a work folder has, still has the hash that it was left with.
void check_left_hash(const std::filesystem::path& file, const std::string& what, const std::string& expected,
                     const std::string& found);
/// Throws Error: state.json is not what write() wrote.
[[noreturn]] void refuse_state(const std::filesystem::path& work);

}  // namespace twofour
