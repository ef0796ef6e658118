#include "lib/write/methods/quantize_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/base/names/pattern.h"
#include "lib/recipe/selection/chooser.h"
#include "lib/recipe/selection/input_scales.h"
#include "lib/source/config/quantization_config.h"
#include "lib/write/encode/choose_solvings.h"
#include "lib/write/encode/encode_rules.h"
#include "lib/write/encode/quantize_select.h"
#include "lib/write/encode/quantized_group.h"
#include "lib/write/methods/nvfp4_modules.h"

namespace twofour {
namespace {

/// Plans the linears that one rule quantizes.
class GroupPlanner {
 public:
  GroupPlanner(const EncodeRule& encode, const Rule& rule, Planner& planner)
      : c_(planner.source),
        settings_(rule),
        planner_(planner),
        problems_(planner.problems),
        rule_(encode),
        dialect_(*encode.dialect) {}

  void run() {
    const std::vector<Linear>& all = planner_.linears();
    note_unknown_stacks(all);
    std::vector<size_t> chosen =
        select_encoded(c_, all, settings_.selection, rule_, planner_.findings, problems_);
    const size_t matched = chosen.size();
    std::erase_if(chosen, [&](size_t i) { return planner_.is_taken(all[i].weight); });
    if (chosen.empty() && matched > 0 && nvfp4_without_scale().empty()) {
      problems_.refuse();
      throw Error(fmt::format(
          "expected linears that no earlier rule matches, found that earlier rules match all {}", matched));
    }
    apply_loader_limits(c_, all, rule_, chosen, planner_.findings, problems_);
    for (const size_t i : chosen) choose(all[i]);
    if (modules_.empty() && nvfp4_without_scale().empty()) {
      problems_.refuse();
      // In a recipe, linears that already have the format stay. A pattern that matches nothing was refused
      // before.
      if (!planner_.is_single) return planner_.config.keep();
      const bool done = !all.empty() && std::all_of(all.begin(), all.end(),
                                                    [](const Linear& m) { return m.nvfp4.has_value(); });
      const auto odd = std::find_if(planner_.findings.begin(), planner_.findings.end(),
                                    [](const Finding& f) { return f.id == "odd-inputs"; });
      throw Error(fmt::format(
          "{}: expected linears to quantize, found {} among {}{}", c_.path().string(),
          done ? "NVFP4 alone" : "none", all.size(),
          odd == planner_.findings.end() ? "" : fmt::format("; {} {}", odd->where, odd->message)));
    }
    formed_ = form_groups(rule_, settings_.kept, modules_, planner_);
    unsolved_ = choose_solvings(rule_, settings_.strict_statistics, formed_.groups, planner_);
    choose_masks(rule_, formed_.groups, planner_);
    choose_nvfp4_input_scales();
    report();
    if (rule_.in_place) {
      for (auto& group : formed_.groups) planner_.add(std::move(group));
      return;
    }
    planner_.config.set_dialect(dialect_);
    planner_.config.rewrite();
    for (auto& group : formed_.groups) {
      for (const EncodedMatrix& m : group->matrices()) {
        Scheme scheme = rule_.scheme;
        scheme.has_input_scale = m.input_scale != 0;
        planner_.config.add(m.name, m.source->weight, scheme);
      }
      planner_.add(std::move(group));
    }
    write_input_scales(settings_.to, input_scales_, chosen_, already_nvfp4_, planner_);
    const bool converts_experts = std::any_of(chosen.begin(), chosen.end(), [&](size_t i) {
      const auto name = parse_module_name(all[i].name);
      return name && name->kind == BlockKind::kRoutedExperts;
    });
    if (settings_.label.empty() || converts_experts) planner_.watch_experts({});
  }

