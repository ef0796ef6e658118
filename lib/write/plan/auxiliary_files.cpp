#include "lib/write/plan/auxiliary_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "formats/error.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/problems.h"
#include "lib/base/io/file.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

namespace fs = std::filesystem;

namespace {

constexpr std::array kOtherWeights = {".bin", ".pt", ".pth", ".gguf", ".onnx", ".msgpack", ".h5"};

bool is_left_behind(const fs::path& relative) {
  const std::string name = relative.filename().string();
  const bool top = !relative.has_parent_path();
  // Weights are read by the names in the index. Weight files that no index names have a separate finding.
  if (top && (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"))) return true;
  return top && name == kManifestName;
}

bool is_other_weights(const fs::path& path) {
  const std::string extension = path.extension().string();
  return std::find(kOtherWeights.begin(), kOtherWeights.end(), extension) != kOtherWeights.end();
}

/// True for files that an interrupted run leaves for a run that resumes it, at any depth.
bool is_of_unfinished_run(const std::string& name) {
  return name == kJournalName || name == kTasksFolder || !name_of_temporary(name).empty();
}

/// Lists the files of a checkpoint that are copied beside its weights.
class AuxiliaryLister {
 public:
  AuxiliaryLister(const fs::path& root, Links links, Findings& findings)
      : root_(root), links_(links), findings_(findings), folders_{fs::weakly_canonical(root)} {}
  AuxiliaryFiles list() {
    list_folder(root_);
    return std::move(found_);
  }

 private:
  void list_folder(const fs::path& folder);
  void add(const fs::directory_entry& entry);
  void add_folder(const fs::path& path);
  void add_file(const fs::directory_entry& entry);
  void follow_folder(const fs::path& path);

  std::string name_of(const fs::path& path) const { return path.lexically_relative(root_).string(); }
  void leave(Severity severity, const char* rule, const fs::path& path, const std::string& why) {
    findings_.push_back({severity, rule, name_of(path), why + ": not copied"});
  }

  const fs::path root_;
  const Links links_;
  Findings& findings_;
  AuxiliaryFiles found_;
  std::vector<fs::path> folders_;  ///< real paths of the folders that links led into; the root is first
};

void AuxiliaryLister::list_folder(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) add(*it);
  if (error) throw Error(fmt::format("{}: cannot list: {}", folder.string(), error.message()));
}

void AuxiliaryLister::add(const fs::directory_entry& entry) {
  const fs::path& path = entry.path();
  std::error_code ignored;
  const bool is_link = entry.is_symlink(ignored), is_folder = entry.is_directory(ignored);
  if (is_of_unfinished_run(path.filename().string()))
    return leave(Severity::kWarning, "left-unfinished", path,
                 "left by a run of twofour that was interrupted");
  if (is_folder && !is_link) return add_folder(path);
  const std::string name = name_of(path);
  if (is_folder ? is_skipped_folder(path.filename()) : is_left_behind(name) && name != kManifestName) return;
  if (!is_folder && !entry.is_regular_file(ignored)) {
    const std::string dangling = dangling_link(path);
    return leave(Severity::kWarning, "not-a-file", path,
                 dangling.empty() ? "neither a regular file nor a link to one" : dangling);
  }
  if (!is_folder && is_other_weights(path))
    return leave(Severity::kNote, "other-weights", path, "weights in another format");
  if (const auto outside = is_link ? link_outside(root_, path) : std::nullopt) {
    if (links_ == Links::kInside) return found_.links_outside.push_back(*outside);
    if (is_folder) return follow_folder(path);
  }
  if (is_folder) return leave(Severity::kWarning, "not-a-file", path, "a link to a folder");
  if (!is_left_behind(name)) add_file(entry);
}

void AuxiliaryLister::add_folder(const fs::path& path) {
  if (is_skipped_folder(path.filename())) return;
  if (is_left_behind(name_of(path))) {
    // The files of the directory would be copied to the place of a file that twofour writes.
    throw Error(fmt::format("{}: expected a file or nothing of that name, found a directory", path.string()));
  }
  list_folder(path);
}

/// Lists the target of a link, unless the target is a folder that contains the link.
void AuxiliaryLister::follow_folder(const fs::path& path) {
  const fs::path target = fs::canonical(path);
  const bool is_within_itself = is_within(fs::canonical(path.parent_path()), target) ||
                                std::find(folders_.begin(), folders_.end(), target) != folders_.end();
  if (is_within_itself)
    return leave(Severity::kWarning, "not-a-file", path, "a link to a folder that it is in");
  folders_.push_back(target);
  add_folder(path);
  folders_.pop_back();
}

void AuxiliaryLister::add_file(const fs::directory_entry& entry) {
  std::error_code error;
  found_.sizes[name_of(entry.path())] = entry.file_size(error);
  if (error) throw Error(fmt::format("{}: cannot look at: {}", entry.path().string(), error.message()));
}

}  // namespace

AuxiliaryFiles find_auxiliary_files(const fs::path& directory, Links links, Findings& findings) {
  return AuxiliaryLister(directory, links, findings).list();
}

std::map<std::string, uint64_t> copied_files(const Checkpoint& source, Links links, Findings& findings) {
  AuxiliaryFiles files;
  if (source.is_directory()) files = find_auxiliary_files(source.path(), links, findings);
  if (links == Links::kInside) {
    std::map<fs::path, LinkOutside> all;  // by path, since config files of the source are in both lists
    for (const LinkOutside& link : files.links_outside) all.emplace(link.path, link);
    for (const LinkOutside& link : source.links_outside()) all.emplace(link.path, link);
    Problems problems;
    for (const auto& [path, link] : all) problems.add(text_of(link));
    problems.refuse();
  }
  return std::move(files.sizes);
}

std::string plan_readme(const Checkpoint& source, Readme wanted, std::map<std::string, uint64_t>& copied,
                        Problems& problems) {
  if (copied.contains(kReadmeName) || copied.contains(kBesideReadmeName)) {
    size_t tensors = 0;
    for (const Shard& shard : source.shards()) tensors += shard.tensor_count;
    copied.erase(own_readme(source.path(), tensors));
  }
  if (wanted != Readme::kWritten) return {};
  const std::string name = copied.contains(kReadmeName) ? kBesideReadmeName : kReadmeName;
  if (copied.contains(name)) {
    problems.add(
        fmt::format("{}: expected no such file, because the description of the output gets this name "
                    "beside the author's {}, found one; rename it, or use {}",
                    (source.path() / name).string(), kReadmeName, options::kNoReadme));
  }
  return name;
}

}  // namespace twofour
