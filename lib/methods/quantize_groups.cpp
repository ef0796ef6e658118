#include "lib/methods/quantize_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "lib/checkpoint/quantization_config.h"
#include "lib/encode/choose_solvings.h"
#include "lib/encode/loader_limits.h"
#include "lib/encode/quantize_select.h"
#include "lib/encode/quantized_group.h"
#include "lib/methods/nvfp4_modules.h"
#include "lib/selection/chooser.h"
#include "lib/selection/input_scales.h"
#include "lib/selection/output_matrix.h"

namespace twofour {
namespace {

/// The input scale of an expert as a multiplier of E4M3 (amax / 448); 0 where the source has none.
float fp8_input_scale(const Checkpoint& c, const Linear& m, int64_t e, Problems& problems) {
  if (!m.input_scale) return 0;
  const TensorInfo& t = c.tensors()[*m.input_scale];
  const uint64_t count = t.bytes() / sizeof(float);
  const bool fits = t.dtype == DType::kF32 && (count == 1 || count == static_cast<uint64_t>(m.e));
  if (!fits) {
    problems.add(fmt::format("{}: expected F32 [] or [1], found {}", c.where(*m.input_scale),
                             describe(t.dtype, t.shape)));
    return 0;
  }
  uint8_t bytes[sizeof(float)];
  c.read(*m.input_scale, count == 1 ? 0 : static_cast<uint64_t>(e) * sizeof(float), bytes);
  float scale = 0;
  std::memcpy(&scale, bytes, sizeof(scale));
  if (m.format == WeightFormat::kNvfp4) {
    // amax / 2688, or its reciprocal.
    scale = global_scale_multiplier(*c.nvfp4_modules()[*m.nvfp4].dialect, scale) * kE2m1Max;
  }
  if (!std::isfinite(scale) || scale <= 0) {
    problems.add(
        fmt::format("{}: expected a positive finite input scale, found {}", c.where(*m.input_scale), scale));
  }
  return scale;
}

/// Plans the groups of one rule.
class GroupPlanner {
 public:
  GroupPlanner(const EncodeRule& encode, const Rule& rule, Planner& planner)
      : c_(planner.source),
        words_(rule),
        planner_(planner),
        problems_(planner.problems),
        rule_(encode),
        dialect_(*encode.dialect),
        kept_(std::make_shared<const FixedGlobalScales>(encode.in_place ? own_scales() : rule.kept)) {}

  void run() {
    const std::vector<Linear>& all = planner_.linears();
    note_unknown_stacks(all);
    std::vector<size_t> chosen =
        select_encoded(c_, all, words_.selection, rule_, planner_.findings, problems_);
    const size_t matched = chosen.size();
    std::erase_if(chosen, [&](size_t i) { return planner_.is_taken(all[i].weight); });
    if (chosen.empty() && matched > 0 && nvfp4_without_scale().empty()) {
      problems_.refuse();
      throw Error(
          fmt::format("expected linears that no earlier rule takes, found that all {} are taken", matched));
    }
    apply_loader_limits(c_, all, rule_, parse_odd_blocks(words_.odd_blocks), chosen, planner_.findings,
                        problems_);
    for (const size_t i : chosen) choose(all[i]);
    if (modules_.empty() && nvfp4_without_scale().empty()) {
      problems_.refuse();
      // In a recipe what is quantized so already stays; a match that finds nothing was refused.
      if (!planner_.is_single) return planner_.keep_config();
      const bool done = !all.empty() && std::all_of(all.begin(), all.end(), [](const Linear& m) {
        return m.format == WeightFormat::kNvfp4;
      });
      throw Error(fmt::format("{}: expected linears to quantize, found {} among {}", c_.path().string(),
                              done ? "NVFP4 alone" : "none", all.size()));
    }
    form_groups();
    unsolved_ = choose_solvings(rule_, words_.strict_statistics, groups_, planner_);
    choose_masks(rule_, groups_, planner_);
    choose_nvfp4_input_scales();
    report();
    if (rule_.in_place) {
      for (auto& group : groups_) planner_.add(std::move(group));
      return;
    }
    planner_.set_dialect(dialect_);
    planner_.rewrite_formats();
    for (auto& group : groups_) {
      for (const EncodedMatrix& m : group->matrices()) {
        Scheme scheme = rule_.scheme;
        scheme.has_input_scale = m.input_scale != 0;
        planner_.write(m.name, m.source->weight, scheme);
      }
      planner_.add(std::move(group));
    }
    write_input_scales(words_.to, input_scales_, chosen_, already_nvfp4_, planner_);
    const bool converts_experts = std::any_of(chosen.begin(), chosen.end(), [&](size_t i) {
      const auto name = parse_module_name(all[i].name);
      return name && name->kind == BlockKind::kRoutedExperts;
    });
    if (words_.label.empty() || converts_experts) planner_.watch_experts({});
  }

