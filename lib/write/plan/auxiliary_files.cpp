#include "lib/write/plan/auxiliary_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "formats/error.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/problems.h"
#include "lib/base/io/file.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/quantization_config.h"

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

namespace {

/// Adds names to a list of modules that are not quantized, and removes them from lists of quantized modules.
void leave_unquantized(Json& entry, const char* key, const std::vector<std::string>& names) {
  if (!entry.is_object()) return;
  if (!entry.contains(key) || !entry[key].is_array()) entry[key] = Json::array();
  for (const std::string& name : names) {
    entry[key].push_back(name);
    if (entry.contains("quantized_layers") && entry["quantized_layers"].is_object())
      entry["quantized_layers"].erase(name);
  }
}

}  // namespace

/// The files that describe a checkpoint after the modules `names`, which may be all modules, became BF16.
std::map<std::string, std::string> bf16_texts(const Checkpoint& source,
                                              const std::vector<std::string>& names) {
  if (names.size() == source.nvfp4_modules().size()) {
    return {{"config.json", format_json(config_with_quantization(source, nullptr))}};
  }
  Json entry = source_quantization(source), file = source.hf_quant_config();
  // If config.json has no entry, the entry of hf_quant_config.json stays in that file.
  if (entry == file) entry = nullptr;
  std::map<std::string, std::string> texts;
  leave_unquantized(entry, "ignore", names);
  texts["config.json"] = format_json(config_with_quantization(source, entry));
  if (file.is_object() && file.contains("quantization")) {
    leave_unquantized(file["quantization"], "exclude_modules", names);
    texts["hf_quant_config.json"] = format_json(file);
  }
  return texts;
}

/// The config files of the source of an artifact.
std::map<std::string, std::string> original_texts(const Checkpoint& source) {
  std::map<std::string, std::string> texts;
  if (source.config().is_object()) texts["config.json"] = format_json(source.config());
  if (source.hf_quant_config().is_object())
    texts["hf_quant_config.json"] = format_json(source.hf_quant_config());
  for (const auto& [name, text] : source.config_texts()) texts[name] = text;
  return texts;
}

Json layout_group_to_json(const LayoutGroup& group) {
  return {{"layout", group.layout}, {"pattern", group.pattern}, {"modules", group.modules}};
}

std::string layout_config_text(const Checkpoint& source, const std::vector<LayoutGroup>& groups,
                               bool names_import, const Json* base) {
  Json entry = {{"quant_method", "twofour"}};
  if (names_import) entry["import"] = kTransformersImport;
  if (groups.size() == 1) {
    entry.update(layout_group_to_json(groups[0]));
  } else {
    entry["layout"] = kMixedLayout;
    Json& all = entry["groups"] = Json::array();
    for (const LayoutGroup& group : groups) all.push_back(layout_group_to_json(group));
  }
  return format_json(config_with_layout(source, std::move(entry), base));
}

std::string artifact_index(const Plan& plan) {
  std::map<std::string_view, std::string_view> files;
  for (const OutputTensor& t : plan.tensors) files[t.info.name] = plan.files[t.file].name;
  std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", plan.data_bytes);
  for (auto it = files.begin(); it != files.end(); ++it) {
    text += fmt::format("{}\n    {}: {}", it == files.begin() ? "" : ",", json_quote(it->first),
                        json_quote(it->second));
  }
  return text + "\n  }\n}\n";
}

std::set<std::string> artifact_files(const Plan& plan) {
  std::set<std::string> files{kIndexName, kManifestName};
  for (const OutputFile& file : plan.files) files.insert(file.name);
  for (const auto& [name, bytes] : plan.auxiliary_files) files.insert(name);
  for (const auto& [name, text] : plan.config.texts) files.insert(name);
  if (!plan.readme.empty()) files.insert(plan.readme);
  return files;
}

}  // namespace twofour
