#pragma once
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/output/destination.h"
#include "lib/output/journal.h"

namespace twofour {

/// A directory being written. From the first file to finish() it holds a journal, which marks it as
/// unfinished for every command and records each finished step as a line. The destructor removes what was
/// written unless finish() or keep() was called, so that a failed run leaves nothing that looks complete.
class OutputDirectory {
 public:
  /// `path` must be absent or empty, or be one of ours that `existing` allows. Refuses a symbolic link, and a
  /// directory that is, contains or is inside `source`. One that is resumed stays as it is when the run
  /// fails; one that an earlier run was killed emptying is emptied first.
  OutputDirectory(const std::filesystem::path& path, const std::filesystem::path& source, Existing existing)
      : OutputDirectory(Destination(path, source, existing, !source.empty())) {}  // synth has no --resume
  /// One that was looked at before. Throws Error where files came to what is to be replaced.
  explicit OutputDirectory(const Destination& destination);
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;
  ~OutputDirectory();

  const std::filesystem::path& path() const { return path_; }
  /// Where a file of that relative name goes; its parent folders are made. Remembers it as ours.
  std::filesystem::path add(const std::string& relative);
  /// Lines that the run before wrote to the journal; of one that was killed while writing none.
  const std::vector<std::string>& journal() const { return journal_->lines(); }
  /// Adds a line to the journal. It is on disk when this returns, after all names that the directory has.
  void note(std::string_view line);
  /// Removes what an earlier run left of `files` (relative names), whole or not, except the names in `keep`
  /// at the top. Throws Error that names any other file, before anything is removed.
  void clear(const std::set<std::string>& files, const std::set<std::string>& keep);
  /// From now on a run that fails leaves its files and the journal, to be resumed.
  void keep() { keep_ = true; }
  /// From now on a run that fails leaves nothing.
  void discard() { keep_ = false; }
  bool keeps() const { return keep_; }
  /// Flushes the directory and removes the journal. Everything else must be in place.
  void finish();

 private:
  void take_over(const Destination& destination);
  void empty(const std::set<std::string>& names);
  void release(bool remove_journal);

  std::filesystem::path path_;
  std::optional<Journal> journal_;  ///< none once finished
  bool created_ = false, keep_ = false;
  std::set<std::filesystem::path> files_, folders_;
};

}  // namespace twofour
