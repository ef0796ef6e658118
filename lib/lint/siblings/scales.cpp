#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "formats/naming.h"
#include "lib/lint/bytes/checks.h"
#include "lib/lint/siblings/checks.h"

namespace twofour {
namespace {

/// Octaves that input scales of one projection may be apart, over layers and experts: activations vary, and
/// one massive channel makes a layer's a hundred times another's.
constexpr double kInputFloor = 9, kInputDeviations = 8;
/// Amax of inputs that half of all linears have in no model.
constexpr double kLargestInput = 4096, kSmallestInput = 1e-3;
/// The largest code * block scale of a matrix that its global scale was made for: the block's scale is
/// rounded to 448 from 432 on.
constexpr double kFullScale = 2688, kLeastFull = 2688.0 * 432 / 448;
constexpr size_t kFewest = 6;

/// An input scale, as the largest input that it was made for.
struct InputScale {
  size_t tensor;
  std::string module;
  SiblingName at;
  float stored;
  double amax;
};

std::string_view without(std::string_view name, std::string_view suffix) {
  return name.substr(0, name.size() - suffix.size());
}

class SiblingScales {
 public:
  SiblingScales(const LintInput& s, std::span<const Member> members, LintReporter& reporter)
      : s_(s), members_(members), sink_(reporter), reported_(reporter) {}

  void run() {
    check_copied();
    list_inputs();
    check_inputs();
    check_missing_inputs();
    check_kv();
  }

 private:
  bool is_full(const Member& m) const {
    // Weights that are all near their maximum, as if drawn evenly, share it without being copied.
    constexpr double kPeaked = 1.3;
    const double amax = std::exp2(m.figures->log2_amax);
    return amax >= kLeastFull && amax <= kFullScale && m.figures->log2_amax - m.figures->log2_rms > kPeaked;
  }

  /// Of modules that share a global scale only the one with the largest weight reaches full scale. Where most
  /// do, and under one scale, it was made for one of them and copied.
  void check_copied() {
    std::map<std::string, std::vector<const Member*>> groups;
    for (const Member& m : members_) {
      constexpr uint64_t kFew = 2048;  // of so few the largest may be anything
      if (m.figures->module == MatrixFigures::kNone || !std::isfinite(m.log2_rms)) continue;
      if (m.numbers < kFew) continue;
      groups[""].push_back(&m);
      if (m.at.expert >= 0) groups[fmt::format("{} {}", m.at.layer, m.at.kind)].push_back(&m);
    }
    std::set<const Member*> reported;
    for (const auto& [key, group] : groups) {
      if (group.size() < kFewest) continue;
      std::map<double, std::vector<const Member*>> by_scale;
      for (const Member* m : group) by_scale[m->log2_rms - m->figures->log2_rms].push_back(m);
      for (const auto& [scale, same] : by_scale) {
        std::set<uint64_t> contents;  // equal matrices have equal scales
        for (const Member* m : same) {
          if (is_full(*m)) contents.insert(m->figures->codes);
        }
        if (contents.size() < kFewest || 2 * contents.size() <= group.size()) continue;
        const Member& first = *same[0];
        if (!reported.insert(&first).second) continue;
        const size_t tensor = s_.modules[first.figures->module].global_scale;
        sink_.add("copied-scale", s_.file_of(tensor), s_.tensors[tensor].name,
                  fmt::format("expected a scale of its own for each of {} matrices, found the same for {} "
                              "that differ and fill its range",
                              group.size(), contents.size()));
      }
    }
  }

  void list_inputs() {
    std::set<size_t> of_module;
    for (const Nvfp4Linear& m : s_.modules) {
      if (!m.input_scale) continue;
      of_module.insert(*m.input_scale);
      add_input(*m.input_scale, m.name, m.dialect->divides, kFullScale);
    }
    for (size_t t = 0; t < s_.tensors.size(); ++t) {
      const std::string& name = s_.tensors[t].name;
      if (of_module.count(t) || !name.ends_with(".input_scale")) continue;
      add_input(t, std::string(without(name, ".input_scale")), false, 448);
    }
  }

  void add_input(size_t tensor, const std::string& module, bool divides, double full) {
    if (reported_.covers(s_.tensors[tensor].name)) return;
    const std::vector<float> values = read_scales(s_, tensor);
    for (size_t i = 0; i < values.size(); ++i) {
      const double multiplier = divides ? 1.0 / double{values[i]} : double{values[i]};
      if (!(multiplier > 0) || !std::isfinite(multiplier)) continue;  // reported already
      SiblingName at = sibling_name(module);
      if (values.size() > 1) at.expert = static_cast<int64_t>(i);
      inputs_.push_back({tensor, module, std::move(at), values[i], multiplier * full});
    }
  }

  void report(const InputScale& x, const char* rule, std::string message) {
    sink_.add(rule, s_.file_of(x.tensor), s_.tensors[x.tensor].name, std::move(message));
  }

