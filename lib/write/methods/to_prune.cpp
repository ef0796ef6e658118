#include <fmt/format.h>

#include <map>
#include <set>

#include "formats/error.h"
#include "lib/base/names/pattern.h"
#include "lib/recipe/selection/output_matrix.h"
#include "lib/recipe/statistics/check_statistics.h"
#include "lib/source/linears/linears.h"
#include "lib/write/encode/encode_rules.h"
#include "lib/write/methods/method_list.h"
#include "lib/write/methods/nvfp4_modules.h"
#include "lib/write/methods/quantize_groups.h"
#include "lib/write/plan/config_texts.h"

namespace twofour {

ModuleRewrite::Scales read_module_scales(const Checkpoint& c, const Nvfp4Linear& m, Problems& problems) {
  ModuleRewrite::Scales scales;
  const auto stored = static_cast<int64_t>(c.tensors()[m.global_scale].bytes() / sizeof(float));
  for (int64_t e = 0; e < m.e; ++e) {
    const SourceScale scale = read_global_scale(c, m, e, problems);
    if (e < stored) scales.raw_bits.push_back(scale.raw_bits);
    scales.multipliers.push_back(scale.multiplier);
  }
  return scales;
}

void refuse_large(const TensorRewrite& rewrite, size_t tensor, Planner& planner) {
  if (rewrite.grain() <= planner.limits.piece) return;
  planner.problems.add(fmt::format("{}: expected at most {} bytes that are computed together, found {}",
                                   planner.source.where(tensor), planner.limits.piece, rewrite.grain()));
}

namespace {

/// The default set of modules to prune, which is the set that a 2:4 layout would convert.
std::set<size_t> pruned_modules(Planner& planner, const Selection& selection) {
  std::set<size_t> modules;
  const std::vector<OutputMatrix> targets = select_matrices(planner.source, selection);
  for (const OutputMatrix& target : targets) {
    for (const SourceRows& s : target.sources) modules.insert(s.module);
  }
  return modules;
}

/// Prunes codes in the source's own dialect.
class Prune : public Method {
 public:
  explicit Prune(PrunePattern pattern) : pattern_(pattern) {}

  void plan(Rule& rule, Planner& planner) const override {
    const Checkpoint& c = planner.source;
    std::set<size_t> modules = pruned_modules(planner, rule.selection);
    if (rule.masks) {
      plan_groups(rule, planner, modules, [](const Nvfp4Linear&) { return true; });
    } else if (rule.statistics && rule.method != SolveBy::kMagnitude) {
      solve(rule, planner, modules);
    }
    for (const size_t i : modules) {
      const Nvfp4Linear& m = c.nvfp4_modules()[i];
      auto module = std::make_unique<ModuleRewrite>(m, rule.to, read_module_scales(c, m, planner.problems),
                                                    true, std::nullopt);
      auto codes = std::make_unique<PrunedCodes>(m, pattern_);
      refuse_large(*codes, m.codes, planner);
      module->add({c.tensors()[m.codes], m.codes, std::move(codes), true});
      module->add(
          {c.tensors()[m.block_scale], m.block_scale, std::make_unique<CopiedTensor>(m.block_scale, true)});
      module->add({c.tensors()[m.global_scale], m.global_scale,
                   std::make_unique<CopiedTensor>(m.global_scale, false)});
      planner.add(std::move(module));
    }
    if (c.is_view()) {
      planner.config.set_texts(original_texts(c));
    } else {
      planner.config.keep();
    }
  }
  std::string file_format(const Rule&) const override { return "nvfp4"; }
  bool rewrites_config() const override { return false; }

 private:
  /// Plans the modules for which `takes` is true as groups that are encoded. Removes them from `modules`.
  /// Returns true if there were any.
  template <class Takes>
  static bool plan_groups(const Rule& rule, Planner& planner, std::set<size_t>& modules, Takes&& takes) {
    std::vector<size_t> taken;
    for (const size_t i : modules) {
      const Nvfp4Linear& m = planner.source.nvfp4_modules()[i];
      if (m.dialect->stacked || takes(m)) taken.push_back(i);
    }
    plan_pruned_groups(rule, taken, false, planner);
    planner.problems.refuse();
    std::erase_if(modules,
                  [&](size_t i) { return planner.is_planned(planner.source.nvfp4_modules()[i].codes); });
    return !taken.empty();
  }

  /// Plans the modules whose statistics suffice, and removes them from `modules`.
  static void solve(const Rule& rule, Planner& planner, std::set<size_t>& modules) {
    const Checkpoint& c = planner.source;
    const size_t all = modules.size();
    const bool any = plan_groups(rule, planner, modules, [&](const Nvfp4Linear& m) {
      return choose_solving(*rule.statistics, m.name, rule.solving_settings(), true).method !=
             Solving::Method::kPlain;
    });
    if (!any) {
      hold_statistics(*rule.statistics, c, planner.linears(), planner.problems);
      planner.problems.refuse();
      throw Error(fmt::format("{}: expected statistics of {} to prune, found none with tokens",
                              rule.statistics->path().string(), counted(all, "module")));
    }
    if (modules.empty()) return;
    planner.findings.push_back(
        {Severity::kWarning, "few-statistics", c.path().string(),
         fmt::format("{} have no statistics with tokens and are pruned by magnitude, the first {}",
                     counted(modules.size(), "module"), c.nvfp4_modules()[*modules.begin()].name)});
  }

  PrunePattern pattern_;
};

}  // namespace

std::unique_ptr<Method> make_prune(Rule& rule) {
  rule.pattern = rule.pattern.or_default();
  complete_solving_settings(rule, true);
  const bool says_how = rule.sweeps >= 0 || rule.shrink || rule.scale_search >= 0 ||
                        (!rule.method.empty() && rule.method != SolveBy::kMagnitude);
  if (rule.has_statistics() || !rule.mask_hash.empty() || says_how)
    prune_rule(rule, "modelopt");  // this throws Error on invalid settings
  return std::make_unique<Prune>(*rule.pattern);
}

}  // namespace twofour
