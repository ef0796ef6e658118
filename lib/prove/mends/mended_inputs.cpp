#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "formats/json/access.h"
#include "formats/naming.h"
#include "lib/prove/mends/mended_state.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/config/quantization_config.h"

namespace twofour {
namespace {

/// A linear, or an expert of a stack, whose inputs have a scale.
struct InputScaleOf {
  std::string module, tensor;
  bool is_stored = false, divides = false, is_fp8 = false;
  size_t place = 0;
  float stored = 0, multiplier = 0;  ///< the multiplier is 0 without a usable scale
  std::string fused = {}, projection = {}, kind = {};
  int64_t layer = 0;
  bool shares = false;      ///< gate or up
  std::string rule = {};    ///< set where the scale changes
  bool is_outlier = false;  ///< of more than 1024 times the lower median of its projection
  float donors = 0;         ///< the donor's scale as stored; 0 if it has no usable one
  bool is_valid() const { return multiplier > 0; }
};

class DerivedInputScales {
 public:
  explicit DerivedInputScales(MendedState& state)
      : state_(state), infos_(state.infos()), words_(words_of(state)), groups_(words_) {
    list();
  }

  bool any_usable() const {
    return std::any_of(all_.begin(), all_.end(), [](auto& s) { return s.is_valid() || s.donors > 0; });
  }
  /// The stored scales of NVFP4 modules, none of which is usable.
  std::set<std::string> stored() const {
    std::set<std::string> names;
    for (const InputScaleOf& s : all_) {
      if (s.is_stored && !s.is_fp8) names.insert(s.tensor);
    }
    return names;
  }
  std::vector<MendedTensor> derive() {
    mark_outliers();
    const std::vector<InputScaleOf> before = all_;
    for (const InputScaleOf& s : before) {
      (s.is_stored ? with_ : without_)[s.kind] += 1;
      if (!s.is_valid()) continue;
      any_nvfp4_ = any_nvfp4_ || !s.is_fp8;
      if (s.is_outlier) continue;
      valid_[s.fused].push_back(&s);
      valid_["in " + s.projection].push_back(&s);
      valid_["over " + name_kind(s.projection)].push_back(&s);
    }
    for (size_t i = 0; i < all_.size(); ++i) {
      const std::string rule = rule_for(before[i]);
      if (!rule.empty()) set(all_[i], rule);
    }
    set_unequal();
    share();
    return tensors(before);
  }

