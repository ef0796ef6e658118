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

/// A directory being written. From the first file to finish() it holds a journal, which marks it as
/// unfinished for every command and records each finished step as a line. The destructor removes the written
/// files unless finish() or keep() was called, so that a failed run leaves nothing that looks complete.
class OutputDirectory {
 public:
  /// `path` must be absent or empty, or be one of our directories that `existing` allows. Refuses a symbolic
  /// link, and a directory that is, contains or is inside `source`. A resumed directory stays as it is if the
  /// run fails. If an earlier run was killed while emptying it, it is emptied first.
  OutputDirectory(const std::filesystem::path& path, const std::filesystem::path& source, Existing existing)
      : OutputDirectory(Destination(path, source, existing, !source.empty())) {}  // synth has no --resume
  /// A directory that was examined before. Throws Error if files were added to a directory to replace.
  explicit OutputDirectory(const Destination& destination);
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;
  ~OutputDirectory();

  const std::filesystem::path& path() const { return path_; }
  /// The path of a new file of that relative name; makes its parent folders. Remembers the file as ours.
  std::filesystem::path add(const std::string& relative);
  /// Lines that the previous run wrote to the journal; a line that it was killed while writing is missing.
  const std::vector<std::string>& journal() const { return journal_->lines(); }
  /// Adds a line to the journal. It is on disk when this returns, after all names that the directory has.
  void note(std::string_view line);
  /// Removes the `files` (relative names) that an earlier run left, whole or not, except the names in `keep`
  /// at the top. If there is any other file, throws Error that names it, before removing anything.
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
