#include "lib/output_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/error.h"
#include "lib/checkpoint.h"
#include "lib/file.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

bool is_ours(const fs::path& directory) {
  std::error_code error;
  return fs::exists(directory / kManifestName, error) || fs::exists(directory / kUnfinishedMarker, error);
}

fs::path resolved(const fs::path& path) {
  std::error_code error;
  // "dir/" and "dir" are the same place.
  const fs::path whole = fs::weakly_canonical(path, error);
  return whole.has_filename() || path.empty() ? whole : whole.parent_path();
}

/// Whether `inner` is `outer` or lies below it; both must be canonical. Nothing lies in an empty path.
bool is_within(const fs::path& inner, const fs::path& outer) {
  if (outer.empty()) return false;
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace

void OutputDirectory::check(const fs::path& path, const fs::path& source, bool force) {
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(path, error))) {
    throw Error(fmt::format(
        "{}: expected a directory, found a symbolic link; nothing is written through links", path.string()));
  }
  if (!fs::exists(path, error)) {
    if (is_within(resolved(path), resolved(source))) {
      throw Error(fmt::format("{}: expected a place outside the source {}", path.string(), source.string()));
    }
    return;
  }
  if (!fs::is_directory(path, error)) {
    throw Error(fmt::format("{}: expected a directory, found a file", path.string()));
  }
  const fs::path target = resolved(path), from = resolved(source);
  if (is_within(target, from) || is_within(from, target)) {
    throw Error(fmt::format("{}: expected a directory apart from the source {}, found one that overlaps it",
                            path.string(), source.string()));
  }
  if (fs::is_empty(path, error)) return;
  if (error) throw Error(fmt::format("{}: cannot list: {}", path.string(), error.message()));
  if (!force) {
    throw Error(fmt::format("{}: expected an absent or empty directory, found files in it{}", path.string(),
                            is_ours(path) ? "; --force replaces it" : ""));
  }
  if (!is_ours(path)) {
    throw Error(fmt::format("{}: --force replaces only a directory that twofour wrote, and this has no {}",
                            path.string(), kManifestName));
  }
}

OutputDirectory::OutputDirectory(const fs::path& path, const fs::path& source, bool force) : path_(path) {
  check(path, source, force);
  std::error_code error;
  if (!fs::exists(path, error)) {
    fs::create_directories(path, error);
    if (error) throw Error(fmt::format("{}: cannot create: {}", path.string(), error.message()));
    created_ = true;
  }
  // The marker comes first, so that a run stopped while emptying is seen as unfinished too.
  if (!fs::exists(path / kUnfinishedMarker, error)) {
    write_text(path / kUnfinishedMarker, "twofour is writing this directory, or was stopped while it did.\n");
  }
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.path().filename() != kUnfinishedMarker) fs::remove_all(entry.path(), error);
    if (error) throw Error(fmt::format("{}: cannot remove: {}", entry.path().string(), error.message()));
  }
}

OutputDirectory::~OutputDirectory() {
  if (finished_) return;
  std::error_code ignored;
  for (const fs::path& file : files_) fs::remove(file, ignored);
  // Deepest first; only empty ones go.
  for (auto it = folders_.rbegin(); it != folders_.rend(); ++it) fs::remove(*it, ignored);
  fs::remove(path_ / kUnfinishedMarker, ignored);
  if (created_) fs::remove(path_, ignored);
}

fs::path OutputDirectory::add(const std::string& relative) {
  const fs::path file = path_ / relative;
  for (fs::path folder = fs::path(relative).parent_path(); !folder.empty(); folder = folder.parent_path()) {
    folders_.insert(path_ / folder);
  }
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error) throw Error(fmt::format("{}: cannot create: {}", file.parent_path().string(), error.message()));
  files_.insert(file);
  return file;
}

void OutputDirectory::finish() {
  for (auto it = folders_.rbegin(); it != folders_.rend(); ++it) sync_directory(*it);
  sync_directory(path_);
  std::error_code error;
  fs::remove(path_ / kUnfinishedMarker, error);
  if (error)
    throw Error(fmt::format("{}: cannot remove: {}", (path_ / kUnfinishedMarker).string(), error.message()));
  sync_directory(path_);
  finished_ = true;
}

}  // namespace twofour
