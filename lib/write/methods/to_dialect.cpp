#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <set>

#include "lib/recipe/selection/chooser.h"
#include "lib/recipe/selection/input_scales.h"
#include "lib/source/config/quantization_config.h"
#include "lib/write/encode/quantized_group.h"
#include "lib/write/methods/method_list.h"
#include "lib/write/methods/nvfp4_modules.h"
#include "lib/write/plan/config_texts.h"

namespace twofour {
namespace {

constexpr double kScaleTolerance = 0x1p-22;  ///< one unit in the last place of the multiplier, and two
                                             ///< roundings

/// A float32 scalar of the new dialect.
TensorInfo scalar_info(std::string name, std::vector<int64_t> shape) {
  return {std::move(name), DType::kF32, std::move(shape), 0, sizeof(float)};
}

/// The stored bits of an input scale. It must be a number that has a reciprocal.
uint32_t stored_input_scale(const Checkpoint& c, size_t tensor, Problems& problems) {
  const TensorInfo& t = c.tensors()[tensor];
  if (t.dtype != DType::kF32 || t.bytes() != sizeof(float)) {
    problems.add(
        fmt::format("{}: expected F32 [] or [1], found {}", c.where(tensor), describe(t.dtype, t.shape)));
    return 0;
  }
  uint8_t bytes[sizeof(float)];
  c.read(tensor, 0, bytes);
  float value = 0;
  std::memcpy(&value, bytes, sizeof(value));
  const float reciprocal = 1.0f / value;  // the reciprocal of that reciprocal must be finite, too
  if (!std::isfinite(value) || value <= 0 || !std::isfinite(reciprocal) || reciprocal <= 0 ||
      !std::isfinite(1.0f / reciprocal)) {
    problems.add(
        fmt::format("{}: expected a positive finite input scale with a positive finite reciprocal, found {}",
                    c.where(tensor), value));
  }
  return std::bit_cast<uint32_t>(value);
}

/// The bits that the converted scale returns to. The reciprocal of a reciprocal may differ from the original
/// number. So if the stored scale is the reciprocal of `remembered`, the result is `remembered`. It is 0 if
/// nothing is remembered or the stored scale was changed.
uint32_t remembered_bits(uint32_t remembered, uint32_t stored) {
  if (remembered == 0) return 0;
  return std::bit_cast<uint32_t>(1.0f / std::bit_cast<float>(remembered)) == stored ? remembered : 0;
}

/// The original form of a module, if twofour wrote the source and the original had this dialect.
Manifest::Original original_of(const Manifest* written, const std::string& name, const Nvfp4Dialect& to) {
  if (written == nullptr) return {};
  const auto at = written->originals.find(name);
  return at != written->originals.end() && at->second.dialect == to.name ? at->second : Manifest::Original{};
}

/// Checks that readers of `to` get a number from the reciprocal. Values that are not valid scales were
/// reported before.
void check_reciprocal(const Checkpoint& c, const Nvfp4Linear& m, const ModuleRewrite::Scales& scales,
                      const Nvfp4Dialect& to, Problems& problems) {
  const float stored = std::bit_cast<float>(scales.raw_bits[0]), written = 1.0f / stored;
  if (!std::isfinite(stored) || stored <= 0 || !std::isfinite(scales.multipliers[0])) return;
  if (std::isfinite(written) && std::isfinite(global_scale_multiplier(to, written))) return;
  problems.add(fmt::format("{}: expected a positive finite global scale that has a reciprocal, found {}",
                           c.where(m.global_scale), stored));
}

}  // namespace

// KV scales keep their names and change their type, as in compressed-tensors' own converter. The type is F32
// in ModelOpt and BF16 in compressed-tensors. Loaders know the names of either dialect.
void plan_kv_scales(const OutputDialect& to, Planner& planner) {
  if (!to.kv_scale_type) return;
  const Checkpoint& c = planner.source;
  const DType dtype = *to.kv_scale_type;
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const TensorInfo& t = c.tensors()[i];
    const bool is_scale = t.name.ends_with(".k_scale") || t.name.ends_with(".v_scale");
    if (!is_scale || !is_float(t.dtype) || planner.is_taken(i)) continue;
    if (t.bytes() != static_cast<uint64_t>(dtype_bits(t.dtype)) / 8) {
      planner.problems.add(
          fmt::format("{}: expected one scale of the KV cache, which both dialects have, found {}",
                      c.where(i), describe(t)));
      continue;
    }
    if (t.dtype == dtype) continue;
    TensorInfo info = t;
    info.dtype = dtype;
    info.begin = 0;
    info.end = static_cast<uint64_t>(dtype_bits(dtype)) / 8;
    planner.add(std::make_unique<KeptTensor>(i, std::move(info), t.dtype));
  }
}

