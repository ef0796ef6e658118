#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace twofour {

/// Files as they were at one moment: by name their size, times and inode. A run that opens files by name at
/// several moments knows by it that it has read one state of them. Left out are names that begin with a dot,
/// unless an index of the directory has them, files that this program prints into, and what is behind a URL,
/// of which each answer names its contents.
class FileStates {
 public:
  /// Of the files below directories, and of files that are given themselves. Links to files are followed,
  /// those to directories are not, but for files of an index. Empty and absent paths have no files. Throws
  /// Error where one cannot be listed.
  explicit FileStates(std::vector<std::filesystem::path> paths);
  /// Leaves out a file that the run itself writes.
  void leave_out(const std::filesystem::path& file);
  /// Throws Error naming the first file that was removed, replaced, written to or touched since, with
  /// `advice` at the end; also a new one that loaders would read by its name, *.safetensors or *.json.
  void check_unchanged(const std::string& advice = "run it again once nothing writes there") const;

 private:
  struct State {
    uint64_t bytes;
    int64_t modified, status_changed;  ///< nanoseconds since 1970
    uint64_t device, inode;            ///< 0 where the file system may give a file another one
    bool operator==(const State&) const = default;
  };
  using States = std::map<std::string, State>;

  States list() const;
  bool is_left_out(const std::filesystem::path& file) const;

  std::vector<std::filesystem::path> paths_, left_out_;  ///< the latter canonical
  States files_;                                         ///< by path
};

}  // namespace twofour
