#include <set>

#include "lib/methods/method_list.h"
#include "lib/methods/nvfp4_modules.h"
#include "lib/methods/stacked_experts.h"
#include "lib/names/pattern.h"
#include "lib/plan/output_files.h"

namespace twofour {

std::vector<size_t> chosen_modules(const Checkpoint& c, const Selection& s) {
  if (c.nvfp4_modules().empty()) {
    throw Error(fmt::format("{}: expected NVFP4 modules, found none among {} tensors", c.path().string(),
                            c.tensors().size()));
  }
  Matcher include(s.include), exclude(s.exclude), also(s.also);
  std::vector<size_t> modules;
  for (size_t i = 0; i < c.nvfp4_modules().size(); ++i) {
    const std::string& name = c.nvfp4_modules()[i].name;
    const bool included = include.matches(name), added = also.matches(name);
    if ((s.include.empty() || included || added) && !exclude.matches(name)) modules.push_back(i);
  }
  const char* expected = "NVFP4 modules (model.layers.0.mlp.down_proj)";
  include.refuse_unused("--include", expected);
  exclude.refuse_unused("--exclude", expected);
  also.refuse_unused("--also", expected);
  if (modules.empty()) {
    throw Error(fmt::format("{}: expected NVFP4 modules to convert, found all {} excluded", c.path().string(),
                            c.nvfp4_modules().size()));
  }
  return modules;
}

std::vector<size_t> all_modules(const Checkpoint& c, const Rule& rule) {
  // One configuration speaks for all modules, and it names one dialect.
  const std::vector<size_t> modules = chosen_modules(c, rule.selection);
  if (modules.size() < c.nvfp4_modules().size()) {
    throw Error(fmt::format(
        "--to {}: expected all {} NVFP4 modules, which one configuration describes, found {} chosen", rule.to,
        c.nvfp4_modules().size(), modules.size()));
  }
  return modules;
}

void refuse_other_quantization(const Checkpoint& c, const std::string& to, Problems& problems) {
  std::set<size_t> known;
  for (const Nvfp4Linear& m : c.nvfp4_modules()) known.insert({m.codes, m.block_scale});
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const DType dtype = c.tensors()[i].dtype;
    const bool is_8_bit = dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kF8E8M0;
    const bool packed = dtype == DType::kU8 || dtype == DType::kI8;
    if ((!is_8_bit && !packed) || c.tensors()[i].shape.size() < 2 || known.count(i)) continue;
    problems.add(fmt::format("{}: expected NVFP4 as the only quantization for {}, found {}", c.where(i), to,
                             describe(dtype, c.tensors()[i].shape)));
  }
}

namespace {

/// Dequantizes NVFP4 modules.
class ToBf16 : public Method {
 public:
  void plan(Rule& rule, Planner& planner) const override {
    const Checkpoint& c = planner.source;
    const std::vector<size_t> modules = chosen_modules(c, rule.selection);
    size_t input_scales = 0;
    std::vector<std::string> names;
    stack_experts(modules, planner);
    for (const size_t i : modules) {
      const Nvfp4Linear& m = c.nvfp4_modules()[i];
      if (!planner.is_taken(m.codes)) add(rule, m, planner);
      names.push_back(m.name);
      input_scales += m.input_scale.has_value();
    }
    if (input_scales > 0) {
      planner.findings.push_back(
          {Severity::kNote, "input-scales-dropped", c.path().string(),
           fmt::format("{} input scales are dropped: the output quantizes nothing", input_scales)});
    }
    planner.set_texts(bf16_texts(c, names));
    refuse_other_quantization(c, rule.to, planner.problems);
  }

 private:
  static constexpr double kTolerance = 0x1p-8;  ///< half a last bit

  static void stack_experts(const std::vector<size_t>& modules, Planner& planner) {
    Problems others;  // of modules that stay as they are
    const std::vector<Linear> all = find_weight_modules(planner.source, others);
    std::vector<size_t> chosen;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].nvfp4 && std::binary_search(modules.begin(), modules.end(), *all[i].nvfp4))
        chosen.push_back(i);
    }
    plan_stacks(planner, all, chosen);
  }

  static void add(const Rule& rule, const Nvfp4Linear& m, Planner& planner) {
    const Checkpoint& c = planner.source;
    auto module = std::make_unique<ModuleRewrite>(m, rule.to, read_module_scales(c, m, planner.problems),
                                                  false, kTolerance);
    TensorInfo info = c.tensors()[m.codes];
    // A stack's weights have the stack's own name.
    info.name = m.dialect->stacked ? m.name : m.name + ".weight";
    info.dtype = DType::kBF16;
    info.shape[m.k_outer ? info.shape.size() - 2 : info.shape.size() - 1] = m.k;
    info.begin = 0;
    info.end = static_cast<uint64_t>(m.e * m.n * m.k) * 2;
    auto weights = std::make_unique<DequantizedWeights>(m, module->scales().multipliers);
    if (weights->grain() > planner.limits.piece) {
      planner.problems.add(fmt::format("{}: expected at most {} bytes that are computed together, found {}",
                                       c.where(m.codes), planner.limits.piece, weights->grain()));
    }
    module->add({std::move(info), m.codes, std::move(weights), true});
    module->consume(m.block_scale);
    module->consume(m.global_scale);
    if (m.input_scale) module->consume(*m.input_scale);
    module->set_rule("belongs to a module to convert");
    planner.add(std::move(module));
  }
};

}  // namespace

std::unique_ptr<Method> make_to_bf16(Rule&) { return std::make_unique<ToBf16>(); }

}  // namespace twofour
