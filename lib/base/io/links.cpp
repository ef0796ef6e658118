#include "lib/base/io/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "formats/error.h"
#include "lib/base/findings/options.h"
#include "lib/base/io/descriptor.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

constexpr std::array kSkippedFolders = {".cache", ".git"};

/// True if a resolved path is a skipped folder of the folder `root`, or is in one.
bool is_in_skipped(const fs::path& target, const fs::path& root) {
  const fs::path below = target.lexically_relative(root);
  return std::any_of(below.begin(), below.end(), is_skipped_folder);
}

/// The `blobs` folder of the Hub's cache for a snapshot or a folder within a snapshot; empty for all other
/// folders.
fs::path blobs_of(const fs::path& folder) {
  for (fs::path at = folder; at.has_relative_path(); at = at.parent_path()) {
    if (at.parent_path().filename() == "snapshots") return at.parent_path().parent_path() / "blobs";
  }
  return {};
}

/// True if a file is named by a hash of its content, as in the Hub's cache: git's SHA-1 or SHA-256.
bool is_named_by_hash(const fs::path& file) {
  const std::string name = file.filename().string();
  return (name.size() == 40 || name.size() == 64) &&
         name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// True if a resolved path belongs to the checkpoint in a folder. A `blobs` that is itself a link does not
/// count: no resolved path has its name.
bool is_inside(const fs::path& target, const fs::path& folder) {
  std::error_code error;
  const fs::path root = fs::canonical(folder, error);
  if (error) return false;
  const fs::path blobs = blobs_of(root);
  if (is_within(target, root)) return !is_in_skipped(target, root);
  if (!blobs.empty() && target.parent_path() == blobs) return true;
  return target.parent_path() == root.parent_path() / "blobs" && is_named_by_hash(target);
}

}  // namespace

bool is_skipped_folder(const fs::path& name) {
  return std::find(kSkippedFolders.begin(), kSkippedFolders.end(), name) != kSkippedFolders.end();
}

bool is_within(const fs::path& inner, const fs::path& outer) {
  if (outer.empty()) return false;
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

std::optional<LinkOutside> link_outside(const fs::path& folder, const fs::path& path) {
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  if (!error) {
    if (is_inside(target, folder)) return std::nullopt;
    return LinkOutside{path, target};
  }
  // A file that can be opened but has no path, such as /proc/self/fd/3 of a removed file, is never inside.
  if (!fs::exists(path, error)) return std::nullopt;
  return LinkOutside{path, fs::read_symlink(path, error)};
}

std::string text_of(const LinkOutside& link) {
  return fmt::format(
      "{}: expected a file within the checkpoint, found a link out of it to {}: remove it, or take what is "
      "there with {}",
      link.path.string(), link.target.string(), options::kFollowLinks);
}

InputFile open_below(const fs::path& folder, const fs::path& path, Links links) {
  InputFile file(path);
  if (links == Links::kFollowed || file.is_remote()) return file;
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  if (error || !is_inside(target, folder)) throw Error(text_of({path, target}));
  if (!has_name(file.descriptor(), target)) {
    throw Error(fmt::format("{}: expected a file that does not change while being opened, found it changed",
                            path.string()));
  }
  return file;
}

std::string dangling_link(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error)) || !is_absent(path)) return {};
  return fmt::format("a link to {}, which is not there (copied without -L?)",
                     fs::read_symlink(path, error).string());
}

std::string where_weights_are(const std::filesystem::path& directory) {
  std::vector<std::string> revisions;
  std::error_code error;
  for (fs::directory_iterator it(directory / "snapshots", error), end; !error && it != end;
       it.increment(error))
    revisions.push_back(it->path().filename().string());
  if (revisions.empty()) return "none";
  std::sort(revisions.begin(), revisions.end());
  return fmt::format("none; it is the root of a Hub's cache: take {}",
                     (directory / "snapshots" / revisions.front()).string());
}

}  // namespace twofour