 private:
  /// Reports stacks of floats whose names no naming rule knows. They stay as they are, and the configuration
  /// lists them.
  void note_unknown_stacks(const std::vector<Linear>& all) {
    std::set<size_t> known;
    for (const Linear& m : all) known.insert({m.weight, m.bias.value_or(m.weight)});
    for (size_t i = 0; i < c_.tensors().size(); ++i) {
      const TensorInfo& t = c_.tensors()[i];
      const bool is_stack = t.shape.size() == 3 && t.shape[1] >= kGroup && t.shape[2] >= kGroup;
      if (!is_float(t.dtype) || !is_stack || known.count(i) || t.name.find("conv") != std::string::npos)
        continue;
      if (is_left_in_floats(t.name, planner_.layers())) continue;
      const std::string module = t.name.ends_with(".weight") ? t.name.substr(0, t.name.size() - 7) : t.name;
      planner_.config.leave(module);
      planner_.findings.push_back({Severity::kWarning, "unknown-stack", c_.where(i),
                                   fmt::format("is left unquantized: no known naming of experts has {}",
                                               describe(t.dtype, t.shape))});
    }
  }

  void choose(const Linear& m) {
    const auto row = static_cast<uint64_t>(m.k) * kQuantizeStripBytes;
    if (row > planner_.limits.piece) {
      problems_.add(fmt::format("{}: expected K of at most {}, found {}", c_.where(m.weight),
                                planner_.limits.piece / kQuantizeStripBytes, m.k));
    }
    modules_.push_back(m);
  }

  /// Chooses input scales of NVFP4 by the rule's settings. This includes modules that are already NVFP4 but
  /// have no input scale. Without settings, the source's input scales are dropped. DeepSeek-V4 is the
  /// exception, since its loaders need them.
  void choose_nvfp4_input_scales() {
    if (!rule_.is_nvfp4() || rule_.in_place) return;
    input_scales_ = std::make_shared<InputScaleRule>(input_scale_rule(settings_, dialect_));
    InputScaleRule& rule = *input_scales_;
    if (rule.setting.empty() && !rule.is_needed) {
      if (rule.one_a_layer)
        throw Error(fmt::format("{}: expected {} beside it, found none", settings_.name(keys::kOneInputScale),
                                settings_.name(keys::kInputScale)));
      return;
    }
    for (const auto& group : formed_.groups) {
      for (const EncodedMatrix& m : group->matrices())
        rule.modules.push_back({m.name, m.source, m.expert, true});
    }
    already_nvfp4_ = rule.modules.size();
    for (const Linear& m : nvfp4_without_scale())
      rule.modules.push_back({m.name, std::make_shared<const Linear>(m), 0, true});
    add_neighbours(rule, planner_);
    chosen_ = choose_input_scales(c_, rule, problems_);
    size_t at = 0;
    for (auto& group : formed_.groups) {
      group->set_input_scales(input_scales_);
      for (size_t i = 0; i < group->matrices().size(); ++i, ++at) {
        const float scale = chosen_[at].multiplier;
        if (scale <= 0) continue;
        group->matrix(i).input_scale = dialect_.nvfp4->divides ? 1 / scale : scale;
        group->add_part(i, EncodedPart::kInputScale,
                        {group->matrices()[i].name + dialect_.nvfp4->input_scale, DType::kF32,
                         dialect_.scalar_shape(), 0, 0});
      }
    }
    formed_.input_scales_dropped = 0;
  }

  /// Linears that the rule matches, and that lack only the input scale that the rule requires.
  std::vector<Linear> nvfp4_without_scale() const {
    std::vector<Linear> matched;
    if (!rule_.is_nvfp4() || settings_.selection.from_default || !adds_input_scales(settings_))
      return matched;
    Chooser chooser(settings_.selection, planner_.layers());
    for (const Linear& m : planner_.linears()) {
      const bool lacks = m.nvfp4 && !m.input_scale && !m.stacked && !planner_.is_taken(m.weight);
      if (lacks && chooser.chooses(m.name, false)) matched.push_back(m);
    }
    return matched;
  }

