#include "lib/plan/output_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "formats/error.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/quantization_config.h"
#include "lib/io/file.h"

namespace twofour {

namespace fs = std::filesystem;

namespace {

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
  return name == kJournalName || name == kTasksFolder || !name_of_temporary(name).empty();
}

}  // namespace

std::map<std::string, uint64_t> find_auxiliary_files(const fs::path& directory, Findings& findings) {
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

namespace {

/// Adds names to a list of what is not quantized, and takes them off the lists of what is.
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

/// The files that describe a checkpoint after some of its modules, or all, became BF16.
std::map<std::string, std::string> bf16_texts(const Checkpoint& source,
                                              const std::vector<std::string>& names) {
  if (names.size() == source.nvfp4_modules().size()) {
    return {{"config.json", format_json(config_with_quantization(source, nullptr))}};
  }
  Json entry = source_quantization(source), file = source.hf_quant_config();
  // Without an entry in config.json the other file's words stay its own.
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

/// What an artifact's source had.
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
                               const Json* base) {
  Json entry = {{"quant_method", "twofour"}};
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
  for (const auto& [name, text] : plan.texts) files.insert(name);
  return files;
}

}  // namespace twofour
