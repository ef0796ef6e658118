#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "formats/error.h"
#include "formats/naming.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/problems.h"
#include "lib/graft/check_fit.h"
#include "lib/graft/edited_checkpoint.h"
#include "lib/graft/kept_experts.h"
#include "lib/graft/model_settings.h"
#include "lib/graft/module_patterns.h"
#include "lib/graft/open_edited.h"
#include "lib/graft/quantization_entries.h"
#include "lib/recipe/artifact/manifest.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// Restores the base's config files and returns true if the edit drops everything that a graft added.
bool give_base_back(const Checkpoint& source, Edited& edited) {
  std::error_code error;
  const fs::path path = source.path() / kManifestName;
  if (!source.is_directory() || !fs::exists(path, error)) return false;
  const auto base = read_manifest(path, source.tensors().size()).graft_base;
  std::vector<TensorInfo> left;
  for (const EditedTensor& t : edited.tensors) left.push_back(t.info);
  if (!base || hash_descriptions(left) != base->tensors) return false;
  edited.texts = base->texts;
  const auto parse = [&](const char* name) {
    const auto at = edited.texts.find(name);
    return at == edited.texts.end() ? Json(nullptr) : parse_json(path.string(), at->second);
  };
  edited.config = parse(kConfigNames[0]);
  edited.hf_quant = parse(kConfigNames[1]);
  return true;
}

/// Throws Error if the edit drops single experts of a block. Another edit does this and also adapts router
/// and config.
void refuse_parts_of_blocks(const Checkpoint& c, const std::vector<bool>& stays) {
  const auto block_of = [](std::string_view name) {
    const auto parsed = parse_module_name(module_of(name));
    return parsed && parsed->expert >= 0 ? std::string(parsed->block) : std::string();
  };
  std::set<std::string> left;
  for (size_t i = 0; i < stays.size(); ++i) {
    if (stays[i]) left.insert(block_of(c.tensors()[i].name));
  }
  for (size_t i = 0; i < stays.size(); ++i) {
    const std::string block = block_of(c.tensors()[i].name);
    if (stays[i] || block.empty() || !left.contains(block)) continue;
    throw Error(
        fmt::format("{}: expected all of {} to be dropped or to stay, found a part of it; {} drops experts",
                    c.where(i), block, options::kExperts));
  }
}

/// The part of a block's tensor that remains. Empty if the whole tensor is dropped.
std::optional<EditedTensor> without_experts(const Checkpoint& c, const ExpertTensor& t, int64_t experts,
                                            const std::shared_ptr<const std::vector<int64_t>>& kept) {
  const TensorInfo& info = c.tensors()[t.tensor];
  EditedTensor out{info, c.shard_index_of(t.tensor), info.begin};
  if (t.kind == ExpertTensor::Kind::kWhole) return out;
  if (t.kind == ExpertTensor::Kind::kExpert) {
    const auto at = std::lower_bound(kept->begin(), kept->end(), t.expert);
    if (at == kept->end() || *at != t.expert) return std::nullopt;
    const size_t digits = std::to_string(t.expert).size();
    out.info.name.replace(t.number_at, digits, std::to_string(at - kept->begin()));
    return out;
  }
  out.kept = kept;
  out.slice = info.bytes() / static_cast<uint64_t>(experts);
  *std::find(out.info.shape.begin(), out.info.shape.end(), experts) = static_cast<int64_t>(kept->size());
  out.info.end = out.info.begin + out.slice * kept->size();
  return out;
}

