#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace twofour {

/// The sizes, times and inodes of files at one moment, by name. A run that opens files by name at several
/// moments compares these states to be sure that no file changed between its reads. Three kinds of files are
/// omitted: names that begin with a dot, unless an index of the directory lists them; files that this program
/// prints into; and files of a URL, since each answer of the server identifies their contents.
class FileStates {
 public:
  /// Each path is a file, or a directory whose files are taken at any depth. Links to files are followed.
  /// Links to directories are followed only for files that an index lists. Empty and absent paths have no
  /// files. Throws Error if a directory cannot be listed.
  explicit FileStates(std::vector<std::filesystem::path> paths);
  /// Ignores a file that the run itself writes.
  void leave_out(const std::filesystem::path& file);
  /// Throws Error that names the first file that has been removed, replaced, written to or touched since
  /// construction. Also throws for a new file that loaders would read because of its name, *.safetensors or
  /// *.json. `advice` is the end of the message.
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

  std::vector<std::filesystem::path> paths_, left_out_;  ///< `left_out_` are canonical
  States files_;                                         ///< by path
};

}  // namespace twofour
