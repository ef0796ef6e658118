#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <map>

#include "formats/error.h"
#include "formats/json/access.h"
#include "formats/naming.h"
#include "lib/base/findings/problems.h"
#include "lib/base/names/natural.h"
#include "lib/repair/input_member.h"
#include "lib/repair/repair.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

constexpr std::string_view kNeighbours = "neighbours";
constexpr float kNvfp4Inputs = 2688, kE4m3Inputs = 448;

/// Scales of one input that differ by more are not all right, and which one is wrong is not known.
constexpr float kMostToShare = 10;
/// A scale that is so many times the median of its projection's is no neighbour to take from.
constexpr float kFarFromMedian = 1024;

/// True if the config states that a module's inputs are not quantized.
bool is_weight_only(const Json& words, const SourceGroups& groups, const std::string& module) {
  if (module.ends_with(".dt_proj")) return true;
  const Json& layer = member(member(words, "quantized_layers"), module);
  if (text_of(layer, "quant_algo").find("A16") != std::string::npos) return true;
  if (text_of(words, "quant_algo").find("A16") != std::string::npos) return true;
  const Json group = groups.find(module);
  return group.is_object() && member(member(group, "weights"), "num_bits") == 4 &&
         member(group, "input_activations").is_null();
}

/// True if the config states that the inputs of an FP8 linear have a stored scale.
bool is_declared(const Json& words, const SourceGroups& groups, const std::string& module) {
  if (text_of(words, "quant_algo") == "FP8") return true;
  if (text_of(member(member(words, "quantized_layers"), module), "quant_algo") == "FP8") return true;
  const Json group = groups.find(module);
  return member(member(group, "input_activations"), "dynamic") == Json(false);
}

using Member = InputMember;

class InputScales {
 public:
  InputScales(Repair& repair, MendRecord& record) : r_(repair), c_(repair.view()), record_(record) {}

  bool run() {
    list();
    const bool none = std::none_of(members_.begin(), members_.end(),
                                   [](const Member& m) { return m.is_valid() || m.theirs > 0; });
    if (none && r_.settings.input_scale == kNeighbours) return drop_invalid();
    find_far();
    choose();
    share_of_donor();
    share();
    if (std::any_of(changes_.begin(), changes_.end(), [](auto& c) { return c.second.is_of_donor; }))
      refuse_other_model(r_);
    return write();
  }

 private:
  void add(Member m, std::optional<size_t> tensor, size_t experts) {
    m.kind = kind_of(m.module) + (m.is_fp8 ? " FP8" : "");
    m.at = tensor;
    const std::vector<float> theirs = scales_of_donor(m);
    if (!theirs.empty()) m.theirs = theirs[0];
    if (!tensor) {
      members_.push_back(std::move(m));
      return;
    }
    m.tensor = c_.tensors()[*tensor].name;
    const std::vector<float> values = floats_of(c_, *tensor);
    if (values.size() != 1 && values.size() != experts) return;
    for (m.place = 0; m.place < values.size(); ++m.place) {
      m.stored = values[m.place];
      m.multiplier = multiplier_of(m.stored, m.divides);
      m.theirs = theirs.size() == values.size() ? theirs[m.place] : 0;
      members_.push_back(m);
    }
  }
  /// The numbers of the donor's scale for a module that it has in the same format; 0 where one is not valid.
  std::vector<float> scales_of_donor(const Member& m) {
    if (r_.donor == nullptr || r_.settings.input_scale != kNeighbours) return {};
    if (nvfp4_of_donor_.empty()) {
      for (const Nvfp4Linear& theirs : r_.donor->nvfp4_modules()) nvfp4_of_donor_[theirs.name] = &theirs;
    }
    if (m.is_fp8) {
      const auto weight = r_.donor->find(m.module + ".weight");
      if (!weight || r_.donor->tensors()[*weight].dtype != DType::kF8E4M3) return {};
    } else {
      const auto at = nvfp4_of_donor_.find(m.module);
      if (at == nvfp4_of_donor_.end() || at->second->dialect->divides != m.divides) return {};
    }
    const auto at = r_.donor->find(m.tensor);
    if (!at) return {};
    std::vector<float> scales = floats_of(*r_.donor, *at);
    for (float& scale : scales) scale = multiplier_of(scale, m.divides) > 0 ? scale : 0;
    return scales;
  }