 private:
  void mark_outliers() {
    std::map<std::string, std::vector<float>> usable;
    for (const InputScaleOf& s : all_)
      if (s.is_valid()) usable[s.projection].push_back(s.multiplier);
    for (auto& [projection, scales] : usable)
      std::nth_element(scales.begin(), scales.begin() + static_cast<ptrdiff_t>((scales.size() - 1) / 2),
                       scales.end());
    for (InputScaleOf& s : all_) {
      if (!s.is_valid()) continue;
      const std::vector<float>& scales = usable[s.projection];
      s.is_outlier = scales.size() > 2 && s.multiplier > 1024 * scales[(scales.size() - 1) / 2];
    }
  }
  static Json words_of(const MendedState& state) {
    if (const auto entry = quantization_entry(state.config)) return entry->value;
    const Json& nested = member(state.hf_quant, "quantization");
    return nested.is_null() ? state.hf_quant : nested;
  }
  void add(InputScaleOf s, int64_t experts) {
    const auto group = fused_group(s.module);
    s.fused =
        fmt::format("{} {}", group ? fmt::format("{} {}", group->first, group->second) : s.module, s.is_fp8);
    const auto name = parse_module_name(s.module);
    s.shares = name && name->projection != Projection::kDown;
    const bool is_expert = name && name->kind == BlockKind::kRoutedExperts;
    s.projection = fmt::format("{}{} {}", is_expert ? name->block : s.module,
                               !is_expert ? ""
                               : s.shares ? ".in"
                                          : ".out",
                               s.is_fp8);
    s.kind = fmt::format("{} {}", name_kind(s.module), s.is_fp8);
    s.layer = first_number(s.module);
    const auto at = state_.tensors.find(s.tensor);
    s.is_stored = at != state_.tensors.end();
    const std::vector<float> donors = donor_scales(s);
    if (!donors.empty()) s.donors = donors.front();
    if (!s.is_stored) {
      all_.push_back(s);
      return;
    }
    if (at->second.info.dtype != DType::kF32) return;
    const std::vector<float> values = at->second.floats();
    if (values.size() != 1 && values.size() != static_cast<size_t>(experts)) return;
    for (s.place = 0; s.place < values.size(); ++s.place) {
      s.stored = values[s.place];
      const float multiplier = s.divides ? 1.0f / s.stored : s.stored;
      if (!group) s.fused = fmt::format("{} {} {}", s.module, s.place, s.is_fp8);
      s.multiplier = is_usable(s.stored) && is_usable(multiplier) ? multiplier : 0;
      s.donors = donors.size() == values.size() ? donors[s.place] : 0;
      all_.push_back(s);
    }
  }
  /// The donor's scales of a module that it stores in the same format. 0 for those that are not usable.
  std::vector<float> donor_scales(const InputScaleOf& s) {
    const Checkpoint* const donor = state_.donor;
    if (donor == nullptr || state_.settings.input_scale != "neighbours") return {};
    const auto scale = donor->find(s.tensor), weight = donor->find(s.module + ".weight");
    if (!scale || (s.is_fp8 && (!weight || donor->tensors()[*weight].dtype != DType::kF8E4M3))) return {};
    if (!s.is_fp8 && !donor_divides_) {
      donor_divides_.emplace();
      for (const Nvfp4Linear& m : sound_modules({donor->tensors().begin(), donor->tensors().end()}))
        (*donor_divides_)[m.name] = m.dialect->divides;
    }
    if (!s.is_fp8 && (!donor_divides_->contains(s.module) || donor_divides_->at(s.module) != s.divides))
      return {};
    const TensorInfo& info = donor->tensors()[*scale];
    if (info.dtype != DType::kF32) return {};
    std::vector<float> values = MendedTensor{info, donor, *scale}.floats();
    for (float& x : values) {
      if (!is_usable(x) || (s.divides && !is_usable(1.0f / x))) x = 0;
    }
    return values;
  }
  static int64_t first_number(const std::string& name) {
    const std::string dotted = name + ".";
    for (size_t at = 0; at < dotted.size();) {
      const size_t end = dotted.find('.', at);
      const std::string part = dotted.substr(at, end - at);
      if (!part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos)
        return std::stoll(part);
      at = end + 1;
    }
    return 0;
  }
  void list() {
    for (const Nvfp4Linear& m : sound_modules(infos_)) {
      if (m.dialect->input_scale == nullptr) continue;
      add({.module = m.name, .tensor = m.name + m.dialect->input_scale, .divides = m.dialect->divides}, m.e);
    }
    for (const TensorInfo& t : infos_) {
      if (t.dtype != DType::kF8E4M3 || !t.name.ends_with(".weight") || t.shape.size() != 2) continue;
      const std::string module = t.name.substr(0, t.name.rfind('.'));
      if (!state_.tensors.contains(module + ".weight_scale") &&
          !state_.tensors.contains(module + ".weight_scale_inv"))
        continue;
      add({.module = module, .tensor = module + ".input_scale", .is_fp8 = true}, 1);
    }
  }
  bool is_weight_only(const std::string& module) const {
    const auto has_a16 = [](const Json& holder) {
      return text_of(holder, "quant_algo").find("A16") != std::string::npos;
    };
    if (module.ends_with(".dt_proj")) return true;
    if (has_a16(words_) || has_a16(member(member(words_, "quantized_layers"), module))) return true;
    const Json group = groups_.find(module);
    return group.is_object() && integer_of(member(group, "weights"), "num_bits") == 4 &&
           member(group, "input_activations").is_null();
  }
  /// True if the config demands a stored scale for the inputs of an FP8 linear.
  bool is_demanded(const std::string& module) const {
    for (const Json& holder : {words_, member(member(words_, "quantized_layers"), module)}) {
      if (text_of(holder, "quant_algo") == "FP8") return true;
    }
    const Json inputs = member(groups_.find(module), "input_activations");
    return inputs.is_object() && inputs.contains("dynamic") && inputs["dynamic"] == false;
  }
  /// The rule by which a scale must change for itself. Empty if it must not.
  std::string rule_for(const InputScaleOf& s) {
    if (s.is_valid()) return "";
    if (s.is_stored) return state_.wants("bad-input-scale") ? "bad-input-scale" : "";
    if (!state_.wants("missing-input-scale") || is_weight_only(s.module)) return "";
    const bool asked = state_.settings.input_scale != "neighbours";
    const bool must_have = s.is_fp8 ? with_[s.kind] > without_[s.kind] || is_demanded(s.module)
                                    : with_[s.kind] > 0 || any_nvfp4_ || asked || s.donors > 0;
    return must_have ? "missing-input-scale" : "";
  }
  using Scales = std::vector<const InputScaleOf*>;
  const Scales& valid(const std::string& key) const {
    static const Scales kNone;
    const auto at = valid_.find(key);
    return at == valid_.end() ? kNone : at->second;
  }
  static const InputScaleOf* largest(const Scales& scales) {
    const InputScaleOf* found = nullptr;
    for (const InputScaleOf* o : scales) {
      if (found == nullptr || o->multiplier > found->multiplier) found = o;
    }
    return found;
  }
  void set(InputScaleOf& s, const std::string& rule) const {
    const std::string& how = state_.settings.input_scale;
    if (how != "neighbours") {
      float multiplier = 0;
      if (how.starts_with("constant=")) {
        multiplier = std::strtof(how.c_str() + 9, nullptr) * (s.is_fp8 ? 6.0f : 1.0f);
      } else if (const auto at = state_.settings.amax.find(s.module); at != state_.settings.amax.end()) {
        multiplier = std::bit_cast<float>(at->second) / (s.is_fp8 ? 448.0f : 2688.0f);
      } else {
        return;
      }
      s.multiplier = multiplier;
      s.stored = s.divides ? 1.0f / multiplier : multiplier;
      s.rule = rule;
      return;
    }
    if (s.donors > 0) return set_to_donors(s, rule);
    const InputScaleOf* from = largest(valid(s.fused));
    if (from == nullptr) from = largest(valid("in " + s.projection));
    if (from == nullptr) {
      const Scales& kind = valid("over " + name_kind(s.projection));
      const auto distance = [&](const InputScaleOf* o) { return std::abs(o->layer - s.layer); };
      int64_t nearest = INT64_MAX;
      for (const InputScaleOf* o : kind) nearest = std::min(nearest, distance(o));
      Scales near = kind;
      std::erase_if(near, [&](const InputScaleOf* o) { return distance(o) != nearest; });
      from = largest(near);
    }
    if (from == nullptr) return;
    s.multiplier = from->multiplier;
    s.stored = s.divides == from->divides ? from->stored : 1.0f / from->stored;
    s.rule = rule;
  }
  static void set_to_donors(InputScaleOf& s, const std::string& rule) {
    s.stored = s.donors;
    s.multiplier = s.divides ? 1.0f / s.donors : s.donors;
    s.rule = rule;
  }
  /// Gates and ups whose scales differ get the donor's if these are equal.
  void set_unequal() {
    if (!state_.wants("unequal-input-scales")) return;
    std::map<std::string, std::set<std::pair<float, float>>> found;  // stored and the donor's
    const auto is_one = [](const InputScaleOf& s, bool was_stored) {
      return s.shares && !s.is_fp8 && was_stored;
    };
    for (const InputScaleOf& s : all_) {
      if (is_one(s, s.is_stored && s.multiplier > 0 && s.rule.empty()))
        found[s.fused].emplace(s.multiplier, s.donors);
    }
    for (InputScaleOf& s : all_) {
      const auto at = found.find(s.fused);
      if (at == found.end() || !is_one(s, s.is_stored && s.multiplier > 0 && s.rule.empty())) continue;
      std::set<float> ours, donors;
      for (const auto& [own, other] : at->second) {
        ours.insert(own);
        donors.insert(other);
      }
      if (ours.size() < 2 || donors.size() > 1 || *donors.begin() == 0 || s.stored == s.donors) continue;
      set_to_donors(s, "unequal-input-scales");
    }
  }
  /// Gives linears that engines fuse the largest of their scales.
  void share() {
    std::map<std::string, const InputScaleOf*> most;
    for (const InputScaleOf& s : all_) {
      const InputScaleOf*& at = most[s.fused];
      if (at == nullptr || s.multiplier > at->multiplier) at = &s;
    }
    std::vector<std::pair<float, float>> shared;
    for (const InputScaleOf& s : all_)
      shared.emplace_back(most.at(s.fused)->multiplier, most.at(s.fused)->stored);
    for (size_t i = 0; i < all_.size(); ++i) {
      InputScaleOf& s = all_[i];
      if (!s.is_valid() || s.multiplier == shared[i].first || s.is_fp8) continue;
      if (s.rule.empty() && (!s.shares || !state_.wants("unequal-input-scales"))) continue;
      if (shared[i].first > 10 * s.multiplier) continue;
      if (s.rule.empty()) s.rule = "unequal-input-scales";
      s.multiplier = shared[i].first;
      s.stored = shared[i].second;
    }
  }
  std::vector<MendedTensor> tensors(const std::vector<InputScaleOf>& before) const {
    std::map<std::string, MendedTensor> made;
    for (const InputScaleOf& s : all_) {
      if (s.rule.empty()) continue;
      auto [at, is_new] = made.try_emplace(s.tensor);
      MendedTensor& t = at->second;
      if (is_new && s.is_stored) {
        t.info = state_.tensors.at(s.tensor).info;
        t.bytes.resize(t.info.bytes());
        state_.tensors.at(s.tensor).read(0, t.bytes);
      } else if (is_new) {
        t.info = {s.tensor, DType::kF32, shape_of(before, s), 0, sizeof(float)};
        t.bytes.resize(sizeof(float));
      }
      std::memcpy(t.bytes.data() + s.place * sizeof(float), &s.stored, sizeof(float));
    }
    std::vector<MendedTensor> all;
    for (auto& [name, t] : made) all.push_back(std::move(t));
    return all;
  }
  /// A new scale has the shape of the last usable one of its kind, otherwise of the first of its kind, and
  /// otherwise of the first of all.
  std::vector<int64_t> shape_of(const std::vector<InputScaleOf>& before, const InputScaleOf& s) const {
    const InputScaleOf *like = nullptr, *first = nullptr;
    for (const InputScaleOf& o : before) {
      if (!o.is_stored || o.is_fp8 != s.is_fp8) continue;
      if (first == nullptr) first = &o;
      if (o.kind == s.kind && (like == nullptr || o.is_valid())) like = &o;
    }
    if (like == nullptr) like = first;
    if (like != nullptr) return state_.tensors.at(like->tensor).info.shape;
    return s.divides ? std::vector<int64_t>{1} : std::vector<int64_t>{};
  }

