#pragma once
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// What to do about files that are in a destination already.
enum class Existing {
  kRefuse,
  kReplace,  ///< empty a directory that twofour wrote
  kResume,   ///< keep those of a directory that twofour left unfinished
};

/// A directory being written. From the first file to finish() it holds a marker by which every command knows
/// it as unfinished. The marker is the journal of the run too, a line for each thing done, so that both go in
/// one step. The destructor takes away what was written unless finish() or keep() was called, so that a
/// failed run leaves nothing that looks complete.
class OutputDirectory {
 public:
  /// `path` must be absent or empty, or be one of ours that `existing` allows. Refuses a symbolic link, and a
  /// directory that is, holds or lies in `source`. One that is resumed stays as it is when the run fails.
  OutputDirectory(const std::filesystem::path& path, const std::filesystem::path& source, Existing existing);
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;
  ~OutputDirectory();

  const std::filesystem::path& path() const { return path_; }
  /// Where a file of that relative name goes; its parent folders are made. Remembers it as ours.
  std::filesystem::path add(const std::string& relative);
  /// Lines that the run before wrote to the journal; of one that was killed while writing none.
  const std::vector<std::string>& journal() const { return journal_; }
  /// Adds a line to the journal. It is on disk when this returns, after all names that the directory has.
  void note(std::string_view line);
  /// Takes away whatever is in the directory but the journal and files of these names.
  void keep_only(const std::set<std::string>& names);
  /// From now on a run that fails leaves its files and the journal, to be resumed.
  void keep() { keep_ = true; }
  /// From now on a run that fails leaves nothing.
  void discard() { keep_ = false; }
  bool keeps() const { return keep_; }
  /// Flushes the directory and takes the marker away. Everything else must be in place.
  void finish();

  /// Throws what the constructor would, without changing anything.
  static void check(const std::filesystem::path& path, const std::filesystem::path& source,
                    Existing existing);

 private:
  void take_marker();
  void read_journal();
  void release(bool remove_marker);

  std::filesystem::path path_;
  /// Holds the lock that keeps other runs out; -1 once finished.
  int marker_ = -1;
  bool created_ = false, keep_ = false;
  int64_t torn_at_ = -1;  ///< where the first damaged line of the journal begins or would; -1: cut off
  std::vector<std::string> journal_;
  std::set<std::filesystem::path> files_, folders_;
};

/// Opens the marker of a directory, making it, and takes a lock on it: `how` is LOCK_EX, or LOCK_SH for those
/// that write it together. The lock goes when the descriptor that is returned is closed. Throws Error where
/// somebody else's lock is in the way. File systems without locks are gone without.
int lock_marker(const std::filesystem::path& directory, int how);

/// Whether twofour wrote a directory and finished it.
bool is_complete_output(const std::filesystem::path& directory);

}  // namespace twofour
