#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace twofour {

/// Checks of places for results: existing files are ours or stay as they are, and no input is overwritten.

/// The treatment of files that are in a destination already.
enum class Existing {
  kRefuse,
  kReplace,  ///< empty a directory that twofour wrote
  kResume,   ///< continue a directory that twofour left unfinished
};

/// Throws Error unless `path` is absent or empty, or is one of our directories that `existing` allows.
/// Refuses a symbolic link, a URL, and a directory that is, contains or is inside `source`. `advise`: the
/// command has the options --resume and --force.
void check_destination(const std::filesystem::path& path, const std::filesystem::path& source,
                       Existing existing, bool advise = true);
/// A directory that a run may write. It is examined once, before the long part of the run; only files that
/// are there then may be replaced.
class Destination {
 public:
  /// Throws Error like check_destination().
  Destination(const std::filesystem::path& path, const std::filesystem::path& source, Existing existing,
              bool advise = true);
  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& source() const { return source_; }
  Existing existing() const { return existing_; }
  /// Throws Error if the path has become a link or another directory.
  void check_same_directory() const;
  /// Throws Error unless the directory still has exactly the same names.
  void check_same_names(const std::set<std::string>& names) const;

 private:
  std::filesystem::path path_, source_;
  Existing existing_;
  std::set<std::string> names_;                         ///< at its top, without the journal
  std::optional<std::pair<uint64_t, uint64_t>> inode_;  ///< device and number; nothing: it was absent
};

/// Throws Error if `path` is, contains or is inside a reference checkpoint, or is linked to by it.
void check_apart_from_kept(const std::filesystem::path& path, const std::filesystem::path& kept);
/// Throws Error if the folder of downloads is `path` or inside it.
void check_apart_from_cache(const std::filesystem::path& path, const std::filesystem::path& cache);
/// Throws Error if a file of `read`, a checkpoint that `what` names, is a link into `path`, which is about to
/// be emptied.
void check_no_links_into(const std::filesystem::path& path, const std::filesystem::path& read,
                         const char* what = "source");

/// Names at the top of a directory, without its journal.
std::set<std::string> names_in(const std::filesystem::path& directory);
/// True if a directory has a manifest that is as twofour wrote it.
bool has_whole_manifest(const std::filesystem::path& directory);
/// True if twofour wrote a directory and finished it: its manifest is as it was written.
bool is_complete_output(const std::filesystem::path& directory);

/// Throws Error unless a single result may be written to `file`: its folder exists and is not inside a
/// directory that twofour wrote, and `file` is absent or a regular file that `is_earlier` recognizes as an
/// earlier result of the kind that `what` names ("report"). So a mistyped path never overwrites a checkpoint,
/// and a result never spoils an artifact.
void check_output_file(const std::filesystem::path& file, const char* what,
                       const std::function<bool(const std::filesystem::path&)>& is_earlier);

}  // namespace twofour
