#include <map>
#include <set>

#include "formats/module_parts.h"
#include "lib/base/names/pattern.h"
#include "lib/base/names/unknown_codes.h"
#include "lib/recipe/selection/chooser.h"
#include "lib/source/config/model_config.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/linears/expert_stacks.h"
#include "lib/write/methods/method_list.h"
#include "lib/write/methods/nvfp4_modules.h"
#include "lib/write/methods/stacked_experts.h"
#include "lib/write/plan/config_texts.h"

namespace twofour {

std::vector<size_t> chosen_modules(const Checkpoint& c, const Selection& s) {
  if (c.nvfp4_modules().empty()) {
    const std::string found = other_formats_text(c);
    throw Error(fmt::format("{}: expected NVFP4 modules, found {}{}", c.path().string(), found,
                            found.starts_with("none") ? "" : "; quantize makes NVFP4 from other formats"));
  }
  Chooser chooser(s, model_layers(c.config()));
  std::vector<size_t> modules;
  for (size_t i = 0; i < c.nvfp4_modules().size(); ++i) {
    if (chooser.chooses(c.nvfp4_modules()[i].name, true)) modules.push_back(i);
  }
  chooser.refuse_unused("NVFP4 modules (model.layers.0.mlp.down_proj)");
  if (modules.empty()) {
    throw Error(fmt::format("{}: expected NVFP4 modules to convert, found all {} excluded", c.path().string(),
                            c.nvfp4_modules().size()));
  }
  return modules;
}

std::vector<size_t> all_modules(const Checkpoint& c, const Rule& rule) {
  // One configuration describes all modules, and it names one dialect.
  const std::vector<size_t> modules = chosen_modules(c, rule.selection);
  if (modules.size() < c.nvfp4_modules().size()) {
    throw Error(fmt::format(
        "{}: expected all {} NVFP4 modules, because one configuration describes them, found {} chosen",
        rule.name(keys::kTo, rule.to), c.nvfp4_modules().size(), modules.size()));
  }
  return modules;
}

bool has_other_formats(const Checkpoint& c) {
  std::set<size_t> known;
  for (const Nvfp4Linear& m : c.nvfp4_modules()) known.insert({m.codes, m.block_scale});
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const bool few_bits = dtype_bits(c.tensors()[i].dtype) <= 8 && c.tensors()[i].dtype != DType::kBool;
    const bool packed = c.tensors()[i].dtype == DType::kI32;
    if ((few_bits || packed) && c.tensors()[i].shape.size() >= 2 && !known.count(i)) return true;
  }
  return !find_unknown_codes(c.tensors(), stated_storage(quantization_of_values(c)).is_unlisted).empty();
}

void refuse_unknown_weights(Planner& planner) {
  const Checkpoint& c = planner.source;
  std::set<size_t> known;
  for (const Linear& m : planner.linears()) {
    for (const size_t tensor : m.tensors()) known.insert(tensor);
  }
  std::set<size_t> unknown;
  for (const size_t i :
       find_unknown_codes(c.tensors(), stated_storage(quantization_of_values(c)).is_unlisted))
    unknown.insert(i);
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const TensorInfo& t = c.tensors()[i];
    const bool few_bits = dtype_bits(t.dtype) <= 8 && t.dtype != DType::kBool;
    const bool is_matrix = few_bits && t.shape.size() >= 2;
    if ((!is_matrix && !unknown.contains(i)) || known.count(i)) continue;
    const auto part = parse_part_name(t.name);
    // Terms are checked by their values. Zero points of inputs and outputs do not change weights.
    if (part && (part->part->kind == PartKind::kTerm || part->part->name.ends_with("zero_point"))) continue;
    planner.problems.add(fmt::format("{}: expected weights in floats, FP8, MXFP4, NVFP4 or INT4, found {}",
                                     c.where(i), describe(t.dtype, t.shape)));
  }
}

