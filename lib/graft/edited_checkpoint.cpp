#include "lib/graft/edited_checkpoint.h"

#include <algorithm>
#include <span>
#include <utility>

#include "lib/base/findings/problems.h"
#include "lib/graft/open_edited.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/loader_lookup.h"

namespace twofour {
namespace {

/// Bytes of a tensor from `offset` on.
void read_tensor(const Shard& shard, const EditedTensor& t, uint64_t offset, std::span<uint8_t> out) {
  if (t.made) {
    std::copy_n(t.made->begin() + static_cast<ptrdiff_t>(offset), out.size(), out.begin());
    return;
  }
  const uint64_t base = shard.data_begin + t.begin;
  if (t.table) {
    shard.file.read(base + offset, out);
    for (uint8_t& byte : out) byte = (*t.table)[byte];
    return;
  }
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
  /// `source` is the checkpoint that the edit starts from. `shards` are the files of all sources.
  EditedView(Checkpoint source, std::shared_ptr<const FileStates> donor, std::vector<Shard> shards,
             std::vector<EditedTensor> tensors, std::map<std::string, std::string> texts, Json note,
             std::vector<LinkOutside> links, std::set<std::string> dropped_files,
             std::set<std::string> kept_files, bool may_be_broken)
      : source_(std::move(source)),
        donor_(std::move(donor)),
        shards_(std::move(shards)),
        tensors_(std::move(tensors)),
        texts_(std::move(texts)),
        note_(std::move(note)),
        links_(std::move(links)),
        dropped_files_(std::move(dropped_files)),
        kept_files_(std::move(kept_files)),
        may_be_broken_(may_be_broken) {}

  const Checkpoint& stored() const override { return source_; }
  const std::vector<Shard>& shards() const override { return shards_; }
  void check_same_files() const override {
    source_.check_same_files();
    if (donor_) donor_->check_unchanged();
  }
  uint64_t reader_bytes() const override { return 0; }
  std::map<std::string, std::string> config_texts() const override { return texts_; }
  Json source_note() const override { return note_; }
  std::vector<LinkOutside> links_outside() const override { return links_; }
  std::set<std::string> dropped_files() const override { return dropped_files_; }
  std::set<std::string> kept_files() const override { return kept_files_; }
  bool may_be_broken() const override { return may_be_broken_; }
  void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const override {
    read_tensor(shards_[tensors_[tensor].shard], tensors_[tensor], offset, out);
  }

 private:
  Checkpoint source_;
  std::shared_ptr<const FileStates> donor_;
  std::vector<Shard> shards_;  ///< files of source and donor
  std::vector<EditedTensor> tensors_;
  std::map<std::string, std::string> texts_;
  Json note_;
  std::vector<LinkOutside> links_;  ///< links of source and donor
  std::set<std::string> dropped_files_, kept_files_;
  bool may_be_broken_;
};

/// Restores the source's text of each config that has not changed.
void keep_unchanged_texts(const Checkpoint& source, Edited& edited) {
  const auto keep = [&](const char* name, const Json& before, const Json& now) {
    if (before.is_null() || edited.texts.contains(name) || edited.dropped_files.contains(name) ||
        json_line(before) != json_line(now))
      return;
    if (source.is_directory()) edited.texts[name] = read_text(source.open_again(name));
  };
  keep(kConfigNames[0], source.config(), edited.config);
  keep(kConfigNames[1], source.hf_quant_config(), edited.hf_quant);
}

/// True if a checkpoint has quantized weights in any format.
bool has_codes(const Checkpoint& c) {
  return std::any_of(c.tensors().begin(), c.tensors().end(), [](const TensorInfo& t) {
    const bool few_bits = dtype_bits(t.dtype) <= 8 && t.dtype != DType::kBool;
    return (few_bits || t.dtype == DType::kI32) && t.shape.size() >= 2;
  });
}

}  // namespace

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

void add_tensors(const Checkpoint& c, const std::vector<bool>& stays, uint32_t first,
                 std::vector<EditedTensor>& to) {
  for (size_t i = 0; i < stays.size(); ++i) {
    const TensorInfo& t = c.tensors()[i];
    if (stays[i]) to.push_back({t, first + c.shard_index_of(i), t.begin});
  }
}

void sort_by_name(std::vector<EditedTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const EditedTensor& a, const EditedTensor& b) { return a.info.name < b.info.name; });
}