 private:
  /// Global scales of the source's NVFP4 in the rule's dialect.
  FixedGlobalScales own_scales() const {
    FixedGlobalScales own;
    own.divides = dialect_.nvfp4->divides;
    for (const Nvfp4Linear& m : c_.nvfp4_modules()) {
      if (m.dialect->name != dialect_.nvfp4->name || m.dialect->stacked) continue;
      own.scales.push_back({m.name, read_global_scale(c_, m, 0, problems_).raw_bits});
    }
    own.sort();
    if (rule_.folds_pairs) fold_pairs(own);
    return own;
  }

  /// Gives a gate and its up the larger of their global scales.
  static void fold_pairs(FixedGlobalScales& own) {
    const auto pair_of = [](const FixedGlobalScales::Scale& s) {
      const auto name = parse_module_name(s.name);
      const bool pairs =
          name && (name->projection == Projection::kGate || name->projection == Projection::kUp);
      return pairs ? fmt::format("{}.{}", name->block, name->expert) : s.name;
    };
    std::map<std::string, uint32_t> folded;  // float32 bits of positive numbers sort as these do
    for (const FixedGlobalScales::Scale& s : own.scales) {
      uint32_t& bits = folded.try_emplace(pair_of(s), s.bits).first->second;
      bits = own.divides ? std::min(bits, s.bits) : std::max(bits, s.bits);
    }
    for (FixedGlobalScales::Scale& s : own.scales) s.bits = folded.at(pair_of(s));
  }

  /// Whether input scales are written.
  bool has_input_scales() const { return rule_.scheme.has_input_scale; }