  void list() {
    for (const Nvfp4Linear& m : c_.nvfp4_modules()) {
      if (m.dialect->input_scale == nullptr) continue;
      Member one{.module = m.name, .tensor = m.name + m.dialect->input_scale, .divides = m.dialect->divides};
      add(std::move(one), m.input_scale, static_cast<size_t>(m.e));
    }
    Problems ignored;
    for (const Linear& m : find_weight_modules(c_, ignored)) {
      if (m.nvfp4 || m.stacked || m.is_table || !m.format->tiles || !m.scale) continue;
      add({.module = m.name, .tensor = m.name + ".input_scale", .is_fp8 = true}, m.input_scale, 1);
    }
    for (const Member& m : members_) {
      Kind& kind = kinds_[m.kind];
      (m.at ? kind.with : kind.without) += 1;
      if (m.at && (kind.first == nullptr || m.is_valid())) kind.first = &m;
    }
  }

  /// True if a member is to get another scale. Sets the rule.
  bool is_target(const Member& m, std::string& rule) const {
    if (m.is_valid()) return false;
    rule = m.at ? "bad-input-scale" : "missing-input-scale";
    if (!r_.wants(rule)) return false;
    if (m.at) return true;
    if (is_weight_only(words_, groups_, m.module)) return false;
    const Kind& kind = kinds_.at(m.kind);
    // Engines quantize the inputs of an FP8 linear without a scale as they come.
    return m.is_fp8
               ? kind.with > kind.without || is_declared(words_, groups_, m.module)
               : kind.with > 0 || any_nvfp4_scale() || r_.settings.input_scale != kNeighbours || m.theirs > 0;
  }
  bool any_nvfp4_scale() const {
    return std::any_of(members_.begin(), members_.end(),
                       [](const Member& m) { return !m.is_fp8 && m.is_valid(); });
  }

  void find_far() {
    constexpr size_t kFew = 3;
    std::map<std::pair<std::string, bool>, std::vector<Member*>> projections;
    for (Member& m : members_)
      if (m.is_valid()) projections[{projection_of(m), m.is_fp8}].push_back(&m);
    for (auto& [name, all] : projections) {
      if (all.size() < kFew) continue;
      std::ranges::sort(all, {}, &Member::multiplier);
      const float median = all[(all.size() - 1) / 2]->multiplier;
      for (Member* m : all) m->is_far = m->multiplier / median > kFarFromMedian;
    }
  }

  void choose() {
    // The largest scales by fused group, by projection of a layer, and by layer for each kind of projection.
    std::map<std::string, const Member*> fused, projection;
    std::map<std::string, std::map<int64_t, const Member*>> layers;
    const auto raise = [](const Member*& most, const Member& m) {
      if (most == nullptr || m.multiplier > most->multiplier) most = &m;
    };
    const auto format = [](const Member& m) { return std::string(m.is_fp8 ? "FP8 " : "NVFP4 "); };
    for (const Member& m : members_) {
      if (!m.is_valid() || m.is_far) continue;
      raise(fused[format(m) + fused_name(m)], m);
      raise(projection[format(m) + projection_of(m)], m);
      raise(layers[format(m) + kind_over_layers(m)][layer_of(m)], m);
    }
    for (size_t i = 0; i < members_.size(); ++i) {
      const Member& m = members_[i];
      std::string rule;
      if (!is_target(m, rule)) continue;
      Change change{rule};
      if (r_.settings.input_scale != kNeighbours) {
        const auto multiplier = given(m);
        if (!multiplier) {
          r_.leave(rule, m.module, "the file has no amax of it");
          continue;
        }
        change.multiplier = *multiplier;
        change.stored = m.divides ? 1 / *multiplier : *multiplier;
      } else if (m.theirs > 0) {
        change.set_to_donors(m);
      } else {
        const Member* from = nullptr;
        for (const auto* table : {&fused, &projection}) {
          const auto at = table->find(format(m) + (table == &fused ? fused_name(m) : projection_of(m)));
          if (from == nullptr && at != table->end()) from = at->second;
        }
        if (from == nullptr) from = nearest(layers[format(m) + kind_over_layers(m)], layer_of(m));
        if (from == nullptr) {
          r_.leave(rule, m.module, "no layer has a scale of its kind; a constant or a file gives one");
          continue;
        }
        change.multiplier = from->multiplier;
        change.stored = m.divides == from->divides ? from->stored : 1 / from->stored;
      }
      changes_[i] = change;
    }
  }

