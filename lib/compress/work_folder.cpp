#include "lib/compress/work_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <system_error>
#include <vector>

#include "formats/error.h"
#include "lib/io/descriptor.h"
#include "lib/io/file.h"

namespace twofour {

namespace fs = std::filesystem;

namespace {

constexpr int kMostTries = 100;

}  // namespace

WorkFolder::WorkFolder(const fs::path& path) : path_(path) {
  const fs::path lock = path / kLock;
  // Another process may remove the folder between two of these steps.
  for (int i = 0; i < kMostTries; ++i) {
    fs::create_directories(path);
    lock_.emplace(lock);
    if (lock_->is_ours()) return;
    if (lock_->is_taken()) break;
  }
  throw Error(
      fmt::format("{}: expected no other process that compresses into this folder, found one: wait for it",
                  path.string()));
}

void WorkFolder::clear() const {
  std::vector<fs::path> folders, files;
  for (const auto& entry : fs::directory_iterator(path_)) {
    if (entry.path().filename() != kLock) (entry.is_directory() ? folders : files).push_back(entry.path());
  }
  // Folders take longest, and a run that is killed meanwhile can still be resumed. The state goes last.
  std::sort(files.begin(), files.end(), std::greater<>());
  for (const auto* all : {&folders, &files}) {
    for (const fs::path& one : *all) fs::remove_all(one);
  }
}

void WorkFolder::remove() const {
  clear();
  std::error_code another;  // may have made a new lock by now
  fs::remove(path_ / kLock, another);
  fs::remove(path_, another);
}

}  // namespace twofour