  void check_inputs() {
    std::map<float, size_t> values;
    std::set<std::pair<std::string, size_t>> fused;
    for (const InputScale& x : inputs_) {
      ++values[x.stored];
      const auto group = fused_group(x.module);
      fused.insert(group ? *group : std::pair{x.module, size_t{0}});
    }
    if (fused.size() < 4) return;
    if (values.size() == 1) {
      const bool on_purpose = inputs_[0].stored == 1 || s_.has_manifest;
      report(inputs_[0], on_purpose ? "constant-input-scale" : "copied-scale",
             fmt::format("expected a scale for the inputs of each linear, found {} for all {}",
                         inputs_[0].stored, inputs_.size()));
      return;
    }
    check_most_inputs();
    std::map<std::string, std::vector<const InputScale*>> kinds;
    for (const InputScale& x : inputs_) kinds[x.at.kind].push_back(&x);
    for (const auto& [kind, group] : kinds) {
      if (group.size() < 4) continue;
      std::vector<double> octaves;
      for (const InputScale* x : group) octaves.push_back(std::log2(x->amax));
      const RobustSpread spread = robust_spread(octaves);
      for (size_t i = 0; i < group.size(); ++i) {
        const double off = std::fabs(octaves[i] - spread.median);
        if (off <= std::max(kInputFloor, kInputDeviations * spread.deviation)) continue;
        report(*group[i], "suspicious-scale",
               fmt::format("expected a scale for inputs up to about {:.3g}, as those of its siblings, found "
                           "{}, one for inputs up to {:.3g}",
                           std::exp2(spread.median), group[i]->stored, group[i]->amax));
      }
    }
  }

  /// A divisor stored as a multiplier in every linear.
  void check_most_inputs() {
    std::vector<double> all;
    for (const InputScale& x : inputs_) all.push_back(x.amax);
    const double median = robust_spread(std::move(all)).median;
    if (median >= kSmallestInput && median <= kLargestInput) return;
    report(
        inputs_[0], "suspicious-scale",
        fmt::format("expected scales for inputs of {:g} to {:g}, found one for inputs up to {:.3g}, and of "
                    "all {} the middle one is for {:.3g}",
                    kSmallestInput, kLargestInput, inputs_[0].amax, inputs_.size(), median));
  }

  /// Of linears in FP8; those in NVFP4 are held against what the config promises.
  void check_missing_inputs() {
    struct Kind {
      size_t with = 0;
      std::vector<size_t> without;  ///< tensors of weights
    };
    std::map<std::string, Kind> kinds;
    for (const Member& m : members_) {
      if (m.figures->plan.kind != NumberKind::kE4m3 || !m.is_linear || m.figures->expert > 0) continue;
      const std::string& name = s_.tensors[m.figures->tensor].name;
      if (!name.ends_with(".weight")) continue;
      Kind& kind = kinds[m.at.kind];
      if (s_.find(std::string(without(name, "weight")) + "input_scale")) {
        ++kind.with;
      } else {
        kind.without.push_back(m.figures->tensor);
      }
    }
    for (const auto& [name, kind] : kinds) {
      if (kind.with <= kind.without.size()) continue;
      for (const size_t t : kind.without) {
        sink_.add("missing-input-scale", s_.file_of(t), std::string(without(s_.tensors[t].name, ".weight")),
                  fmt::format("expected input_scale as {} of {} like it have, found none", kind.with,
                              kind.with + kind.without.size()));
      }
    }
  }

  /// k without v, and layers without either where others have both.
  void check_kv() {
    struct Layer {
      std::string attention;
      size_t tensor = 0;  ///< of k or v
      bool k = false, v = false, scaled_k = false, scaled_v = false;
    };
    std::map<std::string, Layer> layers;  // by "model.layers.3.self_attn"
    for (size_t t = 0; t < s_.tensors.size(); ++t) {
      const std::string_view name = s_.tensors[t].name;
      for (const bool is_k : {true, false}) {
        for (const std::string_view suffix :
             {is_k ? ".k_proj.k_scale" : ".v_proj.v_scale", is_k ? ".k_scale" : ".v_scale"}) {
          if (!name.ends_with(suffix)) continue;
          Layer& layer = layers[std::string(without(name, suffix))];
          (is_k ? layer.scaled_k : layer.scaled_v) = true;
          layer.tensor = t;
          break;
        }
        for (const std::string_view suffix : {".weight", ".weight_packed"}) {
          const std::string full = fmt::format(".{}_proj{}", is_k ? 'k' : 'v', suffix);
          if (!name.ends_with(full)) continue;
          Layer& layer = layers[std::string(without(name, full))];
          (is_k ? layer.k : layer.v) = true;
          if (!layer.scaled_k && !layer.scaled_v) layer.tensor = t;
        }
      }
    }
    std::map<std::string, std::pair<size_t, size_t>> kinds;  // with scales, all
    for (const auto& [name, layer] : layers) {
      auto& [with, all] = kinds[sibling_name(name).kind];
      with += layer.scaled_k && layer.scaled_v;
      ++all;
    }
    for (const auto& [name, layer] : layers) {
      if (reported_.covers(name)) continue;
      if (layer.scaled_k != layer.scaled_v) {
        sink_.add("missing-kv-scale", s_.file_of(layer.tensor), name,
                  fmt::format("expected scales of both keys and values, found {} alone",
                              layer.scaled_k ? "k_scale" : "v_scale"));
        continue;
      }
      const auto [with, all] = kinds[sibling_name(name).kind];
      if (layer.scaled_k || !layer.k || !layer.v || 2 * with <= all) continue;
      sink_.add(
          "missing-kv-scale", s_.file_of(layer.tensor), name,
          fmt::format("expected k_scale and v_scale as {} of {} layers have, found neither", with, all));
    }
  }

  const LintInput& s_;
  std::span<const Member> members_;
  LintReporter& sink_;
  const Reported reported_;
  std::vector<InputScale> inputs_;
};

}  // namespace

void lint_sibling_scales(const LintInput& s, std::span<const Member> members, LintReporter& reporter) {
  SiblingScales(s, members, reporter).run();
}

}  // namespace twofour
