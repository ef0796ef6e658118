#include "lib/jobs/compress/work_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <system_error>
#include <vector>

#include "formats/error.h"
#include "lib/base/findings/options.h"
#include "lib/base/io/descriptor.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"

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
  // Folders come first, since they take longest. A run that is killed meanwhile can still be resumed. The
  // state is removed last.
  std::sort(files.begin(), files.end(), std::greater<>());
  for (const auto* all : {&folders, &files}) {
    for (const fs::path& one : *all) fs::remove_all(one);
  }
}

void WorkFolder::remove() const {
  clear();
  std::error_code another;  // another process may have made a new lock in the meantime
  fs::remove(path_ / kLock, another);
  fs::remove(path_, another);
}

namespace fs = std::filesystem;

namespace {

constexpr const char* kFormat = "twofour compress 2";

}  // namespace

void refuse_state(const fs::path& work) {
  throw Error(
      fmt::format("{}: expected the state of a compression, found something else or a damaged one; {} "
                  "begins again",
                  (work / WorkState::kName).string(), options::kForce));
}

std::optional<WorkState> WorkState::read(const fs::path& work) {
  const fs::path path = work / kName;
  if (is_absent(path)) return std::nullopt;
  const std::string text = read_text(path);
  if (!is_sealed_object(text)) refuse_state(work);
  const Json json = parse_json(path.string(), text);
  try {
    if (json.at("format") != kFormat || !json.at("run").is_object()) refuse_state(work);
    WorkState state{whole_number<int64_t>(json.at("layers")), json.at("run")};
    for (const Json& hash : json.at("statistics_xxh3_128"))
      state.statistics.push_back(hash.get<std::string>());
    state.streams = json.at("streams_xxh3_128").get<std::string>();
    return state;
  } catch (const Json::exception&) {
    refuse_state(work);
  }
}

void WorkState::write(const fs::path& work) const {
  const Json json = {{"format", kFormat},
                     {"layers", layers},
                     {"run", run},
                     {"statistics_xxh3_128", statistics},
                     {"streams_xxh3_128", streams}};
  write_text(work / kName, seal_object(json.dump()));
}

void check_left_size(const fs::path& file, uint64_t bytes) {
  std::error_code error;
  const uint64_t found = fs::file_size(file, error);
  if (!error && found == bytes) return;
  throw Error(fmt::format("{}: expected {} bytes that an earlier run collected, found {}; {} begins again",
                          file.string(), bytes, error ? "no file" : std::to_string(found), options::kForce));
}

void check_left_hash(const fs::path& file, const std::string& what, const std::string& expected,
                     const std::string& found) {
  if (found == expected) return;
  throw Error(
      fmt::format("{}: expected {} that an earlier run collected, XXH3-128 {}, found {}: the file was "
                  "damaged; {} begins again",
                  file.string(), what, expected, found, options::kForce));
}

}  // namespace twofour
