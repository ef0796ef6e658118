#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/io/descriptor.h"

namespace twofour {

/// The state of a directory's journal, and so of the run that wrote it.
enum class JournalState {
  kNone,    ///< there is no journal
  kBegun,   ///< empty or a part of our first line: by a run killed at its first step, or by another program
  kMarked,  ///< our first line alone: by a run that noted nothing yet, or by tasks, whose notes are elsewhere
  kOurs,    ///< begins with a valid line and describes a run
  kSynth,   ///< by synth, which cannot be resumed
  kForeign,  ///< anything else
};
JournalState journal_state(const std::filesystem::path& directory);

/// The line that synth notes.
constexpr std::string_view kSynthNote = "synth";

/// The file that marks a directory as unfinished and records what a run has done. Its first line states its
/// kind and format. Each line begins with the hash of the rest: the hash reveals a line that reached the disk
/// only in part, and proves that twofour wrote it.
class Journal {
 public:
  /// Opens the journal of a directory, creating it if it is absent, and holds a lock as long as this object
  /// lives. Tasks that write one directory at the same time share the lock; they write no lines. Throws Error
  /// if another process holds the lock. On file systems without locks it works without one.
  Journal(const std::filesystem::path& directory, Sharing sharing);
  const std::filesystem::path& path() const { return path_; }
  /// True if the journal was there before; else this object made it.
  bool was_there() const { return file_.was_there(); }
  /// True if the file still has its name.
  bool has_name() const { return twofour::has_name(file_.descriptor(), path_); }
  /// True if the journal begins like this version's, or is empty.
  bool is_current() const { return current_; }
  /// The lines that follow the first, up to the first that is damaged.
  const std::vector<std::string>& lines() const { return lines_; }

  /// Writes the first line if it is not there yet.
  void begin();
  /// Adds a line after the last sound one. It is on disk when this returns.
  void note(std::string_view line);
  /// Removes all lines except the first, also those of another version.
  void restart();

 private:
  void read_lines();
  void write(uint64_t at, std::string_view text);

  std::filesystem::path path_;
  LockedFile file_;
  bool current_ = true;
  uint64_t end_ = 0;   ///< of the last sound line
  bool torn_ = false;  ///< a damaged line follows it
  std::vector<std::string> lines_;
};

}  // namespace twofour
