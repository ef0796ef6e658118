#include "lib/plan_rewrite.h"

#include <algorithm>
#include <set>

#include "kernels/pack/prune.h"
#include "lib/derive.h"
#include "lib/global_scale.h"
#include "lib/plan_encode.h"
#include "lib/plan_rewrite_parts.h"

namespace twofour {
namespace {

ModulePlan plan_module(const Checkpoint& c, size_t module, Problems& problems) {
  ModulePlan plan{module, {}, {}};
  const Nvfp4Module& m = c.nvfp4_modules()[module];
  const auto stored = static_cast<int64_t>(c.tensors()[m.global_scale].bytes() / sizeof(float));
  for (int64_t e = 0; e < m.e; ++e) {
    const SourceScale scale = read_global_scale(c, m, e, problems);
    if (e < stored) plan.stored_bits.push_back(scale.stored_bits);
    plan.multipliers.push_back(scale.multiplier);
  }
  return plan;
}

/// Modules of the default set for pruning: those that v7 would convert.
std::vector<size_t> pruned_modules(const Checkpoint& c, Plan& plan) {
  std::set<size_t> modules;
  const std::vector<Target> targets = select_targets(c, plan.recipe.selection);
  warn_of_extra_experts(c, targets, plan.findings);
  for (const Target& target : targets) {
    for (const SourceRows& s : target.sources) modules.insert(s.module);
  }
  return {modules.begin(), modules.end()};
}

/// Every tensor of the source as a copy, to be changed by whoever knows better.
std::vector<OutputTensor> copy_all(const Checkpoint& c) {
  std::vector<OutputTensor> outputs;
  for (size_t i = 0; i < c.tensors().size(); ++i)
    outputs.push_back({c.tensors()[i], OutputTensor::Kind::kCopy, i, -1, 0});
  return outputs;
}

void plan_prune(const Checkpoint& c, const Plan& plan, std::vector<OutputTensor>& outputs) {
  for (size_t i = 0; i < plan.modules.size(); ++i) {
    const Nvfp4Module& m = c.nvfp4_modules()[plan.modules[i].module];
    derive_by(outputs[m.codes], Op::kPrune);
    derive_by(outputs[m.block_scale], Op::kBlockScales);
    for (const size_t tensor : {m.codes, m.block_scale, m.global_scale}) outputs[tensor].module = i;
  }
}

/// Ranges must fit into the memory promised.
void check_grains(const Checkpoint& c, Plan& plan, const std::vector<OutputTensor>& outputs,
                  Problems& problems) {
  for (const OutputTensor& t : outputs) {
    if (t.kind != OutputTensor::Kind::kDerived) continue;
    const uint64_t grain = derive_grain(c, plan, t), step = derive_step(c, plan, t);
    if (grain > plan.limits.piece) {
      problems.add(fmt::format("{}: expected at most {} bytes that are derived together, found {}",
                               c.where(t.source), plan.limits.piece, grain));
    }
    if (t.op == Op::kPrune) plan.read_bytes += t.info.bytes() / 8;  // block scales, to weigh the figures
    // Codes and scales that come in, and what goes out.
    const uint64_t out = std::min(step, std::max<uint64_t>(t.info.bytes(), 1));
    plan.derive_bytes = std::max(plan.derive_bytes, 2 * out + out / 4);
  }
}

}  // namespace

Rewrite rewrite_of(const std::string& layout) {
  return layout == "prune"      ? Rewrite::kPrune
         : layout == "nvfp4"    ? Rewrite::kNvfp4
         : layout == "bf16"     ? Rewrite::kBf16
         : layout == "fp8"      ? Rewrite::kFp8
         : layout == "quantize" ? Rewrite::kQuantize
                                : Rewrite::kNone;
}

std::vector<OutputTensor> plan_rewrite(const Checkpoint& c, const Manifest* written, Plan& plan,
                                       Problems& problems) {
  const Rewrite rewrite = rewrite_of(plan.recipe.layout);
  if (rewrite == Rewrite::kQuantize || rewrite == Rewrite::kFp8) {
    std::vector<OutputTensor> outputs = copy_all(c);
    plan_encode(c, plan, outputs, problems);
    std::erase_if(outputs, is_left_out);
    check_grains(c, plan, outputs, problems);
    return outputs;
  }
  if (rewrite == Rewrite::kPrune && !prune_pattern_from_name(plan.recipe.pattern)) {
    throw Error(fmt::format("--pattern: expected 2:4 or 4:8-paired, found '{}'", plan.recipe.pattern));
  }
  const std::vector<size_t> modules = rewrite == Rewrite::kPrune   ? pruned_modules(c, plan)
                                      : rewrite == Rewrite::kNvfp4 ? modules_for_dialect(c, plan)
                                      : rewrite == Rewrite::kBf16  ? chosen_modules(c, plan.recipe.selection)
                                                                   : all_modules(c, plan.recipe);
  for (const size_t module : modules) plan.modules.push_back(plan_module(c, module, problems));
  std::vector<OutputTensor> outputs = copy_all(c);
  if (rewrite == Rewrite::kPrune) plan_prune(c, plan, outputs);
  if (rewrite == Rewrite::kNvfp4) plan_dialect(c, written, plan, outputs, problems);
  if (rewrite == Rewrite::kBf16) plan_bf16(c, plan, outputs);
  if (rewrite != Rewrite::kPrune && !plan.keeps_dialect) refuse_other_quantization(c, plan, problems);
  std::erase_if(outputs, is_left_out);
  check_grains(c, plan, outputs, problems);
  return outputs;
}

}  // namespace twofour
