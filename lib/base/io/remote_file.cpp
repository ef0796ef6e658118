#include "lib/base/io/remote_file.h"

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace twofour {
namespace {

struct Entry {
  std::string folder, name;
  Json note;
  std::map<std::string, std::shared_ptr<RemoteFile>> files;
};

std::mutex mutex;
/// True after the first remote folder was added. Calls that open files read it without the lock, so they are
/// fast without remote folders.
std::atomic<bool> any{false};

std::vector<Entry>& entries() {
  static std::vector<Entry> all;
  return all;
}

/// Sets `rest` to the part of `path` after the folder, "/config.json". Returns false if the path is not below
/// the folder.
bool is_below(const std::string& folder, const std::string& path, std::string& rest) {
  if (!path.starts_with(folder)) return false;
  rest = path.substr(folder.size());
  return rest.empty() || rest[0] == '/';
}

}  // namespace

RemoteFolder::RemoteFolder(const std::filesystem::path& folder, std::string name, Json note,
                           std::map<std::string, std::shared_ptr<RemoteFile>> files)
    : folder_(folder.string()) {
  const std::lock_guard lock(mutex);
  entries().push_back({folder_, std::move(name), std::move(note), std::move(files)});
  any = true;
}

RemoteFolder::~RemoteFolder() {
  const std::lock_guard lock(mutex);
  for (Entry& e : entries()) {
    if (e.folder == folder_) e.files.clear();  // messages still need the name
  }
}

std::shared_ptr<RemoteFile> find_remote_file(const std::filesystem::path& path) {
  if (!any) return nullptr;
  const std::lock_guard lock(mutex);
  std::string rest;
  for (const Entry& e : entries()) {
    if (!is_below(e.folder, path.string(), rest) || rest.empty()) continue;
    const auto at = e.files.find(rest.substr(1));
    if (at != e.files.end()) return at->second;
  }
  return nullptr;
}

std::string remote_name(const std::filesystem::path& path) {
  if (!any) return {};
  const std::lock_guard lock(mutex);
  std::string rest;
  for (const Entry& e : entries()) {
    if (is_below(e.folder, path.string(), rest)) return e.name + rest;
  }
  return {};
}

Json remote_note(const std::filesystem::path& folder) {
  if (!any) return nullptr;
  const std::lock_guard lock(mutex);
  for (const Entry& e : entries()) {
    if (e.folder == folder.string()) return e.note;
  }
  return nullptr;
}

std::string with_remote_names(std::string text) {
  if (!any) return text;
  const std::lock_guard lock(mutex);
  for (const Entry& e : entries()) {
    for (size_t at = text.find(e.folder); at != text.npos; at = text.find(e.folder, at + e.name.size())) {
      text.replace(at, e.folder.size(), e.name);
    }
  }
  return text;
}

}  // namespace twofour
