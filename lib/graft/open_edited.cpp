#include "lib/graft/open_edited.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/error.h"
#include "formats/naming.h"
#include "lib/artifact/layout_names.h"
#include "lib/artifact/manifest.h"
#include "lib/checkpoint/linears.h"
#include "lib/checkpoint/model_config.h"
#include "lib/checkpoint/quantization_config.h"
#include "lib/findings/problems.h"
#include "lib/graft/expert_blocks.h"
#include "lib/graft/fit.h"
#include "lib/graft/mixed_words.h"
#include "lib/graft/model_settings.h"
#include "lib/graft/quantization_words.h"
#include "lib/graft/selection.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// A tensor of an edited checkpoint: bytes of one file, whole or some of its equal slices.
struct EditedTensor {
  TensorInfo info;
  uint32_t shard;                                         ///< in EditedView::shards()
  uint64_t begin;                                         ///< in the shard's data
  std::shared_ptr<const std::vector<int64_t>> kept = {};  ///< slices, ascending; null: all
  uint64_t slice = 0;                                     ///< bytes of one
};

/// Bytes of a tensor from `offset` on.
void read_tensor(const Shard& shard, const EditedTensor& t, uint64_t offset, std::span<uint8_t> out) {
  const uint64_t base = shard.data_begin + t.begin;
  if (!t.kept) return shard.file.read(base + offset, out);
  for (uint64_t done = 0; done < out.size();) {
    const uint64_t slice = (offset + done) / t.slice, at = (offset + done) % t.slice;
    const uint64_t count = std::min<uint64_t>(out.size() - done, t.slice - at);
    const auto from = static_cast<uint64_t>((*t.kept)[slice]);
    shard.file.read(base + from * t.slice + at, out.subspan(done, count));
    done += count;
  }
}

/// Reads the tensors of an edited checkpoint from the files of its sources.
class EditedView : public TensorSource {
 public:
  /// `source` names what it starts from; `shards` are the files of all sources.
  EditedView(Checkpoint source, std::vector<Shard> shards, std::vector<EditedTensor> tensors,
             std::map<std::string, std::string> texts, Json note)
      : source_(std::move(source)),
        shards_(std::move(shards)),
        tensors_(std::move(tensors)),
        texts_(std::move(texts)),
        note_(std::move(note)) {}

  const Checkpoint& stored() const override { return source_; }
  const std::vector<Shard>& shards() const override { return shards_; }
  uint64_t reader_bytes() const override { return 0; }
  std::map<std::string, std::string> config_texts() const override { return texts_; }
  Json source_note() const override { return note_; }
  void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const override {
    read_tensor(shards_[tensors_[tensor].shard], tensors_[tensor], offset, out);
  }

 private:
  Checkpoint source_;
  std::vector<Shard> shards_;
  std::vector<EditedTensor> tensors_;
  std::map<std::string, std::string> texts_;
  Json note_;
};

std::vector<std::string> names_of(const std::vector<EditedTensor>& tensors) {
  std::vector<std::string> names;
  for (const EditedTensor& t : tensors) names.push_back(t.info.name);
  return names;
}

std::vector<std::string> names_of(const Checkpoint& c) {
  std::vector<std::string> names;
  for (const TensorInfo& t : c.tensors()) names.push_back(t.name);
  return names;
}

/// The tensors that stay of a checkpoint, with shards counted from `first`.
void add_tensors(const Checkpoint& c, const std::vector<bool>& stays, uint32_t first,
                 std::vector<EditedTensor>& to) {
  for (size_t i = 0; i < stays.size(); ++i) {
    const TensorInfo& t = c.tensors()[i];
    if (stays[i]) to.push_back({t, first + c.shard_index_of(i), t.begin});
  }
}

/// Findings of a source that hold for what is made of it. Modules are examined again.
Findings findings_of(const Checkpoint& c) {
  Findings findings = c.findings();
  std::erase_if(findings, [](const Finding& f) { return f.id == "incomplete-module"; });
  return findings;
}

/// What an edit makes, before it is known what its config says.
struct Edited {
  std::vector<EditedTensor> tensors;
  Json config, hf_quant;
  Findings findings;
  std::map<std::string, std::string> texts = {};  ///< of config files that are a source's
  Json note = nullptr;                            ///< see TensorSource::source_note
};

