#include "lib/output_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "formats/error.h"
#include "lib/checkpoint.h"
#include "lib/file.h"
#include "lib/hash.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// Whether twofour wrote the directory: it has our marker, or a manifest that begins as ours do.
bool is_ours(const fs::path& directory) {
  std::error_code error;
  if (fs::exists(directory / kUnfinishedMarker, error)) return true;
  if (!fs::is_regular_file(directory / kManifestName, error)) return false;
  const InputFile manifest(directory / kManifestName);
  std::string head(std::min<uint64_t>(manifest.size(), 256), '\0');
  manifest.read(0, {reinterpret_cast<uint8_t*>(head.data()), head.size()});
  return head.find("\"tool\": {\"name\":\"twofour\"") != std::string::npos;
}

// A line of the journal begins with its hash, so that one of which only a part reached the disk is known.
constexpr size_t kLineHash = 32;

std::string journal_line(std::string_view text) {
  return fmt::format("{} {}\n", hash_text(text).hex(), text);
}

/// The text of a line, its end taken off; empty where it is none.
std::string_view text_of_line(std::string_view line) {
  if (line.size() <= kLineHash + 1) return {};
  const std::string_view text = line.substr(kLineHash + 1);
  return line.substr(0, kLineHash) == hash_text(text).hex() ? text : std::string_view();
}

/// The same place however it is spelled: absolute, without links, without a slash at the end.
fs::path resolved(const fs::path& path) {
  if (path.empty()) return path;
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(fs::absolute(path), error);
  if (error) throw Error(fmt::format("{}: cannot resolve: {}", path.string(), error.message()));
  return whole.has_filename() ? whole : whole.parent_path();
}

/// "link/" and "link/." name what a link points to; "link" names the link. Nothing else is made simpler: what
/// "link/.." means only the file system knows.
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

/// Whether `inner` is `outer` or lies below it; both must be resolved. Nothing lies in an empty path.
bool is_within(const fs::path& inner, const fs::path& outer) {
  if (outer.empty()) return false;
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

/// Throws if a file of `source` is a link into `target`, which is about to be emptied.
void check_links(const fs::path& source, const fs::path& target) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(source, error), end; !error && it != end; it.increment(error)) {
    if (!it->is_symlink(error) || !is_within(resolved(it->path()), target)) continue;
    throw Error(fmt::format("{}: expected a directory apart from the source, found the source's {} in it",
                            target.string(), it->path().filename().string()));
  }
}

}  // namespace

void OutputDirectory::check(const fs::path& given, const fs::path& source, Existing existing) {
  const fs::path path = without_trailing_slash(given);
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(path, error))) {
    throw Error(fmt::format(
        "{}: expected a directory, found a symbolic link; nothing is written through links", path.string()));
  }
  const fs::path target = resolved(path), from = resolved(source);
  if (is_within(target, from) || is_within(from, target)) {
    throw Error(fmt::format("{}: expected a directory apart from the source {}, found one that overlaps it",
                            given.string(), source.string()));
  }
  if (!fs::exists(path, error)) return;
  if (!fs::is_directory(path, error)) {
    throw Error(fmt::format("{}: expected a directory, found a file", path.string()));
  }
  const bool empty = fs::is_empty(path, error);
  if (error) throw Error(fmt::format("{}: cannot list: {}", path.string(), error.message()));
  if (empty) return;
  const fs::path marker = path / kUnfinishedMarker;
  const bool has_journal = fs::is_regular_file(marker, error) && fs::file_size(marker, error) > 0;
  if (existing == Existing::kRefuse) {
    throw Error(fmt::format("{}: expected an absent or empty directory, found files in it{}", path.string(),
                            has_journal     ? "; --resume goes on with it, --force replaces it"
                            : is_ours(path) ? "; --force replaces it"
                                            : ""));
  }
  if (existing == Existing::kResume) {
    if (is_ours(path)) return;
    throw Error(
        fmt::format("{}: expected an absent or empty directory or one that twofour wrote, found files in it",
                    path.string()));
  }
  if (!is_ours(path)) {
    throw Error(
        fmt::format("{}: --force replaces only a directory that twofour wrote, and this has no {} of ours",
                    path.string(), kManifestName));
  }
  if (!source.empty()) check_links(source, target);
}

OutputDirectory::OutputDirectory(const fs::path& path, const fs::path& source, Existing existing)
    : path_(path) {
  check(path, source, existing);
  std::error_code error;
  if (!fs::exists(path, error)) {
    fs::create_directories(path, error);
    if (error) throw Error(fmt::format("{}: cannot create: {}", path.string(), error.message()));
    created_ = true;
  }
  const bool resumed = existing == Existing::kResume && fs::exists(path / kUnfinishedMarker, error);
  try {
    take_marker();
    if (resumed) {
      keep_ = true;
      read_journal();
    } else if (existing == Existing::kReplace) {
      // The marker came first, so that a run stopped while emptying is seen as unfinished too. What an older
      // journal says holds no longer.
      if (::ftruncate(marker_, 0) != 0) {
        throw Error(
            fmt::format("{}: cannot empty: {}", (path / kUnfinishedMarker).string(), system_message(errno)));
      }
      keep_only({});
    } else {
      for (const auto& entry : fs::directory_iterator(path, error)) {
        if (entry.path().filename() == kUnfinishedMarker) continue;
        throw Error(fmt::format("{}: expected no files in it, found {}", path.string(),
                                entry.path().filename().string()));
      }
    }
    sync_directory(path_);
  } catch (...) {
    release(!resumed && existing != Existing::kReplace);
    throw;
  }
}

