#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/json/access.h"
#include "formats/naming.h"
#include "lib/prove/mends/mended_state.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/config/quantization_config.h"

namespace twofour {
namespace {

bool is_usable(float x) { return std::isfinite(x) && x > 0; }

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
  bool is_valid() const { return multiplier > 0; }
};

class DerivedInputScales {
 public:
  explicit DerivedInputScales(MendedState& state)
      : state_(state), infos_(state.infos()), words_(words_of(state)), groups_(words_) {
    list();
  }

  bool any_valid() const {
    return std::any_of(all_.begin(), all_.end(), [](auto& s) { return s.is_valid(); });
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
      all_.push_back(s);
    }
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
                                    : with_[s.kind] > 0 || any_nvfp4_ || asked;
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
};

bool is_side(std::string_view name, char side) { return name.ends_with(fmt::format(".{}_scale", side)); }

/// True if all numbers of a scale of the cache are usable.
bool is_usable_scale(const MendedTensor& t) {
  const std::vector<float> values = t.floats();
  return !values.empty() && std::all_of(values.begin(), values.end(), is_usable);
}

/// The attention that a scale belongs to, and what follows it: ".k_proj" or nothing.
std::pair<std::string, bool> attention_of_scale(std::string_view name, char side) {
  name.remove_suffix(8);
  const std::string projection = fmt::format(".{}_proj", side);
  const bool below = name.ends_with(projection);
  if (below) name.remove_suffix(projection.size());
  return {std::string(name), below};
}

std::string scale_name(const std::string& attention, bool below, char side) {
  return below ? fmt::format("{0}.{1}_proj.{1}_scale", attention, side)
               : fmt::format("{}.{}_scale", attention, side);
}

}  // namespace

void derive_input_scales(MendedState& state, const MendNote* note) {
  DerivedInputScales scales(state);
  if (scales.any_valid() || state.settings.input_scale != "neighbours") {
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

void derive_cache_scales(MendedState& state, const MendNote* note) {
  std::map<std::string, bool> layers;  // by attention: whether scales are below projections
  for (const auto& [name, t] : state.tensors) {
    for (const char side : {'k', 'v'}) {
      if (is_side(name, side)) layers.insert(attention_of_scale(name, side));
    }
  }
  std::map<std::string, bool> kinds;
  for (const auto& [attention, below] : layers) kinds.try_emplace(name_kind(attention), below);
  for (const auto& [name, t] : state.tensors) {
    const size_t at = name.find(".k_proj.weight");
    if (at == std::string::npos) continue;
    if (const auto kind = kinds.find(name_kind(name.substr(0, at))); kind != kinds.end())
      layers.try_emplace(name.substr(0, at), kind->second);
  }
  std::vector<MendedTensor> made;
  for (const auto& [attention, below] : layers) {
    for (const char side : {'k', 'v'}) {
      const std::string name = scale_name(attention, below, side),
                        other = scale_name(attention, below, side == 'k' ? 'v' : 'k');
      const auto own = state.tensors.find(name), from = state.tensors.find(other);
      const bool is_there = own != state.tensors.end();
      if (is_there && is_usable_scale(own->second)) continue;
      if (!state.wants(is_there ? "bad-input-scale" : "missing-kv-scale")) continue;
      MendedTensor t;
      if (from != state.tensors.end() && is_usable_scale(from->second)) {
        t = from->second;
      } else if (const auto at = state.donor ? state.donor->find(name) : std::nullopt) {
        t = {state.donor->tensors()[*at], state.donor, *at};
        if (!is_usable_scale(t)) continue;
      } else {
        continue;
      }
      t.info.name = name;
      if (t.from != nullptr) {
        t.bytes.resize(t.info.bytes());
        t.read(0, t.bytes);
        t.from = nullptr;
      }
      made.push_back(std::move(t));
    }
  }
  state.make("kv-scales", note, std::move(made));
}

}  // namespace twofour