constexpr const char* kConfigNames[] = {"config.json", "hf_quant_config.json"};

/// The config files of a checkpoint, byte for byte.
std::map<std::string, std::string> config_files_of(const Checkpoint& c) {
  std::map<std::string, std::string> texts;
  std::error_code error;
  for (const char* name : kConfigNames) {
    if (c.is_directory() && fs::exists(c.path() / name, error)) texts[name] = read_text(c.path() / name);
  }
  return texts;
}

/// A config that says what it said stays as it was written.
void keep_unchanged_texts(const Checkpoint& source, Edited& edited) {
  const auto keep = [&](const char* name, const Json& before, const Json& now) {
    if (before.is_null() || edited.texts.contains(name) || json_line(before) != json_line(now)) return;
    if (source.is_directory()) edited.texts[name] = read_text(source.path() / name);
  };
  keep(kConfigNames[0], source.config(), edited.config);
  keep(kConfigNames[1], source.hf_quant_config(), edited.hf_quant);
}

/// Whether all that a graft brought goes, so that its base is back: then its config files, too.
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

/// The tensors as a checkpoint under the base's configuration, to count and look at. It reads from base and
/// donor and must not outlive them.
Checkpoint outline(const Checkpoint& base, const Checkpoint* donor,
                   const std::vector<EditedTensor>& tensors) {
  class Outline : public TensorSource {
   public:
    Outline(const Checkpoint& base, const Checkpoint* donor, const std::vector<EditedTensor>& tensors)
        : base_(base), donor_(donor), tensors_(tensors) {}
    const Checkpoint& stored() const override { return base_; }
    void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const override {
      const EditedTensor& t = tensors_[tensor];
      const size_t own = base_.shards().size();
      read_tensor(t.shard < own ? base_.shards()[t.shard] : donor_->shards()[t.shard - own], t, offset, out);
    }
    uint64_t reader_bytes() const override { return 0; }

   private:
    const Checkpoint& base_;
    const Checkpoint* donor_;
    std::vector<EditedTensor> tensors_;
  };
  std::vector<TensorInfo> infos;
  for (const EditedTensor& t : tensors) infos.push_back(t.info);
  return Checkpoint::over(std::make_shared<Outline>(base, donor, tensors), std::move(infos),
                          std::vector<uint32_t>(tensors.size()), base.config(), base.hf_quant_config(), {});
}

void sort_by_name(std::vector<EditedTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const EditedTensor& a, const EditedTensor& b) { return a.info.name < b.info.name; });
}

Checkpoint view_of(Checkpoint source, std::optional<Checkpoint> donor, Edited edited) {
  const auto add = [](std::vector<Shard> from, const char* prefix, std::vector<Shard>& to) {
    for (Shard& s : from) {
      s.name = prefix + s.name;
      to.push_back(std::move(s));
    }
  };
  keep_unchanged_texts(source, edited);
  std::vector<TensorInfo> infos;
  std::vector<uint32_t> owners;
  for (const EditedTensor& t : edited.tensors) {
    infos.push_back(t.info);
    owners.push_back(t.shard);
  }
  std::vector<Shard> shards;
  add(std::move(source).take_shards(), "", shards);
  if (donor) add(std::move(*donor).take_shards(), kDonorPrefix, shards);
  auto view =
      std::make_shared<const EditedView>(std::move(source), std::move(shards), std::move(edited.tensors),
                                         std::move(edited.texts), std::move(edited.note));
  return Checkpoint::over(std::move(view), std::move(infos), std::move(owners), std::move(edited.config),
                          std::move(edited.hf_quant), std::move(edited.findings));
}

bool is_code_type(DType type) {
  return type == DType::kU8 || type == DType::kI8 || type == DType::kI32 || type == DType::kF8E4M3;
}

