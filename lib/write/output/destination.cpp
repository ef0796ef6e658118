#include "lib/write/output/destination.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "formats/error.h"
#include "lib/base/findings/error_kinds.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/problems.h"
#include "lib/base/io/file.h"
#include "lib/base/io/links.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/hub/address.h"
#include "lib/write/output/journal.h"

namespace twofour {

namespace fs = std::filesystem;

namespace {

/// The signs that twofour wrote a directory. Either of two things proves it: a valid first line of the
/// journal, or a manifest whose final hash matches its content.
struct Ownership {
  JournalState journal = JournalState::kNone;
  bool has_manifest = false;
  std::string integrity_error;  ///< error of the manifest's hash
  bool is_whole() const { return has_manifest && integrity_error.empty(); }
  bool is_ours() const {
    return journal == JournalState::kOurs || journal == JournalState::kMarked ||
           journal == JournalState::kSynth || is_whole();
  }
};

Ownership ownership_of(const fs::path& directory) {
  Ownership found;
  found.journal = journal_state(directory);
  std::error_code error;
  const fs::path manifest = directory / kManifestName;
  found.has_manifest = fs::is_regular_file(fs::symlink_status(manifest, error));
  if (found.has_manifest) found.integrity_error = integrity_error(InputFile(manifest));
  return found;
}

/// Throws Error on files without one of our temporary names. An empty journal does not show which program
/// wrote them, so deleting them could destroy a user's data.
void refuse_strangers(const fs::path& directory, const Ownership& found, const std::set<std::string>& names) {
  if (found.journal != JournalState::kMarked || found.is_whole() || names.count(kTasksFolder)) return;
  Problems problems;
  std::error_code error;
  for (const std::string& name : names) {
    const bool is_file = fs::is_regular_file(fs::symlink_status(directory / name, error));
    if (is_file && !name_of_temporary(name).empty()) continue;
    problems.add(fmt::format(
        "{}: expected only files that {} lists, found another; move it away, {} does not remove it",
        (directory / name).string(), kJournalName, options::kForce));
  }
  problems.refuse();
}

/// The canonical form of a path: absolute, without links, without a slash at the end.
fs::path resolved(const fs::path& path) {
  if (path.empty()) return path;
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(fs::absolute(path), error);
  if (error) throw Error(fmt::format("{}: cannot resolve: {}", path.string(), error.message()));
  return whole.has_filename() ? whole : whole.parent_path();
}

/// Removes slashes at the end. "link/" and "link/." name the target of a link, while "link" names the link.
/// Nothing else is simplified, since only the file system knows what "link/.." means.
fs::path without_trailing_slash(const fs::path& path) {
  std::string text = path.string();
  for (;;) {
    if (text.size() > 1 && text.ends_with('/')) {
      text.pop_back();
    } else if (text.size() > 2 && text.ends_with("/.")) {
      text.resize(text.size() - 2);
    } else {
      return text;
    }
  }
}

void refuse_link(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return;
  throw Error(fmt::format("{}: expected a directory, found a symbolic link; nothing is written through links",
                          path.string()));
}

std::optional<std::pair<uint64_t, uint64_t>> inode_of(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return std::pair<uint64_t, uint64_t>{info.st_dev, info.st_ino};
}

/// Throws Error if `given` overlaps a checkpoint that is read. `what` names the checkpoint.
void check_overlap(const fs::path& given, const fs::path& read, const char* what) {
  const fs::path target = resolved(without_trailing_slash(given)), from = resolved(read);
  if (!is_within(target, from) && !is_within(from, target)) return;
  const std::string same =
      target == from ? fmt::format(": the {} itself, which twofour does not change", what) : "";
  throw Error(fmt::format("{}: expected a directory outside of the {} {}, found one that overlaps it{}",
                          given.string(), what, read.string(), same));
}

}  // namespace

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.insert(it->path().filename().string());
  }
  if (error) throw Error(fmt::format("{}: cannot list: {}", directory.string(), error.message()));
  names.erase(kJournalName);
  return names;
}

bool has_whole_manifest(const fs::path& directory) { return ownership_of(directory).is_whole(); }

bool is_complete_output(const fs::path& directory) {
  std::error_code error;
  return fs::is_directory(directory, error) && find_unfinished(directory) == nullptr &&
         has_whole_manifest(directory);
}

