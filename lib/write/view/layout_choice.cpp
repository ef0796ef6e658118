#include "lib/write/view/layout_choice.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "formats/layouts/layouts.h"
#include "lib/recipe/selection/chooser.h"
#include "lib/source/config/model_config.h"
#include "lib/write/encode/quantize_select.h"
#include "lib/write/plan/method.h"

namespace twofour {
namespace {

/// The linears of a block.
struct LinearBlock {
  BlockKind kind;
  std::vector<size_t> linears;
};

std::map<std::string, LinearBlock> find_linear_blocks(const std::vector<Linear>& linears) {
  std::map<std::string, LinearBlock> blocks;
  for (size_t i = 0; i < linears.size(); ++i) {
    const auto name = parse_module_name(linears[i].name);
    if (!name) continue;
    const bool in_stack = name->kind == BlockKind::kRoutedExperts && name->expert < 0;
    if (in_stack != linears[i].stacked) continue;
    LinearBlock& block = blocks[std::string(name->block)];
    block.kind = name->kind;
    block.linears.push_back(i);
  }
  return blocks;
}

/// Chooses the computed linears of one rule.
class RuleChoice {
 public:
  RuleChoice(const Checkpoint& source, const std::vector<Linear>& linears,
             const std::map<std::string, LinearBlock>& blocks, std::vector<bool>& decided)
      : linears_(linears), blocks_(blocks), decided_(decided), layers_(model_layers(source.config())) {
    is_moe_ = std::any_of(blocks.begin(), blocks.end(), [&](auto& b) {
      return b.second.kind == BlockKind::kRoutedExperts && !is_left(b.second.linears[0]);
    });
  }

  ComputedLinears choose(const Rule& rule) {
    Chooser chooser(rule.selection, layers_);
    const bool names_set = !rule.selection.include.empty();
    std::vector<size_t> named, usual, nvfp4;
    std::vector<bool> in_block(linears_.size());
    bool has_nvfp4 = false;  // of the default set
    for (const auto& [name, block] : blocks_) {
      const bool is_default = block.kind == (is_moe_ ? BlockKind::kRoutedExperts : BlockKind::kDenseMlp);
      if (!chooser.chooses(name, is_default)) continue;
      const bool is_named = names_set || chooser.adds(name) || !is_default;
      for (const size_t i : block.linears) {
        in_block[i] = true;
        if (decided_[i]) continue;
        decided_[i] = true;
        const bool is_nvfp4 = linears_[i].nvfp4.has_value();
        has_nvfp4 = has_nvfp4 || (is_nvfp4 && !is_named);
        if (is_nvfp4) nvfp4.push_back(i);
        if (!is_nvfp4 && (is_named || !is_left(i))) (is_named ? named : usual).push_back(i);
      }
    }
    for (size_t i = 0; i < linears_.size(); ++i) {
      const bool is_single = !in_block[i] && !decided_[i] && !linears_[i].stacked;
      if (!is_single || !chooser.adds(linears_[i].name)) continue;
      const bool is_float = !linears_[i].format->coded;
      if (is_float && chooser.chose_by_role() && is_left_of_role(linears_[i].name, layers_)) continue;
      decided_[i] = true;
      (linears_[i].nvfp4.has_value() ? nvfp4 : named).push_back(i);
    }
    if (!has_nvfp4) named.insert(named.end(), usual.begin(), usual.end());
    std::sort(named.begin(), named.end());
    ComputedLinears chosen{std::move(named), {}};
    if (makes_sparse_layout(rule)) choose_to_prune(rule, std::move(nvfp4), chosen);
    return chosen;
  }

  /// Marks the linears that a rule without a layout takes, by its names and roles.
  void pass(const Rule& rule) {
    Chooser chooser(rule.selection, layers_);
    for (size_t i = 0; i < linears_.size(); ++i) {
      if (chooser.chooses(linears_[i].name, true)) decided_[i] = true;
    }
  }

 private:
  /// Chooses linears to prune. A gate and its up are packed together, so statistics prune both or neither.
  void choose_to_prune(const Rule& rule, std::vector<size_t> nvfp4, ComputedLinears& chosen) const {
    const bool solves = rule.statistics && rule.method != SolveBy::kMagnitude;
    if (!solves && !rule.masks) return;
    std::sort(nvfp4.begin(), nvfp4.end());
    const auto pair_of = [&](size_t i) {
      const auto name = parse_module_name(linears_[i].name);
      const bool pairs =
          name && (name->projection == Projection::kGate || name->projection == Projection::kUp);
      return pairs ? std::string(name->block) + "." + std::to_string(name->expert) : linears_[i].name;
    };
    std::set<std::string> left;
    for (const size_t i : nvfp4) {
      const bool is_served =
          rule.masks ||
          choose_solving(*rule.statistics, linears_[i].name, rule.solving_settings(), true).method !=
              Solving::Method::kPlain;
      if (!is_served) left.insert(pair_of(i));
    }
    for (const size_t i : nvfp4) {
      const bool stays = left.contains(pair_of(i));
      chosen.without_statistics += stays;
      if (!stays) chosen.to_prune.push_back(i);
    }
  }

  bool is_left(size_t i) const {
    return !linears_[i].format->coded && is_left_in_floats(linears_[i].name, layers_);
  }

  const std::vector<Linear>& linears_;
  const std::map<std::string, LinearBlock>& blocks_;
  std::vector<bool>& decided_;
  const int64_t layers_;
  bool is_moe_ = false;
};

}  // namespace

std::vector<ComputedLinears> choose_computed(const Checkpoint& source, const std::vector<Linear>& linears,
                                             const Recipe& recipe) {
  std::vector<ComputedLinears> chosen(recipe.rules.size());
  std::vector<bool> decided(linears.size());
  const auto blocks = find_linear_blocks(linears);
  RuleChoice choice(source, linears, blocks, decided);
  for (size_t r = 0; r < recipe.rules.size(); ++r) {
    if (makes_layout(recipe.rules[r])) {
      chosen[r] = choice.choose(recipe.rules[r]);
    } else {
      choice.pass(recipe.rules[r]);
    }
  }
  return chosen;
}

bool makes_layout(const Rule& rule) {
  bool found = false;
  for_each_layout([&]<class L>() { found = found || rule.to == L::name; });
  return found;
}

bool can_solve(const Rule& rule) {
  const MethodRow* row = find_method(rule.to);
  constexpr unsigned kSolved = kToNvfp4 | kToFp8 | kToMx | kToLayout;
  return rule.to == "prune" || (row != nullptr && (row->kind & kSolved) != 0);
}

bool makes_sparse_layout(const Rule& rule) { return !layout_pattern(rule.to).empty(); }

}  // namespace twofour
