#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "formats/layouts/layouts.h"
#include "lib/base/names/pattern.h"
#include "lib/source/linears/linears.h"
#include "lib/write/encode/encode_rules.h"
#include "lib/write/methods/layout_matrix.h"
#include "lib/write/methods/method_list.h"

namespace twofour {
namespace {

OutputScales read_scales(const Checkpoint& c, const OutputMatrix& target, Problems& problems) {
  OutputScales scales;
  for (const SourceRows& s : target.sources) {
    const Nvfp4Linear& m = c.nvfp4_modules()[s.module];
    const bool is_computed = c.is_computed(m);
    if (is_computed) scales.computed.resize(target.sources.size());
    if (is_computed) scales.computed[scales.own.size()] = true;
    const SourceScale scale = is_computed ? SourceScale{0, 1} : read_global_scale(c, m, s.expert, problems);
    scales.raw_bits.push_back(scale.raw_bits);
    scales.own.push_back(scale.multiplier);
  }
  for (size_t i = 0; i < scales.own.size(); i += target.sources_per_expert) {
    scales.folded.push_back(*std::max_element(&scales.own[i], &scales.own[i] + target.sources_per_expert));
  }
  return scales;
}

void check_fold(const OutputMatrix& target, const OutputScales& scales, const Rule& rule, Problems& problems,
                Findings& findings) {
  if (target.sources_per_expert < 2) return;
  size_t unequal = 0;
  double largest = 1;
  for (size_t e = 0; e < scales.folded.size(); ++e) {
    const float gate = scales.own[2 * e], up = scales.own[2 * e + 1];
    if (gate == up) continue;
    ++unequal;
    largest =
        std::max(largest, static_cast<double>(std::max(gate, up)) / static_cast<double>(std::min(gate, up)));
    if (rule.fold == Fold::kStrict) {
      problems.add(
          fmt::format("{}: expert {}: expected equal global scales of gate and up ({}), found {} and {}",
                      target.name, e, rule.name(keys::kFold, "strict"), gate, up));
    }
  }
  if (unequal == 0) return;
  findings.push_back(
      {Severity::kWarning, "unequal-global-scales", target.name,
       fmt::format(
           "gate and up differ in {} of {} experts, by a factor of up to {:.6g}: folded to the larger",
           unequal, scales.folded.size(), largest)});
}

/// Checks that an expert's gate and up are either both quantized first or both not. If both are, they must
/// share a global scale.
void check_computed(const Checkpoint& c, const OutputMatrix& target, const OutputScales& scales,
                    Problems& problems) {
  for (size_t i = 0; i + 1 < target.sources.size() && target.sources_per_expert == 2; i += 2) {
    if (scales.is_computed(i) == scales.is_computed(i + 1)) continue;
    const auto& name = [&](size_t s) { return c.nvfp4_modules()[target.sources[s].module].name; };
    const size_t stored = scales.is_computed(i) ? i + 1 : i;
    problems.add(
        fmt::format("{}: expected NVFP4 like {}, found another format, which needs a separate global scale: "
                    "exclude the block or quantize all of it",
                    name(i == stored ? i + 1 : i), name(stored)));
  }
}

/// Adds a problem if the layout does not support the target. g8 interleaves eight rows of gate with eight
/// rows of up.
void check_layout(const OutputMatrix& target, const std::string& layout, Problems& problems) {
  with_layout(layout, [&]<class L>() {
    if constexpr (L::pairs_gate_and_up) {
      if (target.name.ends_with(".w13") && !target.shape.gated) {
        problems.add(
            fmt::format("{}: expected gate and up, because {} pairs their rows, found only up, as in models "
                        "without gates; v7 and v7-packed support it",
                        target.name, layout));
      } else if (target.shape.gated && target.shape.n % 16 != 0) {
        problems.add(fmt::format("{}: expected a multiple of 8 rows of gate, found {}", target.name,
                                 target.shape.n / 2));
      }
    }
  });
}

/// "model.layers.7.mlp" becomes "model.layers.*.mlp".
std::string generalize(const std::string& name) {
  std::string pattern;
  for (size_t i = 0; i <= name.size();) {
    const size_t dot = std::min(name.find('.', i), name.size());
    const std::string piece = name.substr(i, dot - i);
    const bool number = !piece.empty() &&
                        std::all_of(piece.begin(), piece.end(), [](char c) { return c >= '0' && c <= '9'; });
    pattern += (pattern.empty() ? "" : ".") + (number ? std::string("*") : piece);
    i = dot + 1;
  }
  return pattern;
}

/// Blocks as globs. A block has its name instead if the glob would also match modules that are not converted.
std::vector<std::string> converted_patterns(const Checkpoint& c, const std::vector<OutputMatrix>& targets) {
  std::map<std::string, std::set<std::string>> blocks;
  std::set<size_t> taken;
  for (const OutputMatrix& t : targets) {
    blocks[generalize(t.block)].insert(t.block);
    for (const SourceRows& s : t.sources) taken.insert(s.module);
  }
  std::vector<std::string> patterns;
  for (const auto& [glob, names] : blocks) {
    const NamePattern pattern(glob), below(glob + ".*");
    bool exact = names.size() == 1;
    for (size_t i = 0; i < c.nvfp4_modules().size() && !exact; ++i) {
      const std::string& name = c.nvfp4_modules()[i].name;
      exact = !taken.count(i) && (pattern.matches(name) || below.matches(name));
    }
    if (exact) {
      patterns.insert(patterns.end(), names.begin(), names.end());
    } else {
      patterns.push_back(glob);
    }
  }
  return patterns;
}

/// The source's tensors from which a target is made, and the global scale of each of its sources.
std::pair<std::vector<size_t>, std::vector<size_t>> tensors_of(const Checkpoint& c,
                                                               const OutputMatrix& target) {
  std::set<size_t> all;
  std::vector<size_t> global_scales;
  for (const SourceRows& s : target.sources) {
    const Nvfp4Linear& m = c.nvfp4_modules()[s.module];
    all.insert({m.codes, m.block_scale, m.global_scale});
    global_scales.push_back(m.global_scale);
  }
  return {{all.begin(), all.end()}, std::move(global_scales)};
}

/// Warns of statistics that are not used. Statistics choose weights that are quantized or pruned. NVFP4 in a
/// dense layout is neither quantized nor pruned.
void warn_of_unused_statistics(const Checkpoint& c, const std::vector<OutputMatrix>& targets,
                               Findings& findings) {
  for (const OutputMatrix& t : targets) {
    for (const SourceRows& s : t.sources) {
      if (c.is_computed(c.nvfp4_modules()[s.module])) return;
    }
  }
  findings.push_back(
      {Severity::kWarning, "statistics-unused", c.path().string(),
       fmt::format("expected weights to choose by statistics, found none in {}: all stay unchanged",
                   counted(targets.size(), "matrix", "matrices"))});
}

/// Warns of statistics for v7-packed, which has nearly the size of a dense format that is better.
void warn_of_dense_size(const Checkpoint& c, Findings& findings) {
  // SmolLM2-135M-Instruct, guided statistics in one pass, KL over 4,092 predictions.
  findings.push_back({Severity::kWarning, "dense-is-better", c.path().string(),
                      "v7-packed has 4 bits a weight: MXFP4 chosen by statistics has 4.25 and is better (on "
                      "SmolLM2-135M its KL is 0.144; that of 2:4 is 1.24)"});
}

/// Warns of input scales, which are copied: kernels of layouts do not quantize activations.
void warn_of_unused_input_scales(const Checkpoint& c, const std::vector<OutputMatrix>& targets,
                                 const std::string& layout, Findings& findings) {
  std::set<size_t> modules;
  for (const OutputMatrix& t : targets) {
    for (const SourceRows& s : t.sources) {
      if (c.nvfp4_modules()[s.module].input_scale) modules.insert(s.module);
    }
  }
  if (modules.empty()) return;
  findings.push_back(
      {Severity::kNote, "input-scales-unused", c.path().string(),
       fmt::format("{} {} input scales, which are copied but not used: kernels of {} take activations that "
                   "are not quantized (W4A16 instead of W4A4)",
                   counted(modules.size(), "module"), modules.size() == 1 ? "has" : "have", layout)});
}

/// Packs matrices in a layout.
class ToLayout : public Method {
 public:
  explicit ToLayout(const Rule& rule) : layout_(rule.to) {}