/// Finds the new name of a module of a block's expert. Empty if the expert is dropped.
class ExpertRenames {
 public:
  void add(const ExpertBlock& block, const std::vector<int64_t>& kept) { kept_[block.name] = &kept; }
  std::optional<std::string> operator()(const std::string& module) const {
    for (size_t dot = module.find('.'); dot != module.npos; dot = module.find('.', dot + 1)) {
      const auto at = kept_.find(module.substr(0, dot));
      if (at == kept_.end()) continue;
      const size_t end = std::min(module.find('.', dot + 1), module.size());
      const std::string digits = module.substr(dot + 1, end - dot - 1);
      if (digits.empty() || digits.find_first_not_of("0123456789") != digits.npos) return module;
      const auto number = std::lower_bound(at->second->begin(), at->second->end(), std::stoll(digits));
      if (number == at->second->end() || std::to_string(*number) != digits) return std::nullopt;
      return module.substr(0, dot + 1) + std::to_string(number - at->second->begin()) + module.substr(end);
    }
    return module;
  }

 private:
  std::map<std::string, const std::vector<int64_t>*> kept_;
};

}  // namespace

Checkpoint open_without_modules(const fs::path& path, const Edit& edit, Io io) {
  Checkpoint source = open_editable(path, io);
  const int64_t layers = layer_count(source);
  ModulePatterns patterns(edit.patterns, options::kModules.text());
  std::vector<bool> stays = patterns.select(source, layers);
  patterns.refuse_unused(path.string());
  stays.flip();
  if (std::none_of(stays.begin(), stays.end(), [](bool s) { return s; }))
    throw Error(fmt::format("{}: expected tensors to stay, found that all match {}", path.string(),
                            options::kModules));
  refuse_parts_of_blocks(source, stays);
  Edited edited;
  add_tensors(source, stays, 0, edited.tensors);
  edited.findings = findings_of(source);
  if (!give_base_back(source, edited)) {
    const Checkpoint result = outline(source, nullptr, edited.tensors);
    Json config = switch_settings(config_after_drop(source, result), source, result, nullptr);
    QuantizationEntries entries(std::move(config), source.hf_quant_config(), source.path().string());
    const std::vector<std::string> after = names_of(result);
    entries.forget(names_of(source), after, after);
    edited.config = entries.config();
    edited.hf_quant = entries.hf_quant_config();
    settle_settings(source, result, edited);
  }
  return view_of(std::move(source), std::nullopt, std::move(edited));
}

Checkpoint open_without_experts(const fs::path& path, const Edit& edit, Io io) {
  Checkpoint source = open_editable(path, io);
  const std::vector<ExpertBlock> blocks = find_expert_blocks(source);
  check_kept_experts(source, blocks, edit.experts, options::kExperts.text());
  Edited edited;
  std::vector<bool> plain(source.tensors().size(), true);
  ExpertRenames renames;
  std::set<std::string> modules;
  for (const ExpertBlock& block : blocks) {
    const auto kept = std::make_shared<const std::vector<int64_t>>(edit.experts.at(block.name));
    renames.add(block, edit.experts.at(block.name));
    for (const ExpertTensor& t : block.tensors) {
      plain[t.tensor] = false;
      if (auto left = without_experts(source, t, block.experts, kept))
        edited.tensors.push_back(std::move(*left));
      if (t.kind == ExpertTensor::Kind::kExpert)
        modules.insert(std::string(module_of(source.tensors()[t.tensor].name)));
    }
  }
  add_tensors(source, plain, 0, edited.tensors);
  sort_by_name(edited.tensors);
  edited.findings = findings_of(source);
  const auto count = static_cast<int64_t>(edit.experts.begin()->second.size());
  QuantizationEntries entries(config_after_experts(source, blocks.front().experts, count),
                              source.hf_quant_config(), source.path().string());
  entries.rename({modules.begin(), modules.end()}, renames);
  edited.config = entries.config();
  edited.hf_quant = entries.hf_quant_config();
  settle_settings(source, outline(source, nullptr, edited.tensors), edited);
  Problems ignored;  // problems of modules that the edit leaves unchanged
  refuse_other_readings(source, find_weight_modules(source, ignored), outline(source, nullptr, edited),
                        [&](const Linear& m) { return m.stacked ? std::nullopt : renames(m.name); });
  return view_of(std::move(source), std::nullopt, std::move(edited));
}

}  // namespace twofour
