#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/io/descriptor.h"

namespace twofour {

/// The state of a directory's journal. It names the run that wrote the journal.
enum class JournalState {
  kNone,    ///< there is no journal
  kBegun,   ///< empty, or holds only a part of our first line: a run was killed at its first step, or another
            ///< program wrote it
  kMarked,  ///< holds only our first line: a run noted nothing yet, or tasks wrote it, whose notes are
            ///< elsewhere
  kOurs,    ///< begins with a valid line and describes a run
  kSynth,   ///< synth wrote it, which cannot be resumed
  kForeign,  ///< anything else
};
JournalState journal_state(const std::filesystem::path& directory);

/// The line that synth writes.
constexpr std::string_view kSynthNote = "synth";

/// The file that marks a directory as unfinished and records what a run has done. Its first line states its
/// kind and format. Each line begins with the hash of its rest. The hash reveals a line that reached the disk
/// only in part, and proves that twofour wrote it.
class Journal {
 public:
  /// Opens the journal of a directory, or creates it if it is absent, and holds a lock as long as this object
  /// lives. Tasks that write one directory at the same time share the lock and write no lines. Throws Error
  /// if another process holds the lock. On file systems without locks it works without a lock.
  Journal(const std::filesystem::path& directory, Sharing sharing);
  const std::filesystem::path& path() const { return path_; }
  /// True if the journal existed before; false if this object made it.
  bool was_there() const { return file_.was_there(); }
  /// True if the path still leads to the opened file.
  bool has_name() const { return twofour::has_name(file_.descriptor(), path_); }
  /// True if the journal is empty or begins like the journals of this version.
  bool is_current() const { return current_; }
  /// The lines that follow the first line, up to the first damaged line.
  const std::vector<std::string>& lines() const { return lines_; }

  /// Writes the first line if it is absent.
  void begin();
  /// Adds a line after the last undamaged line. The line is on disk when this returns.
  void note(std::string_view line);
  /// Removes all lines except the first, also the lines of another version.
  void restart();

 private:
  void read_lines();
  void write(uint64_t at, std::string_view text);

  std::filesystem::path path_;
  LockedFile file_;
  bool current_ = true;
  uint64_t end_ = 0;   ///< end of the last undamaged line
  bool torn_ = false;  ///< a damaged line follows `end_`
  std::vector<std::string> lines_;
};

}  // namespace twofour
