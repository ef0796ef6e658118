#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// What a directory's marker says of who put it there.
enum class MarkerState {
  kNone,    ///< there is no marker
  kBegun,   ///< empty or a part of our first line: of a run killed at its first step, or anybody's
  kMarked,  ///< our first line alone: of a run that noted nothing yet, or of tasks, whose notes are elsewhere
  kOurs,    ///< begins with a line of ours and tells of a run
  kSynth,   ///< of synth, which nothing goes on with
  kForeign,  ///< anything else
};
MarkerState marker_state(const std::filesystem::path& directory);

/// The line that synth notes.
constexpr std::string_view kSynthNote = "synth";

/// The file that marks a directory as unfinished, and the journal of whoever writes there. Its first line
/// says what it is and in which format. Each line begins with the hash of the rest: that shows a line of
/// which only a part reached the disk, and nobody writes it by chance.
class UnfinishedMarker {
 public:
  enum class Sharing {
    kAlone,
    kTogether,  ///< tasks, which write one directory at a time; none of them writes lines
  };
  /// Opens the marker of a directory, making it where there is none, and takes a lock that lasts as long as
  /// this. Throws Error where somebody else's lock is in the way. File systems without locks are gone
  /// without.
  UnfinishedMarker(const std::filesystem::path& directory, Sharing sharing);
  UnfinishedMarker(const UnfinishedMarker&) = delete;
  UnfinishedMarker& operator=(const UnfinishedMarker&) = delete;
  ~UnfinishedMarker();

  const std::filesystem::path& path() const { return path_; }
  /// Whether it was there before; else this made it.
  bool was_there() const { return was_there_; }
  /// Whether this is still the file that has the name.
  bool has_name() const;
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
  int fd_ = -1;
  bool was_there_ = false, current_ = true;
  uint64_t end_ = 0;   ///< of the last sound line
  bool torn_ = false;  ///< more follows it
  std::vector<std::string> lines_;
};

}  // namespace twofour