  /// Stacks of floats under names that no rule knows stay as they are, and the configuration says so.
  void note_unknown_stacks(const std::vector<Linear>& all) {
    std::set<size_t> known;
    for (const Linear& m : all) known.insert({m.weight, m.bias.value_or(m.weight)});
    for (size_t i = 0; i < c_.tensors().size(); ++i) {
      const TensorInfo& t = c_.tensors()[i];
      const bool is_float = t.dtype == DType::kF32 || t.dtype == DType::kBF16 || t.dtype == DType::kF16;
      const bool is_stack = t.shape.size() == 3 && t.shape[1] >= kGroup && t.shape[2] >= kGroup;
      if (!is_float || !is_stack || known.count(i) || t.name.find("conv") != std::string::npos) continue;
      if (is_left_in_floats(t.name, planner_.layers())) continue;
      const std::string module = t.name.ends_with(".weight") ? t.name.substr(0, t.name.size() - 7) : t.name;
      planner_.leave(module);
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
    if (m.stacked && stack_parts(c_, m.name, m.n).empty()) {
      problems_.add(fmt::format("{}: expected a stack of experts with a known name, found {}",
                                c_.where(m.weight), m.name));
    }
    modules_.push_back(m);
  }

  void form_groups() {
    for (const std::vector<size_t>& members : fused_groups(modules_)) {
      const auto first = std::make_shared<const Linear>(modules_[members[0]]);
      if (first->stacked) {
        const auto parts = stack_parts(c_, first->name, first->n);
        for (int64_t e = 0; e < first->e; ++e) {
          begin_group();
          for (const StackPart& p : parts) {
            add_matrix({expert_name(first->name, e, p.leaf), first, e, p.first, p.step, p.rows, first->k});
          }
          if (e == 0) consume(*first);
        }
        continue;
      }
      begin_group();
      for (const size_t i : members) {
        const auto one = i == members[0] ? first : std::make_shared<const Linear>(modules_[i]);
        // Only NVFP4 has a scale to share.
        if (!rule_.is_nvfp4() && i != members[0]) begin_group();
        add_matrix({one->name, one, 0, 0, 1, one->n, one->k});
        consume(*one);
      }
    }
    for (auto& group : groups_) group->set_weight_type(weight_type(*group));
  }

  /// Input scales of NVFP4 by the rule's words, also of modules that are NVFP4 already and have none. Without
  /// words those of the source are dropped, but DeepSeek-V4's loaders need them.
  void choose_nvfp4_input_scales() {
    if (!rule_.is_nvfp4() || rule_.in_place) return;
    input_scales_ = std::make_shared<InputScaleRule>(input_scale_rule(words_, dialect_));
    InputScaleRule& rule = *input_scales_;
    if (rule.words.empty() && !rule.is_needed) {
      if (rule.one_a_layer)
        throw Error("--one-input-scale-a-layer: expected --input-scale beside it, found none");
      return;
    }
    for (const auto& group : groups_) {
      for (const EncodedMatrix& m : group->matrices())
        rule.modules.push_back({m.name, m.source, m.expert, true});
    }
    already_nvfp4_ = rule.modules.size();
    for (const Linear& m : nvfp4_without_scale())
      rule.modules.push_back({m.name, std::make_shared<const Linear>(m), 0, true});
    add_neighbours(rule, planner_);
    chosen_ = choose_input_scales(c_, rule, problems_);
    size_t at = 0;
    for (auto& group : groups_) {
      group->set_input_scales(input_scales_);
      for (size_t i = 0; i < group->matrices().size(); ++i, ++at) {
        const float scale = chosen_[at].multiplier;
        if (scale <= 0) continue;
        group->set_input_scale(i, dialect_.nvfp4->divides ? 1 / scale : scale);
        group->add_part(i, EncodedPart::kInputScale,
                        {group->matrices()[i].name + dialect_.nvfp4->input_scale, DType::kF32,
                         dialect_.scalar_shape(), 0, 0});
      }
    }
    input_scales_dropped_ = 0;
  }

  /// Linears that a rule matches and that lack nothing but the input scale that it asks for.
  std::vector<Linear> nvfp4_without_scale() const {
    std::vector<Linear> matched;
    const std::string& words = words_.input_scale;
    if (!rule_.is_nvfp4() || words_.selection.from_default || words.empty() || words == "none" ||
        words == "keep")
      return matched;
    Chooser chooser(words_.selection, planner_.layers());
    for (const Linear& m : planner_.linears()) {
      const bool lacks = m.nvfp4 && !m.input_scale && !m.stacked && !planner_.is_taken(m.weight);
      if (lacks && chooser.chooses(m.name, false)) matched.push_back(m);
    }
    return matched;
  }

  void begin_group() { groups_.push_back(std::make_unique<QuantizedGroup>(rule_, kept_, planner_.limits)); }

  void add_matrix(EncodedMatrix matrix) {
    if (has_input_scales()) {
      matrix.input_scale = fp8_input_scale(c_, *matrix.source, matrix.expert, problems_);
      if (matrix.input_scale == 0) {
        matrix.input_scale = 1;
        ++without_input_scale_;
      }
    }
    ++matrices_;
    if (!kept_->scales.empty() && kept_->find(matrix.name) == nullptr && lacking_++ == 0) {
      first_lacking_ = matrix.name;
    }
    QuantizedGroup& group = *groups_.back();
    group.add(std::move(matrix));
    add_parts(group, group.matrices().size() - 1);
  }

  void add_parts(QuantizedGroup& group, size_t i) {
    const EncodedMatrix& m = group.matrices()[i];
    const auto add = [&](EncodedPart part, std::string name, DType dtype, std::vector<int64_t> shape) {
      group.add_part(i, part, {std::move(name), dtype, std::move(shape), 0, 0});
    };
    if (!rule_.is_nvfp4()) {
      const Spelling to = *dialect_.spelling(rule_.scheme, m.rows, m.k);
      const int64_t per_byte = rule_.scheme.format == WeightFormat::kMxfp4 ? 2 : 1;
      add(EncodedPart::kValues, m.name + to.weight, to.weight_type, {m.rows, m.k / per_byte});
      add(EncodedPart::kScales, m.name + to.scale, to.scale_type.value_or(rule_.scheme.scale_type),
          to.scale_shape);
      if (m.input_scale != 0) {
        add(EncodedPart::kInputScale, m.name + to.input_scale, DType::kF32, dialect_.scalar_shape());
      }
    } else {
      const Nvfp4Dialect& to = *dialect_.nvfp4;
      add(EncodedPart::kValues, m.name + to.codes, DType::kU8, {m.rows, m.k / 2});
      add(EncodedPart::kScales, m.name + to.block_scale, DType::kF8E4M3, {m.rows, m.k / kGroup});
      const auto own = m.source->nvfp4;
      add(EncodedPart::kGlobalScale, m.name + to.global_scale, DType::kF32,
          rule_.in_place ? c_.tensors()[c_.nvfp4_modules()[*own].global_scale].shape
                         : dialect_.scalar_shape());
    }
    if (m.source->stacked && m.source->bias) {
      add(EncodedPart::kBias, m.name + ".bias", c_.tensors()[*m.source->bias].dtype, {m.rows});
    }
  }

  DType weight_type(const QuantizedGroup& group) const {
    const auto type_of = [&](const EncodedMatrix& m) {
      return m.source->format == WeightFormat::kFloat ? c_.tensors()[m.source->weight].dtype : DType::kF32;
    };
    const DType type = type_of(group.matrices()[0]);
    const bool same = std::all_of(group.matrices().begin(), group.matrices().end(),
                                  [&](const EncodedMatrix& m) { return type_of(m) == type; });
    return same ? type : DType::kF32;
  }

  /// Gives the source's tensors of a module to the last group.
  void consume(const Linear& m) {
    QuantizedGroup& group = *groups_.back();
    for (const size_t tensor : m.tensors()) {
      if (!rule_.in_place || tensor != m.input_scale) group.consume(tensor);
    }
    if (rule_.in_place) return;
    if (m.stacked && m.bias) group.consume(*m.bias);
    input_scales_dropped_ += m.input_scale.has_value() && !has_input_scales();
    rounded_twice_ += m.format != WeightFormat::kFloat;
    const auto name = parse_module_name(m.name);
    has_experts_ = has_experts_ || (name && name->kind == BlockKind::kRoutedExperts);
  }

  void report() {
    const auto note = [&](Severity severity, const char* id, std::string text) {
      planner_.findings.push_back({severity, id, c_.path().string(), std::move(text)});
    };
    if (without_input_scale_ > 0) {
      note(Severity::kWarning, "no-input-scale",
           fmt::format("{} matrices have no input scale, which ModelOpt's FP8 engines require: 1 is written, "
                       "and activations beyond 448 saturate",
                       without_input_scale_));
    }
    if (input_scales_dropped_ > 0) {
      note(Severity::kNote, "input-scales-dropped",
           fmt::format("{} input scales are dropped: the output {}", input_scales_dropped_,
                       rule_.is_tiled() ? "scales activations dynamically" : "quantizes weights only"));
    }
    if (rounded_twice_ > 0) {
      note(Severity::kNote, "rounded-twice",
           fmt::format("{} of {} modules were already quantized: their weights are rounded a second time",
                       rounded_twice_, modules_.size()));
    }
    for (const auto& [why, matrices] : unsolved_) {
      note(Severity::kWarning, "few-statistics",
           fmt::format(
               "{} of {} matrices are not solved under a full Hessian with descent: {} (the first, {})",
               matrices.count, matrices_, why, matrices.first));
    }
    if (!dialect_.kv_scale_type && has_fp8_kv_cache(c_)) {
      note(Severity::kWarning, "kv-cache",
           fmt::format("the source's KV cache is FP8, which the {} dialect cannot describe: its scales are "
                       "copied, its configuration is not",
                       dialect_.name));
    }
    if (dialect_.fp8_scale_type != nullptr && rule_.is_tiled() && rule_.scheme.scale_type != DType::kF32 &&
        has_experts_) {
      note(
          Severity::kWarning, "e8m0-expert-scales",
          "FP8 experts get E8M0 scales: vLLM (0.33) takes their bytes for F32 numbers without a message, and "
          "reads --scale-dtype f32 alone");
    }
    if (lacking_ > 0) {
      note(Severity::kWarning, "no-kept-scale",
           fmt::format("{} of {} matrices have no global scale to keep and get a new one, the first {}",
                       lacking_, matrices_, first_lacking_));
    }
    if (rule_.words.arithmetic == "compressed-tensors" && rule_.is_nvfp4() &&
        rule_.words.block_scale != "max") {
      note(Severity::kNote, "own-extension",
           fmt::format("no producer writes --block-scale {} in compressed-tensors' arithmetic",
                       words_.block_scale));
    }
  }

  const Checkpoint& c_;
  const Rule& words_;
  Planner& planner_;
  Problems& problems_;
  const EncodeRule& rule_;
  const OutputDialect& dialect_;
  const std::shared_ptr<const FixedGlobalScales> kept_;
  std::vector<Linear> modules_;  ///< that are quantized
  QuantizedGroups groups_;
  std::shared_ptr<InputScaleRule> input_scales_;
  std::vector<ChosenInputScale> chosen_;  ///< of its modules
  size_t already_nvfp4_ = 0;              ///< the first of them that is
  size_t matrices_ = 0, lacking_ = 0;
  std::string first_lacking_;
  size_t without_input_scale_ = 0, input_scales_dropped_ = 0, rounded_twice_ = 0;
  bool has_experts_ = false;   ///< routed ones
  UnsolvedByReason unsolved_;  ///< matrices that statistics do not suffice for
};

}  // namespace

void plan_quantized_groups(const EncodeRule& encode, const Rule& rule, Planner& planner) {
  GroupPlanner(encode, rule, planner).run();
}

}  // namespace twofour
