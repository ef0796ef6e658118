#include "lib/output/output_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/error.h"
#include "lib/artifact/manifest.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/findings/problems.h"
#include "lib/hub/address.h"
#include "lib/io/file.h"
#include "lib/io/file_batch.h"

namespace twofour {

namespace fs = std::filesystem;

namespace {

/// Names at the top of a directory, but for its journal.
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

/// Whether twofour wrote a directory. Two things prove it: a valid first line in the journal, or a manifest
/// with a final hash that matches its content.
struct Ownership {
  JournalState journal = JournalState::kNone;
  bool has_manifest = false;
  std::string integrity_error;  ///< of the manifest
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

/// An empty journal does not say which program wrote the other files. Refuses unless each has one of our
/// temporary names: deleting anything else could destroy a user's data.
void refuse_strangers(const fs::path& directory, const Ownership& found, const std::set<std::string>& names) {
  if (found.journal != JournalState::kMarked || found.is_whole() || names.count(kTasksFolder)) return;
  Problems problems;
  std::error_code error;
  for (const std::string& name : names) {
    const bool is_file = fs::is_regular_file(fs::symlink_status(directory / name, error));
    if (is_file && !name_of_temporary(name).empty()) continue;
    problems.add(
        fmt::format("{}: expected only files that {} lists, found one that it does not; move it away, "
                    "--force does not remove it",
                    (directory / name).string(), kJournalName));
  }
  problems.refuse();
}

/// A line of the journal: the list of names after it is being removed. A run that replaces a directory writes
/// this line first, so that it can be resumed if it is killed meanwhile.
constexpr std::string_view kEmptying = "emptying ";

std::set<std::string> names_from_line(const fs::path& journal, std::string_view line) {
  try {
    const Json json = Json::parse(line.substr(kEmptying.size()));
    return json.get<std::set<std::string>>();
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: expected a list of names, found something else", journal.string()));
  }
}

/// The canonical form of a path: absolute, without links, without a slash at the end.
fs::path resolved(const fs::path& path) {
  if (path.empty()) return path;
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(fs::absolute(path), error);
  if (error) throw Error(fmt::format("{}: cannot resolve: {}", path.string(), error.message()));
  return whole.has_filename() ? whole : whole.parent_path();
}

/// "link/" and "link/." name the target of a link; "link" names the link. Nothing else is simplified: only
/// the file system knows what "link/.." means.
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

/// Whether `inner` is `outer` or below it; both must be resolved. Nothing is in an empty path.
bool is_within(const fs::path& inner, const fs::path& outer) {
  if (outer.empty()) return false;
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

/// Throws if `given` overlaps a checkpoint that is read; `what` names the latter.
void check_overlap(const fs::path& given, const fs::path& read, const char* what) {
  const fs::path target = resolved(without_trailing_slash(given)), from = resolved(read);
  if (!is_within(target, from) && !is_within(from, target)) return;
  throw Error(fmt::format("{}: expected a directory apart from the {} {}, found one that overlaps it",
                          given.string(), what, read.string()));
}

/// Throws if a file of a checkpoint that is read is a link into `target`, which is about to be emptied.
void check_links(const fs::path& source, const fs::path& target, const char* what = "source") {
  std::error_code error;
  for (fs::recursive_directory_iterator it(source, error), end; !error && it != end; it.increment(error)) {
    if (!it->is_symlink(error) || !is_within(resolved(it->path()), target)) continue;
    throw Error(fmt::format("{0}: expected a directory apart from the {1}, found the {1}'s {2} in it",
                            target.string(), what, it->path().filename().string()));
  }
}

}  // namespace

void OutputDirectory::check(const fs::path& given, const fs::path& source, Existing existing, bool advise) {
  const fs::path path = without_trailing_slash(given);
  if (is_remote_address(given.string()))
    throw Error(
        fmt::format("{}: expected a directory of this machine, found a URL; upload what is written there",
                    given.string()));
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(path, error))) {
    throw Error(fmt::format(
        "{}: expected a directory, found a symbolic link; nothing is written through links", path.string()));
  }
  check_overlap(given, source, "source");
  if (!fs::exists(path, error)) return;
  if (!fs::is_directory(path, error)) {
    throw Error(fmt::format("{}: expected a directory, found a file", path.string()));
  }
  // Before the journal, which every run writes before anything else.
  const std::set<std::string> names = names_in(path);
  const Ownership found = ownership_of(path);
  const bool only_journal = names.empty();
  if (only_journal && found.journal == JournalState::kNone) return;
  const bool is_ours = found.is_ours() || (only_journal && found.journal == JournalState::kBegun);
  if (existing != Existing::kResume) refuse_strangers(path, found, names);
  if (existing == Existing::kRefuse) {
    const bool resumable = found.journal != JournalState::kNone && found.journal != JournalState::kSynth;
    const char* advice = !advise || !is_ours ? ""
                         : resumable         ? "; --resume goes on with it, --force replaces it"
                                             : "; --force replaces it";
    throw Error(
        fmt::format("{}: expected an absent or empty directory, found files in it{}", path.string(), advice));
  }
  const std::string why =
      found.integrity_error.empty() ? "" : fmt::format("; its {}: {}", kManifestName, found.integrity_error);
  if (existing == Existing::kResume && !is_ours) {
    throw Error(fmt::format(
        "{}: expected an absent or empty directory or one that twofour wrote, found files in it{}",
        path.string(), why));
  }
  if (!is_ours) {
    throw Error(
        fmt::format("{}: --force replaces only a directory that twofour wrote, and this has no {} of "
                    "ours{}",
                    path.string(), kManifestName, why));
  }
  if (existing == Existing::kReplace && !source.empty()) check_links(source, resolved(path));
}

void OutputDirectory::check_apart_from_kept(const fs::path& path, const fs::path& kept) {
  check_overlap(path, kept, "kept checkpoint");
  check_links(kept, resolved(without_trailing_slash(path)), "kept checkpoint");
}

void OutputDirectory::check_apart_from_cache(const fs::path& path, const fs::path& cache) {
  if (is_remote_address(cache.string()))
    throw Error(fmt::format("--cache: expected a directory of this machine, found {}", cache.string()));
  if (!is_within(resolved(cache), resolved(without_trailing_slash(path)))) return;
  throw Error(fmt::format("--cache: expected a directory apart from {}, which is to be written, found {}",
                          path.string(), cache.string()));
}

OutputDirectory::OutputDirectory(const fs::path& path, const fs::path& source, Existing existing)
    : path_(path) {
  check(path, source, existing, !source.empty());  // synth, which has none, knows no --resume
  std::error_code error;
  if (!fs::exists(path, error)) {
    fs::create_directories(path, error);
    if (error) throw Error(fmt::format("{}: cannot create: {}", path.string(), error.message()));
    created_ = true;
  }
  journal_.emplace(path_, Journal::Sharing::kAlone);
  try {
    take_over(source, existing);
    sync_directory(path_);
  } catch (...) {
    release(existing != Existing::kReplace && !journal_->was_there());
    throw;
  }
}

void OutputDirectory::take_over(const fs::path& source, Existing existing) {
  const std::set<std::string> names = names_in(path_);
  if (existing == Existing::kRefuse) {
    if (!names.empty()) {
      throw Error(fmt::format("{}: expected no files in it, found {}", path_.string(), *names.begin()));
    }
    return journal_->begin();
  }
  if (existing == Existing::kReplace) return empty(names);
  if (!journal_->was_there()) {
    if (!names.empty()) {
      throw Error(fmt::format("{}: expected an unfinished directory, found a finished one", path_.string()));
    }
    return journal_->begin();
  }
  if (!journal_->is_current()) {
    throw Error(
        fmt::format("{}: expected an unfinished run of this version of twofour, found one of another "
                    "version; --force replaces it",
                    path_.string()));
  }
  const std::vector<std::string>& lines = journal_->lines();
  const bool emptying = !lines.empty() && lines.back().starts_with(kEmptying);
  // A journal without notes beside a whole artifact: the run was killed just before emptying it.
  const bool was_to_empty = lines.empty() && !names.count(kTasksFolder) && ownership_of(path_).is_whole();
  if (!emptying && !was_to_empty) {
    keep_ = true;
    return journal_->begin();
  }
  if (!source.empty()) check_links(resolved(source), resolved(path_));
  if (emptying) {
    const std::set<std::string> going = names_from_line(journal_->path(), lines.back());
    Problems problems;
    for (const std::string& name : names) {
      if (going.count(name)) continue;
      problems.add(
          fmt::format("{}: expected only files that the interrupted --force run was removing, found {}",
                      path_.string(), json_quote_short(name)));
    }
    problems.refuse();
  }
  empty(names);
}

void OutputDirectory::empty(const std::set<std::string>& names) {
  // The journal comes first, so that a run stopped while emptying is seen as unfinished too.
  if (!names.empty()) {
    if (journal_->is_current()) journal_->begin();
    sync_directory(path_);
    journal_->note(fmt::format("{}{}", kEmptying, json_line(names)));
  }
  for (const std::string& name : names) {
    std::error_code error;
    fs::remove_all(path_ / name, error);
    if (error) throw Error(fmt::format("{}: cannot remove: {}", (path_ / name).string(), error.message()));
  }
  journal_->restart();
}

void OutputDirectory::clear(const std::set<std::string>& files, const std::set<std::string>& keep) {
  std::set<std::string> folders;
  for (const std::string& file : files) {
    for (fs::path at = fs::path(file).parent_path(); !at.empty(); at = at.parent_path()) folders.insert(at);
  }
  std::vector<fs::path> going;
  Problems problems;
  std::error_code error;
  fs::recursive_directory_iterator it(path_, error), end;
  for (; !error && it != end; it.increment(error)) {
    const fs::path name = it->path().lexically_relative(path_);
    const fs::file_status status = it->symlink_status(error);
    if (keep.count(name) || name == kJournalName) {
      it.disable_recursion_pending();
      continue;
    }
    if (fs::is_directory(status) && folders.count(name)) continue;
    const std::string whole = name_of_temporary(name.filename().string());
    const bool ours = files.count(name) || (!whole.empty() && files.count(name.parent_path() / whole));
    if (ours && fs::is_regular_file(status)) {
      going.push_back(it->path());
      continue;
    }
    problems.add(fmt::format("{}: expected {}, found {}", it->path().string(),
                             ours ? "a file of our own" : "only files that the run writes",
                             fs::is_directory(status)      ? "a directory"
                             : fs::is_symlink(status)      ? "a symbolic link"
                             : fs::is_regular_file(status) ? "another file"
                                                           : "something else"));
    if (fs::is_directory(status)) it.disable_recursion_pending();
  }
  if (error) throw Error(fmt::format("{}: cannot list: {}", path_.string(), error.message()));
  problems.refuse();
  for (const fs::path& file : going) {
    if (!fs::remove(file, error) && error) {
      throw Error(fmt::format("{}: cannot remove: {}", file.string(), error.message()));
    }
  }
}

void OutputDirectory::note(std::string_view line) {
  sync_directory(path_);
  journal_->note(line);
}

void OutputDirectory::release(bool remove_journal) {
  std::error_code ignored;
  if (journal_ && remove_journal) fs::remove(journal_->path(), ignored);
  journal_.reset();
  if (created_) fs::remove(path_, ignored);  // only if nothing is in it
}

OutputDirectory::~OutputDirectory() {
  if (!journal_) return;  // finished
  if (keep_) {
    release(false);
    return;
  }
  std::error_code ignored;
  for (const fs::path& file : files_) fs::remove(file, ignored);
  // Deepest first; only empty folders are removed.
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
  return fs::is_directory(directory, error) && find_unfinished(directory) == nullptr &&
         ownership_of(directory).is_whole();
}

void OutputDirectory::finish() {
  const fs::path journal = journal_->path();
  if (!journal_->has_name())
    throw Error(
        fmt::format("{}: expected the journal of this run, found that it was removed", journal.string()));
  for (const fs::path& file : files_) {
    std::error_code missing;
    if (!fs::is_regular_file(fs::symlink_status(file, missing)))
      throw Error(fmt::format("{}: expected the file as it was written, found none", file.string()));
  }
  constexpr size_t kFlushedAlone = 32;  // more folders than this are flushed together
  if (folders_.size() > kFlushedAlone) {
    flush_file_system(path_);
  } else {
    for (auto it = folders_.rbegin(); it != folders_.rend(); ++it) sync_directory(*it);
    sync_directory(path_);
  }
  std::error_code error;
  fs::remove(journal, error);
  if (error) throw Error(fmt::format("{}: cannot remove: {}", journal.string(), error.message()));
  sync_directory(path_);
  journal_.reset();
}

void check_output_file(const fs::path& file, const char* what,
                       const std::function<bool(const fs::path&)>& is_earlier) {
  if (file.empty()) throw Error(fmt::format("expected a file for the {}, found an empty name", what));
  std::error_code error;
  const fs::path parent = file.has_parent_path() ? file.parent_path() : ".";
  if (!fs::is_directory(parent, error))
    throw Error(fmt::format("{}: expected a directory for the {}, found none", parent.string(), what));
  for (fs::path at = fs::canonical(parent, error);; at = at.parent_path()) {
    if (fs::exists(at / kManifestName, error) || find_unfinished(at) != nullptr)
      throw Error(fmt::format("{}: expected a place outside of the artifact {}, found one inside",
                              file.string(), at.string()));
    if (!at.has_relative_path()) break;
  }
  if (!fs::exists(fs::symlink_status(file, error))) return;
  if (!fs::is_regular_file(fs::symlink_status(file, error)) || !is_earlier(file))
    throw Error(
        fmt::format("{}: expected no file or an earlier {}, found something else", file.string(), what));
}

}  // namespace twofour
