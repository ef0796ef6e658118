#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace twofour {

/// Checks of the places where results are written. Existing files that are not twofour's stay as they are,
/// and no input is overwritten.

/// The treatment of files that a destination already has.
enum class Existing {
  kRefuse,
  kReplace,  ///< empty a directory that twofour wrote
  kResume,   ///< continue a directory that twofour left unfinished
};

/// Throws Error unless `path` is absent or empty, or is a directory of twofour's that `existing` allows.
/// Throws Error on a symbolic link, on a URL, and on a directory that is `source`, contains it or is inside
/// it. If `advise`, the message names the options --resume and --force, which the command must have.
void check_destination(const std::filesystem::path& path, const std::filesystem::path& source,
                       Existing existing, bool advise = true);
/// A directory that a run may write. It is examined once, before the long part of the run. Only files that it
/// has at that time may be replaced.
class Destination {
 public:
  /// Throws Error like check_destination().
  Destination(const std::filesystem::path& path, const std::filesystem::path& source, Existing existing,
              bool advise = true);
  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& source() const { return source_; }
  Existing existing() const { return existing_; }
  /// Throws Error if the path has become a link or leads to another directory.
  void check_same_directory() const;
  /// Throws Error unless the directory still has exactly these names at its top.
  void check_same_names(const std::set<std::string>& names) const;

 private:
  std::filesystem::path path_, source_;
  Existing existing_;
  std::set<std::string> names_;                         ///< names at its top, without the journal
  std::optional<std::pair<uint64_t, uint64_t>> inode_;  ///< device and inode number; absent if the directory
                                                        ///< did not exist
};

/// Throws Error if `path` is a reference checkpoint, contains it, is inside it, or is the target of one of
/// its links.
void check_apart_from_kept(const std::filesystem::path& path, const std::filesystem::path& kept);
/// Throws Error if the folder of downloads, `cache`, is `path` or inside it.
void check_apart_from_cache(const std::filesystem::path& path, const std::filesystem::path& cache);
/// Throws Error if a file of the checkpoint `read` is a link into `path`, which is about to be emptied.
/// `what` names the checkpoint in messages.
void check_no_links_into(const std::filesystem::path& path, const std::filesystem::path& read,
                         const char* what = "source");

/// The names at the top of a directory, without its journal.
std::set<std::string> names_in(const std::filesystem::path& directory);
/// True if a directory has a manifest that is unchanged since twofour wrote it.
bool has_whole_manifest(const std::filesystem::path& directory);
/// True if twofour wrote and finished a directory: its manifest is unchanged, and nothing marks it as
/// unfinished.
bool is_complete_output(const std::filesystem::path& directory);

/// Throws Error unless a single result may be written to `file`. Its folder must exist and must not be inside
/// a directory that twofour wrote. The file must be absent, or a regular file that `is_earlier` recognizes as
/// an earlier result of the same kind. `what` names the kind ("report"). So a mistyped path never overwrites
/// a checkpoint, and a result never spoils an artifact.
void check_output_file(const std::filesystem::path& file, const char* what,
                       const std::function<bool(const std::filesystem::path&)>& is_earlier);

}  // namespace twofour