namespace {

/// Dequantizes linears.
class ToBf16 : public Method {
 public:
  void plan(Rule& rule, Planner& planner) const override {
    const Checkpoint& c = planner.source;
    // The modules that stay are described one by one, and the configuration is checked against the engines'
    // rules.
    const bool has_words = source_dialect(c) != nullptr || is_foreign(c);
    const bool general = has_other_formats(c) || !planner.is_single ||
                         (has_words && chosen_modules(c, rule.selection).size() < c.nvfp4_modules().size());
    const size_t input_scales = general ? widen_all(rule, planner) : widen_nvfp4(rule, planner);
    if (input_scales > 0) {
      planner.findings.push_back(
          {Severity::kWarning, "input-scales-dropped", c.path().string(),
           fmt::format("{} input scales are dropped: the output quantizes nothing", input_scales)});
    }
  }

 private:
  static constexpr double kTolerance = 0x1p-8;  ///< half a unit in the last place

  static void stack_experts(const std::vector<size_t>& modules, Planner& planner) {
    Problems others;  // problems of modules that stay as they are
    const std::vector<Linear> all = find_weight_modules(planner.source, others);
    std::vector<size_t> chosen;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].nvfp4 && std::binary_search(modules.begin(), modules.end(), *all[i].nvfp4))
        chosen.push_back(i);
    }
    plan_stacks(planner, all, chosen);
    refuse_half_turned(modules, planner);
  }

  /// Adds a problem for a stack of gate and up whose rows are in an uncertain order, if the stack of down
  /// beside it is turned to the family's orientation.
  static void refuse_half_turned(const std::vector<size_t>& modules, Planner& planner) {
    const Checkpoint& c = planner.source;
    for (const size_t i : modules) {
      const Nvfp4Linear& m = c.nvfp4_modules()[i];
      const auto parsed = m.dialect->stacked && !m.k_outer ? parse_module_name(m.name) : std::nullopt;
      if (!parsed || parsed->projection != Projection::kGateUp || planner.is_taken(m.codes)) continue;
      const auto down = c.find(fmt::format("{}.{}", parsed->block, "down_proj"));
      const GateUpOrder order = find_gate_up_order(c, parsed->block);
      if (!order.rows && down && planner.is_taken(*down))
        planner.problems.add("{}: {}", c.where(m.codes), order.problem);
    }
  }

  /// Widens a source whose only format is NVFP4. Returns the number of input scales that are dropped.
  static size_t widen_nvfp4(const Rule& rule, Planner& planner) {
    const Checkpoint& c = planner.source;
    std::vector<std::string> names;
    size_t input_scales = 0;
    const std::vector<size_t> modules = chosen_modules(c, rule.selection);
    stack_experts(modules, planner);
    for (const size_t i : modules) {
      const Nvfp4Linear& m = c.nvfp4_modules()[i];
      if (!planner.is_taken(m.codes)) add(rule, m, planner);
      names.push_back(m.name);
      input_scales += m.input_scale.has_value();
    }
    planner.config.set_texts(bf16_texts(c, names));
    if (names.size() == c.nvfp4_modules().size()) planner.config.quantize_nothing();
    return input_scales;
  }

  static size_t widen_all(const Rule& rule, Planner& planner) {
    const Checkpoint& c = planner.source;
    if (planner.config.dialect() == nullptr && source_dialect(c) != nullptr)
      planner.config.set_dialect(*source_dialect(c));
    planner.config.rewrite();
    Chooser chooser(rule.selection, planner.layers());
    size_t input_scales = 0;
    std::vector<size_t> chosen;
    for (size_t i = 0; i < planner.linears().size(); ++i) {
      const Linear& m = planner.linears()[i];
      const bool is_float = !m.format->coded;
      if (chooser.chooses(m.name, !is_float) && !is_float && !planner.is_taken(m.weight)) chosen.push_back(i);
    }
    const std::vector<size_t> stacked = plan_stacks(planner, planner.linears(), chosen);
    for (const size_t i : chosen) {
      const Linear& m = planner.linears()[i];
      if (std::binary_search(stacked.begin(), stacked.end(), i)) {
        // This module is written with the other modules of its block.
      } else if (m.nvfp4) {
        add(rule, c.nvfp4_modules()[*m.nvfp4], planner);
      } else {
        widen(rule, m, planner);
      }
      planner.config.add(m.name, m.weight, {});
      input_scales += m.input_scale.has_value();
    }
    refuse_split_tables(planner, chosen);
    chooser.refuse_unused("quantized linears (model.layers.0.mlp.down_proj)");
    if (chosen.empty()) {
      planner.problems.refuse();
      throw Error(
          fmt::format("{}: expected quantized linears to convert, found none chosen among {} linears{}",
                      c.path().string(), planner.linears().size(), formats_of(planner)));
    }
    return input_scales;
  }

  /// The formats of the linears, with the number of linears in each: ": 3 FP8, 1 floats".
  static std::string formats_of(Planner& planner) {
    std::map<std::string_view, size_t> counts;
    for (const Linear& m : planner.linears()) ++counts[m.format->name];
    std::string text;
    for (const auto& [format, count] : counts)
      text += fmt::format("{}{} in {}", text.empty() ? ": " : ", ", count, format);
    return text;
  }

  /// Adds a problem if only some pieces of an embedding are chosen and all pieces share a scale, since they
  /// must be widened together.
  static void refuse_split_tables(Planner& planner, const std::vector<size_t>& chosen) {
    for (size_t i = 0; i < planner.linears().size(); ++i) {
      const Linear& m = planner.linears()[i];
      const bool stays = !std::binary_search(chosen.begin(), chosen.end(), i) && !planner.is_taken(m.weight);
      if (!stays || !m.is_table || !m.scale || !planner.is_taken(*m.scale)) continue;
      planner.problems.add(
          fmt::format("{}: expected one rule for all pieces of an embedding, found none for {}",
                      planner.source.where(*m.scale), m.name));
    }
  }

  /// Adds the weights in the source's tensor `from`, as BF16, as the first part of a module.
  static void add_weights(PartedRewrite& module, std::string name, std::vector<int64_t> shape, size_t from,
                          std::unique_ptr<const TensorRewrite> weights, Planner& planner) {
    refuse_large(*weights, from, planner);
    TensorInfo info{std::move(name), DType::kBF16, std::move(shape), 0, 0};
    info.end = tensor_bytes(info.name, info.dtype, info.shape);
    module.add({std::move(info), from, std::move(weights), true});
  }

  static void widen(const Rule& rule, const Linear& m, Planner& planner) {
    auto module = std::make_unique<LinearRewrite>(m, rule.to, kTolerance);
    std::vector<int64_t> shape = {m.n, m.k};
    if (m.k_outer) std::swap(shape[0], shape[1]);
    if (m.stacked) shape.insert(shape.begin(), m.e);
    // The weights of a stack have the name of the stack.
    const bool is_bare = m.stacked && !planner.source.tensors()[m.weight].name.ends_with(".weight");
    add_weights(*module, is_bare ? m.name : m.name + ".weight", std::move(shape), m.weight,
                std::make_unique<WidenedWeights>(m), planner);
    for (const size_t tensor : m.tensors()) {
      // The scale that pieces of an embedding share belongs to the first piece.
      if (tensor != m.weight && !(m.is_table && planner.is_taken(tensor))) module->consume(tensor);
    }
    planner.add(std::move(module));
  }

  static void add(const Rule& rule, const Nvfp4Linear& m, Planner& planner) {
    const Checkpoint& c = planner.source;
    auto module = std::make_unique<ModuleRewrite>(m, rule.to, read_module_scales(c, m, planner.problems),
                                                  false, kTolerance);
    std::vector<int64_t> shape = c.tensors()[m.codes].shape;
    shape[m.k_outer ? shape.size() - 2 : shape.size() - 1] = m.k;
    add_weights(*module, m.dialect->stacked ? m.name : m.name + ".weight", std::move(shape), m.codes,
                std::make_unique<DequantizedWeights>(m, module->scales().multipliers), planner);
    module->consume(m.block_scale);
    module->consume(m.global_scale);
    if (m.input_scale) module->consume(*m.input_scale);
    planner.add(std::move(module));
  }
};

}  // namespace

std::unique_ptr<Method> make_to_bf16(Rule&) { return std::make_unique<ToBf16>(); }

}  // namespace twofour