void check_destination(const fs::path& given, const fs::path& source, Existing existing, bool advise) {
  const fs::path path = without_trailing_slash(given);
  if (is_remote_address(given.string()))
    throw Error(
        fmt::format("{}: expected a directory of this machine, found a URL; upload what is written there",
                    given.string()));
  // A link to the source is the source, too.
  if (!source.empty() && resolved(path) == resolved(source)) check_overlap(given, source, "source");
  refuse_link(path);
  check_overlap(given, source, "source");
  std::error_code error;
  if (!fs::exists(path, error)) return;
  if (!fs::is_directory(path, error)) {
    throw ExistsError(fmt::format("{}: expected a directory, found a file", path.string()));
  }
  // The names are read before the journal is opened, since every run writes the journal first.
  const std::set<std::string> names = names_in(path);
  const Ownership found = ownership_of(path);
  const bool only_journal = names.empty();
  if (only_journal && found.journal == JournalState::kNone) return;
  const bool is_ours = found.is_ours() || (only_journal && found.journal == JournalState::kBegun);
  if (existing != Existing::kResume) refuse_strangers(path, found, names);
  if (existing == Existing::kRefuse) {
    const bool resumable = found.journal != JournalState::kNone && found.journal != JournalState::kSynth;
    const std::string advice =
        !advise || !is_ours ? ""
        : resumable ? fmt::format("; {} continues it, {} replaces it", options::kResume, options::kForce)
                    : fmt::format("; {} replaces it", options::kForce);
    throw ExistsError(
        fmt::format("{}: expected an absent or empty directory, found files in it{}", path.string(), advice));
  }
  const std::string why =
      found.integrity_error.empty() ? "" : fmt::format("; its {}: {}", kManifestName, found.integrity_error);
  if (existing == Existing::kResume && !is_ours) {
    throw ExistsError(fmt::format(
        "{}: expected an absent or empty directory or one that twofour wrote, found files in it{}",
        path.string(), why));
  }
  if (!is_ours) {
    throw ExistsError(fmt::format(
        "{}: {} replaces only a directory that twofour wrote, and this one has no {} of twofour{}",
        path.string(), options::kForce, kManifestName, why));
  }
  if (existing == Existing::kReplace && !source.empty()) check_no_links_into(path, source);
}

Destination::Destination(const fs::path& path, const fs::path& source, Existing existing, bool advise)
    : path_(path), source_(source), existing_(existing), inode_(inode_of(path)) {
  check_destination(path, source, existing, advise);
  if (inode_) names_ = names_in(path);
}

void Destination::check_same_directory() const {
  refuse_link(without_trailing_slash(path_));
  const auto now = inode_of(path_);
  if (!inode_ || !now || now == inode_) return;
  throw Error(fmt::format("{}: expected the same directory as at the start of the run, found another",
                          path_.string()));
}

void Destination::check_same_names(const std::set<std::string>& names) const {
  for (const std::string& name : names) {
    if (names_.contains(name)) continue;
    throw Error(fmt::format("{}: expected only the files that it had at the start of the run, found {}",
                            path_.string(), json_quote_short(name)));
  }
}

void check_no_links_into(const fs::path& path, const fs::path& read, const char* what) {
  const fs::path target = resolved(without_trailing_slash(path));
  std::error_code error;
  for (fs::recursive_directory_iterator it(read, error), end; !error && it != end; it.increment(error)) {
    if (!it->is_symlink(error) || !is_within(resolved(it->path()), target)) continue;
    throw Error(fmt::format("{0}: expected a directory outside of the {1}, found the {1}'s {2} in it",
                            target.string(), what, it->path().filename().string()));
  }
}

void check_apart_from_kept(const fs::path& path, const fs::path& kept) {
  check_overlap(path, kept, "kept checkpoint");
  check_no_links_into(path, kept, "kept checkpoint");
}

void check_apart_from_cache(const fs::path& path, const fs::path& cache) {
  if (is_remote_address(cache.string()))
    throw Error(
        fmt::format("{}: expected a directory of this machine, found {}", options::kCache, cache.string()));
  if (!is_within(resolved(cache), resolved(without_trailing_slash(path)))) return;
  throw Error(fmt::format("{}: expected a directory outside of {}, which is to be written, found {}",
                          options::kCache, path.string(), cache.string()));
}

void check_output_file(const fs::path& file, const char* what,
                       const std::function<bool(const fs::path&)>& is_earlier) {
  if (file.empty()) throw Error(fmt::format("expected a file for the {}, found an empty name", what));
  std::error_code error;
  const fs::path parent = file.has_parent_path() ? file.parent_path() : ".";
  if (!fs::is_directory(parent, error))
    throw NotFoundError(
        fmt::format("{}: expected a directory for the {}, found none", parent.string(), what));
  for (fs::path at = fs::canonical(parent, error);; at = at.parent_path()) {
    if (fs::exists(at / kManifestName, error) || find_unfinished(at) != nullptr)
      throw Error(fmt::format("{}: expected a place outside of the artifact {}, found one inside",
                              file.string(), at.string()));
    if (!at.has_relative_path()) break;
  }
  if (!fs::exists(fs::symlink_status(file, error))) return;
  if (!fs::is_regular_file(fs::symlink_status(file, error)) || !is_earlier(file))
    throw ExistsError(
        fmt::format("{}: expected no file or an earlier {}, found something else", file.string(), what));
}

}  // namespace twofour