void OutputDirectory::keep_only(const std::set<std::string>& names) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    if (name == kUnfinishedMarker || names.count(name)) continue;
    fs::remove_all(entry.path(), error);
    if (error) throw Error(fmt::format("{}: cannot remove: {}", entry.path().string(), error.message()));
  }
  if (error) throw Error(fmt::format("{}: cannot list: {}", path_.string(), error.message()));
}

void OutputDirectory::read_journal() {
  constexpr uint64_t kMaxJournal = 1u << 30;
  const std::string all = read_text(path_ / kUnfinishedMarker, kMaxJournal);
  size_t end = 0;
  for (size_t next; (next = all.find('\n', end)) != std::string::npos; end = next + 1) {
    const std::string_view text = text_of_line(std::string_view(all).substr(end, next - end));
    if (text.empty()) break;
    journal_.emplace_back(text);
  }
  torn_at_ = static_cast<int64_t>(end);
}

void OutputDirectory::note(std::string_view text) {
  const fs::path marker = path_ / kUnfinishedMarker;
  sync_directory(path_);
  // New lines follow the last sound one.
  if (torn_at_ >= 0 && ::ftruncate(marker_, std::exchange(torn_at_, -1)) != 0) {
    throw Error(fmt::format("{}: cannot cut: {}", marker.string(), system_message(errno)));
  }
  const std::string line = journal_line(text);
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t put = ::write(marker_, rest.data(), rest.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw Error(fmt::format("{}: cannot write: {}", marker.string(), system_message(errno)));
    rest.remove_prefix(static_cast<size_t>(put));
  }
  if (::fdatasync(marker_) != 0) {
    throw Error(fmt::format("{}: cannot flush: {}", marker.string(), system_message(errno)));
  }
}

namespace {

/// Whether an open file is the one that has the name.
bool has_name(int fd, const fs::path& name) {
  struct stat ours {
  }, named{};
  return ::fstat(fd, &ours) == 0 && ::stat(name.c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
         ours.st_dev == named.st_dev;
}

}  // namespace

int lock_marker(const fs::path& directory, int how) {
  const fs::path marker = directory / kUnfinishedMarker;
  const int fd = ::open(marker.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) throw Error(fmt::format("{}: cannot create: {}", marker.string(), system_message(errno)));
  // Two runs into one directory would take each other's files away. The file that is locked must still be the
  // one that has the name: a run that just finished removes it.
  const bool locked = ::flock(fd, how | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR);
  if (locked && has_name(fd, marker)) return fd;
  ::close(fd);
  throw Error(
      fmt::format("{}: expected a directory of our own, found another run writing it", directory.string()));
}

void OutputDirectory::take_marker() { marker_ = lock_marker(path_, LOCK_EX); }

void OutputDirectory::release(bool remove_marker) {
  std::error_code ignored;
  if (marker_ >= 0 && remove_marker) fs::remove(path_ / kUnfinishedMarker, ignored);
  if (marker_ >= 0) ::close(marker_);
  marker_ = -1;
  if (created_) fs::remove(path_, ignored);  // only if nothing is in it
}

OutputDirectory::~OutputDirectory() {
  if (marker_ < 0) return;  // finished
  if (keep_) {
    release(false);
    return;
  }
  std::error_code ignored;
  for (const fs::path& file : files_) fs::remove(file, ignored);
  // Deepest first; only empty ones go.
  for (auto it = folders_.rbegin(); it != folders_.rend(); ++it) fs::remove(*it, ignored);
  release(true);
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

bool is_complete_output(const fs::path& directory) {
  std::error_code error;
  return fs::is_directory(directory, error) && !fs::exists(directory / kUnfinishedMarker, error) &&
         is_ours(directory);
}

void OutputDirectory::finish() {
  if (!has_name(marker_, path_ / kUnfinishedMarker))
    throw Error(fmt::format("{}: expected the marker of this run, found that somebody removed it",
                            (path_ / kUnfinishedMarker).string()));
  for (const fs::path& file : files_) {
    std::error_code missing;
    if (!fs::is_regular_file(fs::symlink_status(file, missing)))
      throw Error(fmt::format("{}: expected the file as it was written, found none", file.string()));
  }
  for (auto it = folders_.rbegin(); it != folders_.rend(); ++it) sync_directory(*it);
  sync_directory(path_);
  std::error_code error;
  fs::remove(path_ / kUnfinishedMarker, error);
  if (error)
    throw Error(fmt::format("{}: cannot remove: {}", (path_ / kUnfinishedMarker).string(), error.message()));
  sync_directory(path_);
  ::close(marker_);
  marker_ = -1;
}

}  // namespace twofour