/// The modules that come, quantized or linears in floats, and how the donor's config has them.
std::vector<ComingModule> coming_modules(const Checkpoint& donor, const QuantizationWords& words,
                                         const std::vector<Linear>& linears, const std::vector<bool>& comes) {
  std::set<std::string> floats, quantized;
  for (const Linear& m : linears) {
    if (comes[m.weight]) (m.format == WeightFormat::kFloat ? floats : quantized).insert(m.name);
  }
  for (size_t i = 0; i < comes.size(); ++i) {  // formats that are no linears, or not read
    const TensorInfo& t = donor.tensors()[i];
    const std::string_view leaf = std::string_view(t.name).substr(t.name.rfind('.') + 1);
    if (comes[i] && is_code_type(t.dtype) && (leaf.find("weight") == 0 || leaf == "qweight"))
      quantized.insert(std::string(module_of(t.name)));
  }
  std::vector<ComingModule> coming;
  for (const std::string& name : quantized) {
    coming.push_back(words.scheme_of(name));
    if (coming.back().scheme.is_null()) {
      throw Error(fmt::format("{}: expected its config to say how {} is quantized, found nothing",
                              donor.path().string(), name));
    }
  }
  for (const std::string& name : floats) {
    if (!quantized.contains(name)) coming.push_back({name, nullptr, "", words.scheme_of(name).scheme});
  }
  return coming;
}

std::vector<std::string> float_linears(const Checkpoint& c) {
  std::vector<std::string> names;
  Problems ignored;
  for (const Linear& m : find_weight_modules(c, ignored)) {
    if (m.format == WeightFormat::kFloat) names.push_back(m.name);
  }
  return names;
}

/// The config files after a graft: the base's with what comes written into them or, where they cannot say it,
/// ones that say each module of the result.
void write_words(const Checkpoint& base, const Checkpoint& donor, const std::vector<Linear>& linears,
                 const std::vector<bool>& comes, const Checkpoint& result,
                 const std::vector<std::string>& staying, Edited& edited) {
  QuantizationWords words(edited.config, base.hf_quant_config(), base.path().string());
  words.forget(names_of(base), staying, names_of(result));
  const QuantizationWords of_donor(donor.config(), donor.hf_quant_config(), donor.path().string());
  const std::vector<ComingModule> coming = coming_modules(donor, of_donor, linears, comes);
  if (const auto why = words.add(coming, of_donor, float_linears(result), staying)) {
    for (const ComingModule& m : coming) {  // a format that is not read cannot be named
      const bool known =
          m.scheme.is_null() || std::any_of(linears.begin(), linears.end(), [&](const Linear& l) {
            return l.name == m.name || l.name.starts_with(m.name + ".");
          });
      if (!known) throw Error(*why);
    }
    std::set<std::string> came;
    for (size_t i = 0; i < comes.size(); ++i) {
      if (comes[i]) came.insert(donor.tensors()[i].name);
    }
    ConfigEntries entries = write_mixed_words(base, donor, result, came);
    edited.config = with_quantization(std::move(edited.config), std::move(entries.quantization_config));
    edited.hf_quant = std::move(entries.hf_quant_config);
    return;
  }
  edited.config = words.config();
  edited.hf_quant = words.hf_quant_config();
}

Checkpoint open_graft(const fs::path& source, const fs::path& donor_path, const Edit& edit, Io io) {
  Checkpoint base = open_editable(source, io), donor = open_editable(donor_path, io);
  const int64_t layers = layer_count(base.config(), (base.path() / "config.json").string());
  const int64_t theirs = layer_count(donor.config(), (donor.path() / "config.json").string());
  ModulePatterns patterns(edit.patterns, "--take");
  const std::vector<bool> comes =
      patterns.select(donor, donor.config().is_null() || theirs == kNoLayerCount ? layers : theirs);
  patterns.refuse_unused(donor_path.string());
  std::set<std::string_view> modules;
  std::set<std::string_view> names;
  for (size_t i = 0; i < comes.size(); ++i) {
    if (!comes[i]) continue;
    modules.insert(module_of(donor.tensors()[i].name));
    names.insert(donor.tensors()[i].name);
  }
  std::vector<bool> goes = patterns.select(base, layers);
  for (size_t i = 0; i < goes.size(); ++i) {
    const std::string& name = base.tensors()[i].name;
    goes[i] = goes[i] || names.contains(name) || modules.contains(module_of(name));
  }
  Problems ignored;  // of modules that are not touched
  const auto of_base = find_weight_modules(base, ignored), of_donor = find_weight_modules(donor, ignored);
  refuse_unlike_shapes(base, of_base, goes, donor, of_donor, comes);

  Edited edited;
  std::vector<bool> stays = goes;
  stays.flip();
  add_tensors(base, stays, 0, edited.tensors);
  const std::vector<std::string> staying = names_of(edited.tensors);
  add_tensors(donor, comes, static_cast<uint32_t>(base.shards().size()), edited.tensors);
  sort_by_name(edited.tensors);
  edited.findings = findings_of(base);
  if (staying.size() == base.tensors().size()) {
    edited.note = {{"base", graft_base_to_json({hash_descriptions(base.tensors()), config_files_of(base)})}};
  }
  {
    const Checkpoint result = outline(base, &donor, edited.tensors);
    bool drafts = false;
    for (const std::string_view name : names) {
      drafts = drafts || module_role(module_of(name), layers) == ModuleRole::kMtp;
    }
    edited.config = config_after_graft(base, donor, result, drafts);
    write_words(base, donor, of_donor, comes, result, staying, edited);
  }
  return view_of(std::move(base), std::move(donor), std::move(edited));
}

