#include "lib/sidecars.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "formats/error.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/io/file.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

constexpr std::array kOtherWeights = {".bin", ".pt", ".pth", ".gguf", ".onnx", ".msgpack", ".h5"};
constexpr std::array kSkippedDirectories = {".cache", ".git"};

bool is_left_behind(const fs::path& relative) {
  const std::string name = relative.filename().string();
  const bool top = !relative.has_parent_path();
  // The weights themselves are read by name; those that no index names are a finding of their own.
  if (top && (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"))) return true;
  return top && name == kManifestName;
}

/// What a run that was interrupted keeps for the one that goes on, at any depth.
bool is_of_unfinished_run(const std::string& name) {
  return name == kUnfinishedMarker || name == kTasksFolder || !name_of_temporary(name).empty();
}

}  // namespace

std::map<std::string, uint64_t> find_sidecars(const fs::path& directory, Findings& findings) {
  std::map<std::string, uint64_t> files;
  std::error_code error;
  fs::recursive_directory_iterator it(directory, error), end;
  for (; !error && it != end; it.increment(error)) {
    const fs::path relative = it->path().lexically_relative(directory);
    const std::string name = relative.filename().string();
    std::error_code ignored;
    const bool is_folder = it->is_directory(ignored) && !it->is_symlink(ignored);
    if (is_of_unfinished_run(name)) {
      findings.push_back({Severity::kWarning, "left-unfinished", relative.string(),
                          "left by a run of twofour that was interrupted: not copied"});
      if (is_folder) it.disable_recursion_pending();
      continue;
    }
    if (is_folder) {
      if (std::find(kSkippedDirectories.begin(), kSkippedDirectories.end(), name) !=
          kSkippedDirectories.end()) {
        it.disable_recursion_pending();
      } else if (is_left_behind(relative)) {
        // Its files would be copied to where a file of ours belongs.
        throw Error(fmt::format("{}: expected a file or nothing of that name, found a directory",
                                it->path().string()));
      }
      continue;
    }
    if (is_left_behind(relative)) continue;
    if (!it->is_regular_file(ignored)) {  // follows links
      findings.push_back({Severity::kWarning, "not-a-file", relative.string(),
                          "neither a regular file nor a link to one: not copied"});
      continue;
    }
    const std::string extension = relative.extension().string();
    if (std::find(kOtherWeights.begin(), kOtherWeights.end(), extension) != kOtherWeights.end()) {
      findings.push_back(
          {Severity::kNote, "other-weights", relative.string(), "weights in another format: not copied"});
      continue;
    }
    files[relative.string()] = it->file_size(ignored);
    if (ignored) throw Error(fmt::format("{}: cannot look at: {}", it->path().string(), ignored.message()));
  }
  if (error) throw Error(fmt::format("{}: cannot list: {}", directory.string(), error.message()));
  return files;
}

}  // namespace twofour