  static const Member* nearest(const std::map<int64_t, const Member*>& layers, int64_t layer) {
    const Member* found = nullptr;
    int64_t distance = 0;
    for (const auto& [number, m] : layers) {
      const int64_t far = std::abs(number - layer);
      const bool is_better =
          found == nullptr || far < distance || (far == distance && m->multiplier > found->multiplier);
      if (!is_better) continue;
      found = m;
      distance = far;
    }
    return found;
  }

  /// The multiplier by a constant or a file.
  std::optional<float> given(const Member& m) const {
    constexpr std::string_view kConstant = "constant=";
    const std::string& text = r_.settings.input_scale;
    if (text.starts_with(kConstant)) {
      const float value = std::strtof(text.c_str() + kConstant.size(), nullptr);
      return m.is_fp8 ? value * 6 : value;
    }
    const auto at = r_.settings.amax.find(m.module);
    if (at == r_.settings.amax.end()) return std::nullopt;
    return std::bit_cast<float>(at->second) / (m.is_fp8 ? kE4m3Inputs : kNvfp4Inputs);
  }

  /// Gives gate and up that differ the donor's scale if it has one for both.
  void share_of_donor() {
    if (r_.donor == nullptr || !r_.wants("unequal-input-scales")) return;
    std::map<std::string, std::vector<size_t>> groups;
    for (size_t i = 0; i < members_.size(); ++i) {
      const Member& m = members_[i];
      if (m.is_valid() && !m.is_fp8 && is_gate_or_up(m)) groups[fused_name(m)].push_back(i);
    }
    for (const auto& [name, group] : groups) {
      const Member& first = members_[group[0]];
      const auto all = [&](auto same) {
        return std::all_of(group.begin(), group.end(), [&](size_t i) { return same(members_[i]); });
      };
      const bool is_equal = all([&](const Member& m) { return m.multiplier == first.multiplier; });
      const bool has_one = first.theirs > 0 && all([&](const Member& m) { return m.theirs == first.theirs; });
      if (is_equal || !has_one) continue;
      for (const size_t i : group) {
        if (members_[i].stored == members_[i].theirs) continue;
        changes_[i].rule = "unequal-input-scales";
        changes_[i].set_to_donors(members_[i]);
      }
    }
  }

  /// Gives all linears that engines fuse the largest of their scales.
  void share() {
    std::map<std::string, std::pair<float, float>> most;  // multiplier and stored
    const auto key = [](const Member& m) { return fused_name(m) + (m.is_fp8 ? " FP8" : ""); };
    const auto value = [&](size_t i) {
      const auto at = changes_.find(i);
      return at == changes_.end() ? std::pair{members_[i].multiplier, members_[i].stored}
                                  : std::pair{at->second.multiplier, at->second.stored};
    };
    for (size_t i = 0; i < members_.size(); ++i) {
      auto& all = most[key(members_[i])];
      if (value(i).first > all.first) all = value(i);
    }
    for (size_t i = 0; i < members_.size(); ++i) {
      const auto& all = most.at(key(members_[i]));
      if (value(i).first == 0 || value(i).first == all.first || members_[i].is_fp8) continue;
      const bool is_new = changes_.contains(i);
      // Calibrated scales of q, k and v stay, because engines take the largest of the three.
      if (!is_new && (!is_gate_or_up(members_[i]) || !r_.wants("unequal-input-scales"))) continue;
      if (all.first / value(i).first > kMostToShare) {
        if (!is_new)
          r_.leave("unequal-input-scales", members_[i].module,
                   "the scales of one input are too far apart to know which is right");
        continue;
      }
      if (!is_new) changes_[i].rule = "unequal-input-scales";
      changes_[i].multiplier = all.first;
      changes_[i].stored = all.second;
      changes_[i].is_of_donor = false;
    }
  }