  void plan(Rule& rule, Planner& planner) const override {
    const Checkpoint& c = planner.source;
    std::vector<OutputMatrix> targets = select_matrices(c, rule.selection);
    const size_t matched = targets.size();
    std::erase_if(targets, [&](const OutputMatrix& t) {
      return planner.is_taken(c.nvfp4_modules()[t.sources[0].module].codes);
    });
    if (targets.empty()) {
      planner.problems.refuse();
      throw Error(fmt::format(
          "expected matrices that no earlier rule matches, found that earlier rules match all {}", matched));
    }
    if (rule.label.empty() && rule.statistics) warn_of_unused_statistics(c, targets, planner.findings);
    if (rule.statistics && layout_ == KMajorPacked::name) warn_of_dense_size(c, planner.findings);
    warn_of_unused_input_scales(c, targets, layout_, planner.findings);
    LayoutGroup group{layout_, {}, converted_patterns(c, targets)};
    with_layout(layout_, [&]<class L>() { group.pattern = L::pattern; });
    const bool converts_experts =
        std::any_of(targets.begin(), targets.end(), [](const OutputMatrix& t) { return t.shape.e > 1; });
    for (OutputMatrix& target : targets) {
      OutputScales scales = read_scales(c, target, planner.problems);
      check_layout(target, layout_, planner.problems);
      check_computed(c, target, scales, planner.problems);
      if (!scales.computed.empty()) complete_quantize_settings(rule);
      check_fold(target, scales, rule, planner.problems, planner.findings);
      const bool k_outer = c.nvfp4_modules()[target.sources[0].module].k_outer;
      const Tiling tiling = make_tiling(target, layout_, k_outer, planner.limits);
      auto [tensors, global_scales] = tensors_of(c, target);
      planner.add(std::make_unique<LayoutMatrix>(std::move(target), layout_, std::move(scales), tiling,
                                                 rule.fold == Fold::kAny ? "" : rule.name(keys::kFold, "any"),
                                                 std::move(tensors), std::move(global_scales)));
    }
    planner.config.add_layout(std::move(group));
    // In recipes, drafts have a separate role, and a rule may be only for other modules.
    const bool by_flags = rule.label.empty();
    if (by_flags || converts_experts) planner.watch_experts({true, by_flags, true});
  }

 private:
  std::string layout_;
};

}  // namespace

std::unique_ptr<Method> make_to_layout(Rule& rule) {
  const Chosen<PrunePattern> pattern = layout_pattern(rule.to);
  if (pattern.empty() && !rule.mask_hash.empty()) {
    throw Error(fmt::format("{}: expected a layout that holds a pattern, found {}", options::kMask, rule.to));
  }
  complete_solving_settings(rule, !pattern.empty());
  Rule quantized = rule;
  if (rule.solves() || !rule.mask_hash.empty()) {
    if (!rule.pattern.empty() && rule.pattern != pattern) {
      throw Error(fmt::format("{}: expected {} with {}, found {}", rule.name(keys::kPattern),
                              pattern.empty() ? "none" : fmt::format("{} or none", pattern.text()), rule.to,
                              rule.pattern.text()));
    }
    quantized.pattern = pattern;
  }
  complete_quantize_settings(quantized);
  make_quantize(quantized);  // this throws Error on unknown values of settings
  return std::make_unique<ToLayout>(rule);
}

}  // namespace twofour
