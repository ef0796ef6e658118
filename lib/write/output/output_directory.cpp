#include "lib/write/output/output_directory.h"

#include <fmt/format.h>

#include <vector>

#include "formats/error.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/problems.h"
#include "lib/base/io/file.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/output/file_batch.h"

namespace twofour {

namespace fs = std::filesystem;

namespace {

/// The beginning of a journal line that lists names which are being removed. A run that replaces a directory
/// writes this line first. So the run can be resumed if it is killed while it removes files.
constexpr std::string_view kEmptying = "emptying ";

std::set<std::string> names_from_line(const fs::path& journal, std::string_view line) {
  try {
    const Json json = Json::parse(line.substr(kEmptying.size()));
    return json.get<std::set<std::string>>();
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: expected a list of names, found something else", journal.string()));
  }
}

}  // namespace

OutputDirectory::OutputDirectory(const Destination& destination) : path_(destination.path()) {
  destination.check_same_directory();
  std::error_code error;
  if (!fs::exists(path_, error)) {
    fs::create_directories(path_, error);
    if (error) throw Error(fmt::format("{}: cannot create: {}", path_.string(), error.message()));
    created_ = true;
  }
  journal_.emplace(path_, Sharing::kAlone);
  bool empties = false;  // true if this run empties the directory: its journal is not removed
  try {
    // The path may have been replaced after the first check. The journal is then in another directory.
    destination.check_same_directory();
    if (destination.existing() == Existing::kReplace) destination.check_same_names(names_in(path_));
    empties = destination.existing() == Existing::kReplace;
    take_over(destination);
    sync_directory(path_);
  } catch (...) {
    release(!empties && !journal_->was_there());
    throw;
  }
}

void OutputDirectory::take_over(const Destination& destination) {
  const Existing existing = destination.existing();
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
                    "version; {} replaces it",
                    path_.string(), options::kForce));
  }
  const std::vector<std::string>& lines = journal_->lines();
  const bool emptying = !lines.empty() && lines.back().starts_with(kEmptying);
  // A journal without notes beside a complete artifact means that the run was killed just before it emptied
  // the directory.
  const bool was_to_empty = lines.empty() && !names.count(kTasksFolder) && has_whole_manifest(path_);
  if (!emptying && !was_to_empty) {
    keep_ = true;
    return journal_->begin();
  }
  if (!destination.source().empty()) check_no_links_into(path_, destination.source());
  if (emptying) {
    const std::set<std::string> going = names_from_line(journal_->path(), lines.back());
    Problems problems;
    for (const std::string& name : names) {
      if (going.count(name)) continue;
      problems.add(fmt::format("{}: expected only files that the interrupted {} run was removing, found {}",
                               path_.string(), options::kForce, json_quote_short(name)));
    }
    problems.refuse();
  }
  empty(names);
}

void OutputDirectory::empty(const std::set<std::string>& names) {
  // The journal comes first. So a run that is stopped while it empties the directory also counts as
  // unfinished.
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
                             ours ? "a file that twofour wrote" : "only files that the run writes",
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
  if (journal_ && remove_journal && journal_->has_name()) fs::remove(journal_->path(), ignored);
  journal_.reset();
  if (created_) fs::remove(path_, ignored);  // this removes the folder only if it is empty
}

OutputDirectory::~OutputDirectory() {
  if (!journal_) return;  // the run finished
  if (keep_) {
    release(false);
    return;
  }
  std::error_code ignored;
  for (const fs::path& file : files_) fs::remove(file, ignored);
  // The deepest folders come first. Only empty folders are removed.
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
  constexpr size_t kFlushedAlone = 32;  // if there are more folders than this, all are flushed together
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

}  // namespace twofour
