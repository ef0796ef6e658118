#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace twofour {

/// The state of files at one moment: size, times and inode by name. A run that opens files by name at several
/// moments compares states to be sure that it has read one state of them. It omits names that begin with a
/// dot, unless an index of the directory lists them; files that this program prints into; and files behind a
/// URL, since each answer identifies their contents.
class FileStates {
 public:
  /// Takes files below directories, and files that are given themselves. Links to files are followed; links
  /// to directories are followed only for files of an index. Empty and absent paths have no files. Throws
  /// Error if a directory cannot be listed.
  explicit FileStates(std::vector<std::filesystem::path> paths);
  /// Ignores a file that the run itself writes.
  void leave_out(const std::filesystem::path& file);
  /// Throws Error naming the first file that has been removed, replaced, written to or touched since, with
  /// `advice` at the end; also for a new file that loaders would read by its name, *.safetensors or *.json.
  void check_unchanged(const std::string& advice = "run it again once nothing writes there") const;

 private:
  struct State {
    uint64_t bytes;
    int64_t modified, status_changed;  ///< nanoseconds since 1970
    uint64_t device, inode;            ///< 0 if the file system may renumber files
    bool operator==(const State&) const = default;
  };
  using States = std::map<std::string, State>;

  States list() const;
  bool is_left_out(const std::filesystem::path& file) const;

  std::vector<std::filesystem::path> paths_, left_out_;  ///< the latter canonical
  States files_;                                         ///< by path
};

}  // namespace twofour
