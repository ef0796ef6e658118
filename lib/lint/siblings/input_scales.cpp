#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "formats/json/access.h"
#include "formats/naming.h"
#include "lib/lint/bytes/checks.h"
#include "lib/lint/siblings/checks.h"
#include "lib/source/config/configured_quantization.h"

namespace twofour {
namespace {

/// Limits in octaves for the differences between input scales of one projection, over layers and experts.
/// Activations vary: one massive channel makes a layer's scale a hundred times larger than another's.
constexpr double kInputFloor = 9, kInputDeviations = 8, kAllInputsFloor = 10;
/// The limit if a scale is exactly 1 and few others are, which no calibration gives.
constexpr double kDefaultFloor = 4;
constexpr size_t kFewSiblings = 6;
/// Limits for the median of the inputs' amax over all linears. No model exceeds them.
constexpr double kLargestInput = 4096, kSmallestInput = 1e-3;
constexpr double kFullScale = 2688, kLargestE4m3 = 448;

/// An input scale, and the largest input for which it was made.
struct InputScale {
  size_t tensor;
  std::string module;
  SiblingName at;
  float stored;
  double amax;
  double full;  ///< the largest number of the inputs' format, which amax becomes
};

std::string_view without(std::string_view name, std::string_view suffix) {
  return name.substr(0, name.size() - suffix.size());
}

class SiblingScales {
 public:
  SiblingScales(const LintInput& s, std::span<Member> members, const Reported& reported,
                LintReporter& reporter)
      : s_(s), members_(members), sink_(reporter), reported_(reported), configured_(s.quantization) {}

  void run() {
    list_inputs();
    check_inputs();
    check_missing_inputs();
  }

 private:
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
      add_input(t, std::string(without(name, ".input_scale")), false, kLargestE4m3);
    }
  }

  void add_input(size_t tensor, const std::string& module, bool divides, double full) {
    if (reported_.covers(s_.tensors[tensor].name)) return;
    const std::vector<float> values = read_scales(s_, tensor);
    for (size_t i = 0; i < values.size(); ++i) {
      const double multiplier = divides ? 1.0 / double{values[i]} : double{values[i]};
      if (!(multiplier > 0) || !std::isfinite(multiplier)) continue;  // another rule reports this
      SiblingName at = sibling_name(module);
      if (values.size() > 1) at.expert = static_cast<int64_t>(i);
      inputs_.push_back({tensor, module, std::move(at), values[i], multiplier * full, full});
    }
  }

  template <class... Args>
  void report(size_t tensor, const char* rule, fmt::format_string<Args...> text, Args&&... args) {
    sink_.add(rule, s_.at(tensor), text, std::forward<Args>(args)...);
  }

  void check_inputs() {
    std::map<float, size_t> values;
    std::set<std::pair<std::string, size_t>> fused;
    for (const InputScale& x : inputs_) {
      ++values[x.stored];
      const auto group = fused_group(x.module);
      fused.insert(group ? *group : std::pair{x.module, size_t{0}});
    }
    check_fused_inputs();
    if (fused.size() < 4) return;
    if (values.size() == 1) {
      const bool on_purpose = inputs_[0].stored == 1 || s_.has_manifest;
      report(inputs_[0].tensor, on_purpose ? "constant-input-scale" : "copied-scale",
             "expected a scale for the inputs of each linear, found {} for all {}", inputs_[0].stored,
             inputs_.size());
      return;
    }
    check_most_inputs();
    check_copied_inputs();
    const bool few_ones = values.contains(1) && 8 * values.at(1) <= inputs_.size();
    std::vector<double> inputs;
    for (const InputScale& x : inputs_) inputs.push_back(std::log2(x.amax));
    const RobustSpread all = robust_spread(std::move(inputs));
    std::map<std::string, std::vector<const InputScale*>> kinds;
    for (const InputScale& x : inputs_) kinds[x.at.kind].push_back(&x);
    for (const auto& [kind, group] : kinds) {
      std::vector<double> octaves;
      for (const InputScale* x : group) octaves.push_back(std::log2(x->amax));
      // Few siblings do not show how much they vary, so all inputs are used.
      const bool few = group.size() < kFewSiblings;
      const RobustSpread spread = few ? all : robust_spread(octaves);
      const double limit = std::max(few ? kAllInputsFloor : kInputFloor, kInputDeviations * spread.deviation);
      for (size_t i = 0; i < group.size(); ++i) {
        const double off = std::fabs(octaves[i] - spread.median);
        const bool is_default = group[i]->stored == 1 && few_ones && off > kDefaultFloor;
        if (off <= limit && !is_default) continue;
        report(group[i]->tensor, "suspicious-scale",
               "expected a scale for inputs up to about {:.3g}, as those of its siblings, found "
               "{}, one for inputs up to {:.3g}",
               std::exp2(spread.median), group[i]->stored, group[i]->amax);
      }
    }
  }