void translate_nvfp4(const std::string& becomes, const Nvfp4Linear& m, const OutputDialect& dialect,
                     Planner& planner, const InputScaleChoice& input_scale) {
  const Checkpoint& c = planner.source;
  const Nvfp4Dialect& to = *dialect.nvfp4;
  // Two dialects may store the same multiplier.
  const bool own = m.dialect->name == to.name, same = m.dialect->divides == to.divides;
  ModuleRewrite::Scales scales = read_module_scales(c, m, planner.problems);
  if (m.dialect->stacked) {
    planner.problems.add(fmt::format(
        "{}: expected each expert in separate tensors, which {} needs, found a stack", m.name, to.name));
    return;
  }
  if (!same) check_reciprocal(c, m, scales, to, planner.problems);
  const Manifest::Original was = original_of(planner.written, m.name, to);
  const auto shape = [&](const std::optional<std::vector<int64_t>>& before) {
    return before.value_or(dialect.scalar_shape());
  };
  const uint32_t stored = scales.raw_bits[0];
  const bool keeps_own = !input_scale.rule || input_scale.scale.is_own;
  if (m.input_scale && keeps_own && !own)
    scales.input_scale_bits = stored_input_scale(c, *m.input_scale, planner.problems);
  const uint32_t input_stored = scales.input_scale_bits;
  auto module = std::make_unique<ModuleRewrite>(m, becomes, std::move(scales), false, kScaleTolerance);
  const auto renamed = [&](size_t tensor, const char* suffix) {
    TensorInfo info = c.tensors()[tensor];
    info.name = m.name + suffix;
    return info;
  };
  const auto reciprocal = [&](size_t tensor, uint32_t remembered) {
    return std::make_unique<ConvertedScalars>(tensor, DType::kF32, DType::kF32, true, remembered);
  };
  module->add({renamed(m.codes, to.codes), m.codes, std::make_unique<CopiedTensor>(m.codes, false)});
  module->add({renamed(m.block_scale, to.block_scale), m.block_scale,
               std::make_unique<CopiedTensor>(m.block_scale, true)});
  const auto add_scalar = [&](size_t tensor, const char* suffix, const auto& before, uint32_t remembered) {
    if (own) {
      module->add({c.tensors()[tensor], tensor, std::make_unique<CopiedTensor>(tensor, false)});
    } else if (same) {
      module->add({scalar_info(m.name + suffix, shape(before)), tensor,
                   std::make_unique<ConvertedScalars>(tensor, c.tensors()[tensor].dtype, DType::kF32, false),
                   true});
    } else {
      module->add(
          {scalar_info(m.name + suffix, shape(before)), tensor, reciprocal(tensor, remembered), true});
    }
  };
  add_scalar(m.global_scale, to.global_scale, was.global_scale_shape,
             remembered_bits(was.global_scale, stored));
  const auto scalars = static_cast<int>(module->parts().size());
  if (!keeps_own && input_scale.scale.multiplier > 0) {
    const float multiplier = input_scale.scale.multiplier, written = to.divides ? 1 / multiplier : multiplier;
    module->add({scalar_info(m.name + to.input_scale, dialect.scalar_shape()),
                 m.input_scale.value_or(m.global_scale), std::make_unique<ConstantScalar>(written), true});
  } else if (m.input_scale && keeps_own) {
    add_scalar(*m.input_scale, to.input_scale, was.input_scale_shape,
               remembered_bits(was.input_scale, input_stored));
  }
  const bool has_scale = module->parts().size() > static_cast<size_t>(scalars);
  if (input_scale.rule) module->choose_input_scale(input_scale, has_scale ? scalars : -1);
  if (m.input_scale) module->consume(*m.input_scale);
  planner.add(std::move(module));
}