Findings findings_of(const Checkpoint& c) {
  Findings findings = c.findings();
  std::erase_if(findings, [](const Finding& f) { return f.id == "incomplete-module"; });
  return findings;
}

namespace {

Checkpoint outline_with(const Checkpoint& base, const Checkpoint* donor,
                        const std::vector<EditedTensor>& tensors, Json config, Json hf_quant,
                        bool may_be_broken = false) {
  class Outline : public TensorSource {
   public:
    Outline(const Checkpoint& base, const Checkpoint* donor, const std::vector<EditedTensor>& tensors,
            bool may_be_broken)
        : base_(base), donor_(donor), tensors_(tensors), may_be_broken_(may_be_broken) {}
    const Checkpoint& stored() const override { return base_; }
    void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const override {
      const EditedTensor& t = tensors_[tensor];
      const size_t own = base_.shards().size();
      read_tensor(t.shard < own ? base_.shards()[t.shard] : donor_->shards()[t.shard - own], t, offset, out);
    }
    uint64_t reader_bytes() const override { return 0; }
    bool may_be_broken() const override { return may_be_broken_; }

   private:
    const Checkpoint& base_;
    const Checkpoint* donor_;
    std::vector<EditedTensor> tensors_;
    bool may_be_broken_;
  };
  std::vector<TensorInfo> infos;
  for (const EditedTensor& t : tensors) infos.push_back(t.info);
  return Checkpoint::over(std::make_shared<Outline>(base, donor, tensors, may_be_broken), std::move(infos),
                          std::vector<uint32_t>(tensors.size()), std::move(config), std::move(hf_quant), {});
}

}  // namespace

Checkpoint outline(const Checkpoint& base, const Checkpoint* donor,
                   const std::vector<EditedTensor>& tensors) {
  return outline_with(base, donor, tensors, base.config(), base.hf_quant_config());
}

Checkpoint outline(const Checkpoint& base, const Checkpoint* donor, const Edited& edited) {
  return outline_with(base, donor, edited.tensors, edited.config, edited.hf_quant, edited.may_be_broken);
}

void settle_settings(const Checkpoint& base, const Checkpoint& result, Edited& edited) {
  if (has_codes(base) && !has_codes(result)) {
    edited.config = with_quantization(std::move(edited.config), nullptr);
    edited.hf_quant = nullptr;
    return;
  }
  if (!find_lookup_conflicts(base, base.config(), base.hf_quant_config()).empty()) return;
  Problems problems;
  for (const std::string& conflict : find_lookup_conflicts(result, edited.config, edited.hf_quant))
    problems.add(conflict);
  problems.refuse();
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
  std::vector<LinkOutside> links = source.links_outside();
  if (donor) links.insert(links.end(), donor->links_outside().begin(), donor->links_outside().end());
  std::vector<Shard> shards;
  add(std::move(source).take_shards(), "", shards);
  if (donor) add(std::move(*donor).take_shards(), kDonorPrefix, shards);
  auto view = std::make_shared<const EditedView>(
      std::move(source), donor ? donor->states() : nullptr, std::move(shards), std::move(edited.tensors),
      std::move(edited.texts), std::move(edited.note), std::move(links), std::move(edited.dropped_files),
      std::move(edited.kept_files), edited.may_be_broken);
  return Checkpoint::over(std::move(view), std::move(infos), std::move(owners), std::move(edited.config),
                          std::move(edited.hf_quant), std::move(edited.findings));
}

}  // namespace twofour