  void report() {
    const auto note = [&](Severity severity, const char* id, std::string text) {
      planner_.findings.push_back({severity, id, c_.path().string(), std::move(text)});
    };
    if (formed_.without_input_scale > 0) {
      note(Severity::kWarning, "no-input-scale",
           fmt::format("{} matrices have no input scale, which ModelOpt's FP8 engines require: 1 is written, "
                       "and activations beyond 448 saturate",
                       formed_.without_input_scale));
    }
    if (formed_.input_scales_dropped > 0) {
      note(Severity::kWarning, "input-scales-dropped",
           fmt::format("{} input scales are dropped: the output {}", formed_.input_scales_dropped,
                       rule_.is_tiled() ? "scales activations dynamically" : "quantizes weights only"));
    }
    if (formed_.rounded_twice > 0) {
      note(Severity::kNote, "rounded-twice",
           fmt::format("{} of {} modules were already quantized: their weights are rounded a second time",
                       formed_.rounded_twice, modules_.size()));
    }
    for (const auto& [why, matrices] : unsolved_) {
      note(Severity::kWarning, "few-statistics",
           fmt::format("{} of {} matrices are not chosen by a full Hessian with descent: {} (the first: {})",
                       matrices.count, formed_.matrices, why, matrices.first));
    }
    if (!dialect_.kv_scale_type && has_fp8_kv_cache(c_)) {
      note(Severity::kWarning, "kv-cache",
           fmt::format("the source's KV cache is FP8, which the {} dialect cannot describe: its scales are "
                       "copied, its configuration is not",
                       dialect_.name));
    }
    if (dialect_.fp8_scale_type != nullptr && rule_.is_tiled() && rule_.scheme.scale_type != DType::kF32 &&
        formed_.has_experts) {
      note(Severity::kWarning, "e8m0-expert-scales",
           fmt::format("FP8 experts get E8M0 scales: vLLM (0.33) reads their bytes as F32 numbers without a "
                       "message, and supports only {}",
                       settings_.name(keys::kScaleDtype, "f32")));
    }
    if (formed_.without_kept > 0) {
      note(Severity::kWarning, "no-kept-scale",
           fmt::format("{} of {} matrices have no global scale to keep and get new ones, the first {}",
                       formed_.without_kept, formed_.matrices, formed_.first_without_kept));
    }
    if (rule_.is_nvfp4() && rule_.settings->arithmetic == Arithmetic::compressed_tensors &&
        rule_.settings->block_scale != BlockScale::max) {
      note(Severity::kNote, "own-extension",
           fmt::format("no producer writes {} in compressed-tensors' arithmetic",
                       settings_.name(keys::kBlockScale, settings_.block_scale.text())));
    }
  }

  const Checkpoint& c_;
  const Rule& settings_;
  Planner& planner_;
  Problems& problems_;
  const EncodeRule& rule_;
  const OutputDialect& dialect_;
  std::vector<Linear> modules_;  ///< linears that are quantized
  FormedGroups formed_;
  std::shared_ptr<InputScaleRule> input_scales_;
  std::vector<ChosenInputScale> chosen_;  ///< input scales of its modules
  size_t already_nvfp4_ = 0;              ///< index of the first module that is already NVFP4
  UnsolvedByReason unsolved_;             ///< matrices whose statistics do not suffice
};

}  // namespace

void plan_quantized_groups(const EncodeRule& encode, const Rule& rule, Planner& planner) {
  GroupPlanner(encode, rule, planner).run();
}

void plan_pruned_groups(const Rule& rule, const std::vector<size_t>& modules, bool folds_pairs,
                        Planner& planner) {
  std::map<std::string_view, Selection> by_dialect;
  for (const size_t i : modules) {
    const Nvfp4Linear& m = planner.source.nvfp4_modules()[i];
    if (m.dialect->stacked) {
      planner.problems.add(fmt::format(
          "{}: expected each expert in separate tensors to prune by statistics or masks, found a stack",
          m.name));
      continue;
    }
    by_dialect[m.dialect->name].include.push_back(exact_pattern(m.name));
  }
  for (auto& [dialect, selection] : by_dialect) {
    Rule one = rule;
    selection.also = selection.include;
    one.selection = std::move(selection);
    EncodeRule encode = prune_rule(one, dialect);
    encode.folds_pairs = folds_pairs;
    plan_quantized_groups(encode, one, planner);
  }
}

}  // namespace twofour