InputScaleRule input_scale_rule(const Rule& rule, const OutputDialect& dialect) {
  InputScaleRule made{.setting = rule.input_scale,
                      .author = rule.author,
                      .one_a_layer = rule.one_input_scale_a_layer,
                      .is_needed = dialect.name == "deepseek-v4",
                      .given = rule.input_scales};
  if (made.setting.kind() == InputScale::Kind::kNone && made.one_a_layer)
    throw Error(fmt::format("{}: expected input scales, found {}", rule.name(keys::kOneInputScale),
                            rule.name(keys::kInputScale, "none")));
  return made;
}

void add_neighbours(InputScaleRule& rule, Planner& planner) {
  using Kind = InputScale::Kind;
  const Kind kind = rule.setting.kind();
  if (kind != Kind::kNeighbours && kind != Kind::kGiven && kind != Kind::kUnset) return;
  std::set<std::string> written;
  for (const InputScaleRule::Module& m : rule.modules) written.insert(m.name);
  const auto add = [&](const std::string& name, const std::shared_ptr<const Linear>& m, int64_t e) {
    if (!written.contains(name)) rule.modules.push_back({name, m, e, false});
  };
  for (const Linear& m : planner.linears()) {
    if (!m.input_scale && kind != Kind::kGiven) continue;
    const auto linear = std::make_shared<const Linear>(m);
    if (!m.stacked) add(m.name, linear, 0);
    const auto parts = m.stacked ? stack_parts(planner.source, m.name, m.n) : std::vector<StackPart>{};
    for (int64_t e = 0; e < m.e; ++e) {
      for (const StackPart& part : parts) add(expert_name(m.name, e, part.leaf), linear, e);
    }
  }
}

void change_input_scales(const Rule& rule, const std::vector<Linear>& modules, Planner& planner) {
  const auto words = std::make_shared<InputScaleRule>(input_scale_rule(rule, *planner.config.dialect()));
  for (const Linear& m : modules)
    words->modules.push_back({m.name, std::make_shared<const Linear>(m), 0, true});
  add_neighbours(*words, planner);
  write_input_scales(rule.to, words, choose_input_scales(planner.source, *words, planner.problems), 0,
                     planner);
}

void write_input_scales(const std::string& becomes, const std::shared_ptr<const InputScaleRule>& rule,
                        const std::vector<ChosenInputScale>& chosen, size_t first, Planner& planner) {
  const Checkpoint& c = planner.source;
  size_t dropped = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const bool has_none = !chosen[i].is_own && !(chosen[i].multiplier > 0);
    dropped += has_none && rule->modules[i].is_written && rule->modules[i].source->input_scale.has_value();
  }
  if (dropped > 0) {
    planner.findings.push_back(
        {Severity::kWarning, "input-scales-dropped", c.path().string(),
         fmt::format("{} input scales are dropped: the output quantizes weights only", dropped)});
  }
  for (size_t i = first; i < chosen.size(); ++i) {
    const InputScaleRule::Module& m = rule->modules[i];
    if (!m.is_written) continue;
    Scheme scheme = scheme_of(c, *m.source);
    if (!chosen[i].is_own) scheme.has_input_scale = chosen[i].multiplier > 0;
    planner.config.add(m.name, m.source->weight, scheme);
    translate_nvfp4(becomes, c.nvfp4_modules()[*m.source->nvfp4], *planner.config.dialect(), planner,
                    {rule, chosen[i]});
  }
}

