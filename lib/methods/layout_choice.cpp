#include "lib/methods/layout_choice.h"

#include <algorithm>
#include <string_view>

#include "formats/layouts/layouts.h"
#include "lib/methods/quantize_select.h"

namespace twofour {
namespace {

constexpr const char *kDefaultSet = "default set", *kAlso = "--also";

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

/// Chooses for one rule.
class RuleChoice {
 public:
  RuleChoice(const Checkpoint& source, const std::vector<Linear>& linears,
             const std::map<std::string, LinearBlock>& blocks, std::vector<bool>& decided)
      : linears_(linears), blocks_(blocks), decided_(decided), layers_(layer_count(source.config())) {
    is_moe_ = std::any_of(blocks.begin(), blocks.end(), [&](auto& b) {
      return b.second.kind == BlockKind::kRoutedExperts && !is_left(b.second.linears[0]);
    });
  }

  std::vector<size_t> choose(const Rule& rule) {
    LayoutChoice choice(rule.selection, is_moe_, layers_);
    std::vector<size_t> named, usual;
    std::vector<bool> in_block(linears_.size());
    bool has_nvfp4 = false;  // the default set
    for (const auto& [name, block] : blocks_) {
      const char* why = choice.block(name, block.kind, linears_[block.linears[0]].name);
      if (why == nullptr) continue;
      for (const size_t i : block.linears) {
        in_block[i] = true;
        if (decided_[i]) continue;
        decided_[i] = true;
        const bool is_nvfp4 = linears_[i].format == WeightFormat::kNvfp4;
        const bool is_named = LayoutChoice::names_it(why);
        has_nvfp4 = has_nvfp4 || (is_nvfp4 && !is_named);
        if (!is_nvfp4 && (is_named || !is_left(i))) (is_named ? named : usual).push_back(i);
      }
    }
    for (size_t i = 0; i < linears_.size(); ++i) {
      const bool is_single = !in_block[i] && !decided_[i] && !linears_[i].stacked;
      if (!is_single || choice.single(linears_[i].name) == nullptr) continue;
      decided_[i] = true;
      if (linears_[i].format != WeightFormat::kNvfp4) named.push_back(i);
    }
    if (!has_nvfp4) named.insert(named.end(), usual.begin(), usual.end());
    std::sort(named.begin(), named.end());
    return named;
  }

  /// What a rule that makes no layout takes, by its names and roles.
  void pass(const Rule& rule) {
    LayoutChoice choice(rule.selection, is_moe_, layers_);
    const Selection& s = rule.selection;
    const bool takes_usual = s.from_default && s.include.empty();
    Matcher include(s.include), exclude(s.exclude);
    for (size_t i = 0; i < linears_.size(); ++i) {
      const std::string& name = linears_[i].name;
      const bool is_taken = takes_usual || choice.single(name) != nullptr || include.matches(name);
      if (is_taken && !exclude.matches(name)) decided_[i] = true;
    }
  }

 private:
  bool is_left(size_t i) const {
    return linears_[i].format == WeightFormat::kFloat && is_left_in_floats(linears_[i].name, layers_);
  }

  const std::vector<Linear>& linears_;
  const std::map<std::string, LinearBlock>& blocks_;
  std::vector<bool>& decided_;
  const int64_t layers_;
  bool is_moe_ = false;
};

}  // namespace

LayoutChoice::LayoutChoice(const Selection& selection, bool is_moe, int64_t layers)
    : selection_(selection),
      default_kind_(is_moe ? BlockKind::kRoutedExperts : BlockKind::kDenseMlp),
      layers_(layers),
      include_(selection.include),
      exclude_(selection.exclude),
      also_(selection.also) {}

bool LayoutChoice::has_role(const std::string& module) const {
  if (selection_.roles.empty()) return false;
  const auto role = module_role(module, layers_);
  return role && std::find(selection_.roles.begin(), selection_.roles.end(), *role) != selection_.roles.end();
}

const char* LayoutChoice::block(const std::string& name, BlockKind kind, const std::string& module) {
  const bool by_default = selection_.from_default && kind == default_kind_ &&
                          (selection_.include.empty() || include_.matches(name));
  const bool added = also_.matches(name) || has_role(module);
  if ((!by_default && !added) || exclude_.matches(name)) return nullptr;
  return !by_default ? kAlso : selection_.include.empty() ? kDefaultSet : "--include";
}

const char* LayoutChoice::single(const std::string& module) {
  const bool is_taken = (also_.matches(module) || has_role(module)) && !exclude_.matches(module);
  return is_taken ? kAlso : nullptr;
}

bool LayoutChoice::names_it(const char* why) { return why != nullptr && why != kDefaultSet; }

void LayoutChoice::refuse_unused() const {
  const char* expected = "experts or an MLP as a whole (model.layers.0.mlp.experts)";
  include_.refuse_unused("--include", expected);
  exclude_.refuse_unused("--exclude", expected);
  also_.refuse_unused("--also", expected);
}

std::vector<std::vector<size_t>> choose_to_quantize(const Checkpoint& source,
                                                    const std::vector<Linear>& linears,
                                                    const Recipe& recipe) {
  std::vector<std::vector<size_t>> chosen(recipe.rules.size());
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

}  // namespace twofour