/// Single experts of a block go by their own way, which keeps router and config right.
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
        fmt::format("{}: expected all of {} to go or to stay, found some of it; --experts drops experts",
                    c.where(i), block));
  }
}

Checkpoint open_without_modules(const fs::path& path, const Edit& edit, Io io) {
  Checkpoint source = open_editable(path, io);
  const int64_t layers = layer_count(source.config(), (source.path() / "config.json").string());
  ModulePatterns patterns(edit.patterns, "--modules");
  std::vector<bool> stays = patterns.select(source, layers);
  patterns.refuse_unused(path.string());
  stays.flip();
  if (std::none_of(stays.begin(), stays.end(), [](bool s) { return s; }))
    throw Error(fmt::format("{}: expected tensors to stay, found that all match --modules", path.string()));
  refuse_parts_of_blocks(source, stays);
  Edited edited;
  add_tensors(source, stays, 0, edited.tensors);
  edited.findings = findings_of(source);
  if (!give_base_back(source, edited)) {
    const Checkpoint result = outline(source, nullptr, edited.tensors);
    QuantizationWords words(config_after_drop(source, result), source.hf_quant_config(),
                            source.path().string());
    const std::vector<std::string> after = names_of(result);
    words.forget(names_of(source), after, after);
    edited.config = words.config();
    edited.hf_quant = words.hf_quant_config();
  }
  return view_of(std::move(source), std::nullopt, std::move(edited));
}

/// What is left of a tensor of a block; nothing where it goes.
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

/// The new name of a module of a block's expert; nothing where the expert goes.
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

Checkpoint open_without_experts(const fs::path& path, const Edit& edit, Io io) {
  Checkpoint source = open_editable(path, io);
  const std::vector<ExpertBlock> blocks = find_expert_blocks(source);
  check_kept_experts(source, blocks, edit.experts, "--experts");
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
  QuantizationWords words(config_after_experts(source, blocks.front().experts, count),
                          source.hf_quant_config(), source.path().string());
  words.rename({modules.begin(), modules.end()}, renames);
  edited.config = words.config();
  edited.hf_quant = words.hf_quant_config();
  return view_of(std::move(source), std::nullopt, std::move(edited));
}

}  // namespace

Checkpoint open_editable(const fs::path& path, Io io) {
  Checkpoint c = Checkpoint::open(path, io);
  if (holds_layout(c)) {
    throw Error(
        fmt::format("{}: expected a checkpoint, found an artifact in a layout; edit the checkpoint that "
                    "it was made from and convert that",
                    path.string()));
  }
  std::error_code error;
  if (c.is_directory() && fs::exists(path / kManifestName, error)) {
    const Manifest manifest = read_manifest(path / kManifestName, c.tensors().size());
    if (!manifest.integrity_error.empty())
      throw Error(fmt::format("{}: {}", (path / kManifestName).string(), manifest.integrity_error));
  }
  return c;
}

Checkpoint open_edited(const fs::path& source, const fs::path& donor, const Edit& edit, Io io) {
  if (edit.kind == Edit::Kind::kGraft) return open_graft(source, donor, edit, io);
  if (edit.kind == Edit::Kind::kDropModules) return open_without_modules(source, edit, io);
  return open_without_experts(source, edit, io);
}

}  // namespace twofour