namespace {

/// Gives NVFP4 modules the names and scales of another dialect.
class ToDialect : public Method {
 public:
  void plan(Rule& rule, Planner& planner) const override {
    const Checkpoint& c = planner.source;
    const bool is_own = !rule.dialect.empty() && source_dialect(c) == &output_dialect(rule.dialect, true);
    if (is_own && !c.is_view() && !changes_input_scales(rule)) {
      refuse_part(rule, planner);
      note_same(rule, planner);
      return planner.config.keep();
    }
    // A source with other formats needs no NVFP4 if the rule names a dialect.
    if (c.nvfp4_modules().empty() && has_other_formats(c) && !rule.dialect.empty())
      return keep_all(rule, output_dialect(rule.dialect, true), planner);
    std::vector<size_t> modules = all_modules(c, rule);
    if (rule.dialect.empty()) {
      // A checkpoint gets the other dialect. An artifact gets the dialect of its source.
      const std::string_view own = c.nvfp4_modules()[modules[0]].dialect->name;
      for (const std::string& name : output_dialect_names(true)) {
        if ((name == own) == c.is_view() && rule.dialect.empty()) rule.dialect = name;
      }
      if (rule.dialect.empty()) return keep_source(rule, modules, planner);
    }
    const OutputDialect& dialect = output_dialect(rule.dialect, true);
    const auto is_kept = [&](size_t m) {
      return std::string_view(c.nvfp4_modules()[m].dialect->name) == dialect.nvfp4->name;
    };
    // A configuration of another tool, such as Quark, is replaced by entries for each module.
    const bool is_anew =
        has_other_formats(c) || changes_input_scales(rule) || is_foreign(c) || dialect.name == "deepseek-v4";
    if (!is_anew && std::all_of(modules.begin(), modules.end(), is_kept)) {
      if (!c.is_view()) note_same(rule, planner);
      return keep_source(rule, modules, planner);
    }
    if (!is_anew) {
      std::erase_if(modules, is_kept);
      Scheme scheme{.format = WeightFormat::kNvfp4};
      scheme.has_input_scale = std::any_of(modules.begin(), modules.end(), [&](size_t m) {
        return c.nvfp4_modules()[m].input_scale.has_value();
      });
      planner.config.suggest(dialect.config(translate_config(c, dialect), scheme));
    }
    keep_all(rule, dialect, planner);
  }

 private:
  static void note_same(const Rule& rule, Planner& planner) {
    planner.findings.push_back(
        {Severity::kWarning, "same-dialect", planner.source.path().string(),
         fmt::format("is in the {} dialect already: everything is copied", rule.dialect)});
  }

  /// Writes all quantized linears, in any format, in the dialect.
  static void keep_all(const Rule& rule, const OutputDialect& dialect, Planner& planner) {
    planner.config.set_dialect(dialect);
    planner.config.rewrite();
    refuse_part(rule, planner);
    const auto fp8_scale_type = planner.fp8_scale_type(dialect);  // this rule takes all remaining experts
    std::vector<Linear> rescaled;
    for (const Linear& m : planner.linears()) {
      if (planner.is_taken(m.weight)) continue;
      if (m.nvfp4 && changes_input_scales(rule)) {
        rescaled.push_back(m);
      } else {
        keep_linear(rule.to, m, fp8_scale_type, planner);
      }
    }
    if (!rescaled.empty()) change_input_scales(rule, rescaled, planner);
  }

  /// Writes the source of an artifact in its own dialect. This may be a dialect that twofour otherwise only
  /// reads.
  static void keep_source(const Rule& rule, const std::vector<size_t>& modules, Planner& planner) {
    for (const size_t m : modules) keep(rule, planner.source.nvfp4_modules()[m], planner);
    planner.config.set_texts(original_texts(planner.source));
  }

  /// Throws Error unless the selection has every quantized linear, since all of them must have one dialect.
  static void refuse_part(const Rule& rule, Planner& planner) {
    Chooser chooser(rule.selection, planner.layers());
    size_t chosen = 0, all = 0;
    for (const Linear& m : planner.linears()) {
      if (!m.format->coded) continue;
      ++all;
      chosen += chooser.chooses(m.name, true);
    }
    const std::string where = planner.source.path().string();
    if (all == 0)
      throw Error(fmt::format("{}: expected quantized linears, found none among {} tensors", where,
                              planner.source.tensors().size()));
    chooser.refuse_unused("quantized linears (model.layers.0.mlp.down_proj)");
    if (chosen == all) return;
    throw Error(fmt::format(
        "{}: expected all {} quantized linears, because one configuration describes them, found {} chosen",
        rule.name(keys::kTo, rule.to), all, chosen));
  }

  /// Copies a module and checks its block scales.
  static void keep(const Rule& rule, const Nvfp4Linear& m, Planner& planner) {
    const Checkpoint& c = planner.source;
    auto module = std::make_unique<ModuleRewrite>(m, rule.to, read_module_scales(c, m, planner.problems),
                                                  false, kScaleTolerance);
    for (const size_t tensor : {m.codes, m.block_scale, m.global_scale}) {
      module->add(
          {c.tensors()[tensor], tensor, std::make_unique<CopiedTensor>(tensor, tensor == m.block_scale)});
    }
    planner.add(std::move(module));
  }
};

}  // namespace

std::unique_ptr<Method> make_to_dialect(Rule& rule) {
  if (!rule.dialect.empty()) output_dialect(rule.dialect, true);
  return std::make_unique<ToDialect>();
}

}  // namespace twofour
