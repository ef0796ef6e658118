#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/io/descriptor.h"

namespace twofour {

/// The folder of a running compression. Only one process at a time uses it, since the process locks a file in
/// it. On file systems without locks, other processes are not excluded.
class WorkFolder {
 public:
  /// Creates the folder if it is absent. Throws Error if another process has locked it.
  explicit WorkFolder(const std::filesystem::path& path);

  /// Removes the content of the folder.
  void clear() const;
  /// Removes the folder.
  void remove() const;

  static constexpr const char* kLock = "lock";

 private:
  std::filesystem::path path_;
  std::optional<LockedFile> lock_;
};

/// The content of state.json in a work folder, which describes the complete layers. The file ends with the
/// hash of its text.
struct WorkState {
  static constexpr const char* kName = "state.json";

  int64_t layers = 0;  ///< number of complete layers; the head counts as one
  Json run;            ///< the data that must be equal in a run that resumes, see lib/jobs/convert/resume.h
  std::vector<std::string> statistics = {};  ///< hashes of the statistics of each complete layer
  std::string streams = {};                  ///< hash of the residual streams after the last complete layer;
                                             ///< empty if they are not needed

  /// Empty if the folder has no state. Throws Error if the state is damaged or of a different version.
  static std::optional<WorkState> read(const std::filesystem::path& work);
  void write(const std::filesystem::path& work) const;
};

/// Throws Error unless a file of a work folder still has `bytes` bytes.
void check_left_size(const std::filesystem::path& file, uint64_t bytes);
/// Throws Error unless `found` equals `expected`, the hash of `what` in a file of a work folder.
void check_left_hash(const std::filesystem::path& file, const std::string& what, const std::string& expected,
                     const std::string& found);
/// Throws Error, since this state.json was not written by write().
[[noreturn]] void refuse_state(const std::filesystem::path& work);

}  // namespace twofour
