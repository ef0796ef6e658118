#include <set>

#include "lib/layer_terms.h"
#include "lib/names/pattern.h"
#include "lib/plan_rewrite_parts.h"

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

std::vector<size_t> all_modules(const Checkpoint& c, const Recipe& recipe) {
  // One configuration speaks for all modules, and it names one dialect.
  const std::vector<size_t> modules = chosen_modules(c, recipe.selection);
  if (modules.size() < c.nvfp4_modules().size()) {
    throw Error(fmt::format(
        "--to {}: expected all {} NVFP4 modules, which one configuration describes, found {} chosen",
        recipe.layout, c.nvfp4_modules().size(), modules.size()));
  }
  return modules;
}

void refuse_other_quantization(const Checkpoint& c, const Plan& plan, Problems& problems) {
  std::set<size_t> known;
  for (const Nvfp4Module& m : c.nvfp4_modules()) {
    known.insert({m.codes, m.block_scale});
    // The weight alone does not say what they do.
    for (const char* term : kWeightTerms) {
      if (const auto at = c.find(fmt::format("{}.{}", m.name, term))) {
        problems.add(
            fmt::format("{}: expected NVFP4 of codes and scales alone for {}, found this beside them",
                        c.where(*at), plan.recipe.layout));
      }
    }
  }
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const DType dtype = c.tensors()[i].dtype;
    const bool is_8_bit = dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kF8E8M0;
    const bool packed = dtype == DType::kU8 || dtype == DType::kI8;
    if ((!is_8_bit && !packed) || c.tensors()[i].shape.size() < 2 || known.count(i)) continue;
    problems.add(fmt::format("{}: expected NVFP4 as the only quantization for {}, found {}", c.where(i),
                             plan.recipe.layout, describe(dtype, c.tensors()[i].shape)));
  }
}

void plan_bf16(const Checkpoint& c, Plan& plan, std::vector<OutputTensor>& outputs) {
  size_t input_scales = 0;
  for (size_t i = 0; i < plan.modules.size(); ++i) {
    const Nvfp4Module& m = c.nvfp4_modules()[plan.modules[i].module];
    OutputTensor& weight = outputs[m.codes];
    // A stack's weights have the stack's own name.
    weight.info.name = m.dialect->stacked ? m.name : m.name + ".weight";
    weight.info.dtype = DType::kBF16;
    weight.info.shape[m.k_outer ? weight.info.shape.size() - 2 : weight.info.shape.size() - 1] = m.k;
    weight.info.begin = 0;
    weight.info.end = static_cast<uint64_t>(m.e * m.n * m.k) * 2;
    derive_by(weight, Op::kDequantize);
    weight.module = i;
    std::vector<size_t> consumed{m.block_scale, m.global_scale};
    if (m.input_scale) {
      consumed.push_back(*m.input_scale);
      ++input_scales;
    }
    for (const size_t tensor : consumed) {
      leave_out(outputs[tensor]);
      plan.merged.push_back(tensor);
    }
  }
  if (input_scales > 0) {
    plan.findings.push_back(
        {Severity::kNote, "input-scales-dropped", c.path().string(),
         fmt::format("{} input scales are left out: what is written quantizes nothing", input_scales)});
  }
}

}  // namespace twofour
