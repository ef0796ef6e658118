#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lib/io/descriptor.h"

namespace twofour {

/// What a directory's journal says about the run that wrote it.
enum class JournalState {
  kNone,    ///< there is no journal
  kBegun,   ///< empty or a part of our first line: of a run killed at its first step, or of another program
  kMarked,  ///< our first line alone: of a run that noted nothing yet, or of tasks, whose notes are elsewhere
  kOurs,    ///< begins with a valid line and describes a run
  kSynth,   ///< of synth, which cannot be resumed
  kForeign,  ///< anything else
};
JournalState journal_state(const std::filesystem::path& directory);

/// The line that synth notes.
constexpr std::string_view kSynthNote = "synth";

/// The file that marks a directory as unfinished and records what a run has done. Its first line says what it
/// is and in which format. Each line begins with the hash of the rest: that reveals a line that reached the
/// disk only in part, and proves that twofour wrote it.
class Journal {
 public:
  /// Opens the journal of a directory, creating it if it is absent, and holds a lock as long as this object
  /// lives. Tasks, which write one directory at a time, hold it together; none of them writes lines. Throws
  /// Error if another process holds the lock. On file systems without locks it goes on without.
  Journal(const std::filesystem::path& directory, Sharing sharing);
  const std::filesystem::path& path() const { return path_; }
  /// Whether it was there before; else this made it.
  bool was_there() const { return file_.was_there(); }
  /// Whether this is still the file that has the name.
  bool has_name() const { return twofour::has_name(file_.descriptor(), path_); }
  /// Whether it begins as this version's do, or with nothing yet.
  bool is_current() const { return current_; }
  /// The lines that follow the first, up to the first that is damaged.
  const std::vector<std::string>& lines() const { return lines_; }

  /// Writes the first line where it is not there yet.
  void begin();
  /// Adds a line behind the last sound one. It is on disk when this returns.
  void note(std::string_view line);
  /// Forgets all lines, those of another version too, but the first.
  void restart();

 private:
  void read_lines();
  void write(uint64_t at, std::string_view text);

  std::filesystem::path path_;
  LockedFile file_;
  bool current_ = true;
  uint64_t end_ = 0;   ///< of the last sound line
  bool torn_ = false;  ///< more follows it
  std::vector<std::string> lines_;
};

}  // namespace twofour
