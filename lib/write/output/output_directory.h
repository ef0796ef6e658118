#pragma once
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/write/output/destination.h"
#include "lib/write/output/journal.h"

namespace twofour {

/// A directory that is being written. From the first file until finish() it holds a journal. The journal
/// marks the directory as unfinished for every command, and has a line for each finished step. The destructor
/// removes the written files unless finish() or keep() was called. So a failed run leaves nothing that looks
/// complete.
class OutputDirectory {
 public:
  /// `path` must be absent or empty, or be a directory of twofour's that `existing` allows. Throws Error on a
  /// symbolic link, and on a directory that is `source`, contains it or is inside it. A directory that is
  /// resumed stays as it is if the run fails. If an earlier run was killed while it emptied the directory,
  /// this run empties it first.
  OutputDirectory(const std::filesystem::path& path, const std::filesystem::path& source, Existing existing)
      : OutputDirectory(Destination(path, source, existing, !source.empty())) {}  // a command without a
                                                                                  // source is synth, which
                                                                                  // has no --resume
  /// Takes a directory that was examined before. Throws Error if the directory is to be replaced and files
  /// were added to it since.
  explicit OutputDirectory(const Destination& destination);
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;
  ~OutputDirectory();

  const std::filesystem::path& path() const { return path_; }
  /// Registers a new file under a relative name, makes its parent folders, and returns its path.
  std::filesystem::path add(const std::string& relative);
  /// The lines that the previous run wrote to the journal. A line that was incomplete when the run was killed
  /// is left out.
  const std::vector<std::string>& journal() const { return journal_->lines(); }
  /// Adds a line to the journal. When this returns, the line is on disk, and so are all names in the
  /// directory.
  void note(std::string_view line);
  /// Removes the files that an earlier run left, complete or not. `files` has their relative names. Files at
  /// the top of the directory whose names are in `keep` stay. If there is any other file, this throws Error,
  /// which names the file, and removes nothing.
  void clear(const std::set<std::string>& files, const std::set<std::string>& keep);
  /// From now on a run that fails leaves its files and the journal, so that it can be resumed.
  void keep() { keep_ = true; }
  /// From now on a run that fails leaves nothing.
  void discard() { keep_ = false; }
  bool keeps() const { return keep_; }
  /// Flushes the directory and removes the journal. Everything else must be complete.
  void finish();

 private:
  void take_over(const Destination& destination);
  void empty(const std::set<std::string>& names);
  void release(bool remove_journal);

  std::filesystem::path path_;
  std::optional<Journal> journal_;  ///< absent once finished
  bool created_ = false, keep_ = false;
  std::set<std::filesystem::path> files_, folders_;
};

}  // namespace twofour