  MendedState& state_;
  const std::vector<TensorInfo> infos_;
  const Json words_;
  const SourceGroups groups_;
  std::vector<InputScaleOf> all_;
  std::map<std::string, size_t> with_, without_;  ///< numbers of stored and missing scales, by kind
  std::map<std::string, Scales> valid_;           ///< usable scales by what they have in common
  bool any_nvfp4_ = false;
  std::optional<std::map<std::string, bool>> donor_divides_;  ///< by NVFP4 module of the donor
};

}  // namespace

void derive_input_scales(MendedState& state, const MendNote* note) {
  DerivedInputScales scales(state);
  if (scales.any_usable() || state.settings.input_scale != "neighbours") {
    state.make("input-scales", note, scales.derive());
    return;
  }
  state.make("input-scales", note, {});
  if (!state.wants("bad-input-scale")) return;
  const std::set<std::string> goes = scales.stored();
  std::set<std::string> noted;
  if (note != nullptr) {
    for (const std::string& place : note->dropped) noted.insert(place.substr(place.find(": ") + 2));
  }
  for (const std::string& name : goes) {
    state.tensors.erase(name);
    if (noted.erase(name) == 0)
      state.differ("mend", name, "expected it among what a mend dropped, found not");
  }
  for (const std::string& name : noted) state.differ("mend", name, "expected it to stay, found it dropped");
}

}  // namespace twofour