  /// Reports input scales of linears that read the same input and have it up to quite different sizes.
  void check_fused_inputs() {
    constexpr double kTimes = 4;
    std::map<std::pair<std::string, size_t>, std::vector<const InputScale*>> groups;
    for (const InputScale& x : inputs_) {
      const auto group =
          x.at.expert >= 0 && s_.tensors[x.tensor].shape.size() == 1 ? std::nullopt : fused_group(x.module);
      if (group) groups[*group].push_back(&x);
    }
    for (const auto& [key, group] : groups) {
      const auto [least, most] =
          std::ranges::minmax_element(group, {}, [](const InputScale* x) { return x->amax; });
      // A linear of another format has its inputs in another form.
      if ((*most)->full != (*least)->full || (*most)->amax < kTimes * (*least)->amax) continue;
      report((*most)->tensor, "suspicious-scale",
             "expected a scale for the inputs that {} has, too, found {}, {:.3g} times as large",
             (*least)->module, (*most)->stored, (*most)->amax / (*least)->amax);
    }
  }

  /// Reports input scales that all layers repeat. Each projection then has one scale in all layers.
  void check_copied_inputs() {
    struct Kind {
      std::set<int64_t> layers;
      std::set<float> values;
    };
    std::map<std::string, Kind> kinds;
    for (const InputScale& x : inputs_) {
      kinds[x.at.kind].layers.insert(x.at.layer);
      kinds[x.at.kind].values.insert(x.stored);
    }
    constexpr size_t kFewKinds = 2;
    const auto is_copied = [](const auto& kind) {
      constexpr size_t kFewLayers = 3;
      return kind.second.layers.size() >= kFewLayers && kind.second.values.size() == 1;
    };
    const auto copied = static_cast<size_t>(std::count_if(kinds.begin(), kinds.end(), is_copied));
    if (copied < kFewKinds || copied < kinds.size() || s_.has_manifest) return;
    report(inputs_[0].tensor, "copied-scale",
           "expected scales of layers to differ, found one for each of {} projections in all {}", copied,
           kinds.begin()->second.layers.size());
  }

  /// Reports input scales if all linears store a divisor where a multiplier is expected.
  void check_most_inputs() {
    std::vector<double> all;
    for (const InputScale& x : inputs_) all.push_back(x.amax);
    const double median = robust_spread(std::move(all)).median;
    if (median >= kSmallestInput && median <= kLargestInput) return;
    const auto first = std::ranges::find_if(
        inputs_, [](const InputScale& x) { return x.amax < kSmallestInput || x.amax > kLargestInput; });
    report(first->tensor, "suspicious-scale",
           "expected scales for inputs of {:g} to {:g}, found one for inputs up to {:.3g}, and the median of "
           "all {} is for {:.3g}",
           kSmallestInput, kLargestInput, first->amax, inputs_.size(), median);
  }

  /// Reports linears without an input scale if others of their kind have one. A config may state exceptions.
  void check_missing_inputs() {
    struct Kind {
      size_t with = 0;
      std::vector<const Member*> without;
    };
    std::map<std::pair<std::string, NumberKind>, Kind> kinds;
    for (const Member& m : members_) {
      if (!m.is_linear || m.figures->expert > 0) continue;
      const NumberKind number = m.figures->plan.kind;
      const bool nvfp4 = m.figures->module != MatrixFigures::kNone;
      if (!nvfp4 && (number != NumberKind::kE4m3 || m.scale == MatrixFigures::kNone)) continue;
      Kind& kind = kinds[{m.at.kind, number}];
      const bool has = nvfp4 ? s_.modules[m.figures->module].input_scale.has_value()
                             : s_.find(m.module + ".input_scale").has_value();
      if (has) {
        ++kind.with;
      } else {
        kind.without.push_back(&m);
      }
    }
    for (const auto& [name, kind] : kinds) {
      if (kind.with <= kind.without.size()) continue;
      for (const Member* m : kind.without) {
        if (reported_.covers(m->module) || is_weight_only(m->module)) continue;
        const char* suffix = m->figures->module == MatrixFigures::kNone        ? ".input_scale"
                             : s_.modules[m->figures->module].dialect->divides ? ".input_global_scale"
                                                                               : ".input_scale";
        sink_.add("missing-input-scale", s_.at(m->figures->tensor, m->module),
                  "expected {} (as in {} of {} like it), found none", suffix + 1, kind.with,
                  kind.with + kind.without.size());
      }
    }
  }

  /// True if the config states that a module's inputs are not quantized. It may name the whole module, as
  /// ModelOpt's lists do, or be for some modules, as a group of compressed-tensors may. Jamba's dt_proj is
  /// never called as a linear, so calibration cannot see its inputs.
  bool is_weight_only(const std::string& module) const {
    if (module.ends_with(".dt_proj")) return true;
    const Json& layer = member(member(s_.quantization, "quantized_layers"), module);
    if (text_of(layer, "quant_algo").find("A16") != std::string::npos) return true;
    const ConfiguredFormat group = configured_.find_group(module);
    return group.entry != nullptr && member(member(*group.entry, "weights"), "num_bits") == 4 &&
           member(*group.entry, "input_activations").is_null();
  }

  const LintInput& s_;
  std::span<Member> members_;
  LintReporter& sink_;
  const Reported& reported_;
  const ConfiguredQuantization configured_;
  std::vector<InputScale> inputs_;
};

}  // namespace

void lint_sibling_scales(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  const Reported reported(reporter);  // the findings of both parts do not hide each other
  SiblingScales(s, members, reported, reporter).run();
  lint_cache_scales(s, reported, reporter);
}

}  // namespace twofour