  bool write() {
    std::map<std::string, Repair::NewTensor> tensors;
    for (const auto& [i, change] : changes_) {
      const Member& m = members_[i];
      auto [at, is_new] = tensors.try_emplace(m.tensor);
      Repair::NewTensor& t = at->second;
      if (is_new && m.at) {
        const TensorInfo& old = c_.tensors()[*m.at];
        t = {old.name, old.dtype, old.shape, bytes_of(floats_of(c_, *m.at))};
      } else if (is_new) {
        t = {m.tensor, DType::kF32, shape_for(m), std::vector<uint8_t>(sizeof(float))};
      }
      const std::vector<uint8_t> bytes = bytes_of({change.stored});
      std::copy(bytes.begin(), bytes.end(),
                t.bytes.begin() + static_cast<ptrdiff_t>(m.place * sizeof(float)));
      record_.rules.insert(change.rule);
      if (change.is_of_donor) record_.from_donor.insert(m.tensor);
    }
    if (tensors.empty()) return false;
    record_.takes_from_donor = !record_.from_donor.empty();
    record_.origin = r_.settings.input_scale == "given" ? "the file" : r_.settings.input_scale;
    std::vector<Repair::NewTensor> all;
    for (auto& [name, t] : tensors) all.push_back(std::move(t));
    r_.set(std::move(all), record_);
    return true;
  }

  std::vector<int64_t> shape_for(const Member& m) const {
    const Member* const like = kinds_.at(m.kind).first;
    if (like != nullptr) return c_.tensors()[*like->at].shape;
    const auto any = std::find_if(members_.begin(), members_.end(),
                                  [&](const Member& o) { return o.at && o.is_fp8 == m.is_fp8; });
    if (any != members_.end()) return c_.tensors()[*any->at].shape;
    return m.divides ? std::vector<int64_t>{1} : std::vector<int64_t>{};
  }

  /// Drops the scales of a checkpoint that has no valid one. Its config becomes one of weights alone.
  bool drop_invalid() {
    std::set<std::string> bad;
    for (const Member& m : members_) {
      if (m.at && !m.is_fp8) bad.insert(m.tensor);
    }
    if (bad.empty() || !r_.wants("bad-input-scale")) return false;
    record_.rules = {"bad-input-scale"};
    r_.drop([&](const EditedTensor& t) { return bad.contains(t.info.name); }, record_);
    return true;
  }

  struct Kind {
    size_t with = 0, without = 0;
    const Member* first = nullptr;
  };
  struct Change {
    std::string rule;
    float multiplier = 0, stored = 0;
    bool is_of_donor = false;

    void set_to_donors(const Member& m) {
      stored = m.theirs;
      multiplier = multiplier_of(stored, m.divides);
      is_of_donor = true;
    }
  };
  Repair& r_;
  const Checkpoint& c_;
  MendRecord& record_;
  const Json words_ = source_quantization(c_);
  const SourceGroups groups_{words_};
  std::map<std::string, const Nvfp4Linear*> nvfp4_of_donor_;
  std::vector<Member> members_;
  std::map<std::string, Kind> kinds_;
  std::map<size_t, Change> changes_;
};

}  // namespace

bool mend_input_scales(Repair& repair, MendRecord& record) { return InputScales(repair, record).run(); }

}  // namespace twofour
