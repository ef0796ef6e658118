#include "lib/encode/loader_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "formats/error.h"
#include "formats/naming.h"
#include "lib/findings/and_more.h"

namespace twofour {
namespace {

/// What loaders of a dialect say to blocks that do not divide N or K.
struct OddBlockRow {
  std::string_view dialect;
  const char* loaders;
};
/// Tried with vLLM 0.33 and transformers 5.17; formats/README.md, "What loads where".
constexpr OddBlockRow kOddBlocks[] = {
    {"compressed-tensors", "vLLM refuses others, and transformers loads and cannot run them"},
    {"modelopt", "vLLM refuses others"},
    {"deepseek", "transformers refuses others, and vLLM does where it splits or stacks them"},
    {"deepseek-v4", "no engine was seen to load others"},
};

/// Rows of the matrices that a linear becomes.
int64_t matrix_rows(const Linear& m) {
  const auto name = parse_module_name(m.name);
  return name && name->projection == Projection::kGateUp ? m.n / 2 : m.n;
}

bool is_odd(const Linear& m, const EncodeRule& rule) {
  return matrix_rows(m) % rule.scheme.rows != 0 || m.k % rule.scheme.cols != 0;
}

bool is_routed(const Linear& m) {
  const auto name = parse_module_name(m.name);
  return name && name->kind == BlockKind::kRoutedExperts;
}

/// Routed experts in ModelOpt's FP8 by rows or blocks.
void refuse_experts(const Checkpoint& c, const std::vector<Linear>& modules, const EncodeRule& rule,
                    const std::vector<size_t>& chosen, Problems& problems) {
  if (rule.dialect->name != std::string_view("modelopt") || rule.scheme.granularity == Granularity::kTensor)
    return;
  std::vector<size_t> routed;
  std::copy_if(chosen.begin(), chosen.end(), std::back_inserter(routed),
               [&](size_t i) { return is_routed(modules[i]); });
  if (routed.empty()) return;
  problems.add(fmt::format(
      "{}: expected {} for routed experts in the modelopt dialect, for its FP8 of experts has one scale a "
      "matrix in every engine that reads it (vLLM 0.33), found {}{}; {} has rows and blocks",
      c.where(modules[routed[0]].weight), rule.words->name(keys::kGranularity, "tensor"),
      rule.words->granularity.text(), and_more(routed.size(), " ({} more are like this)"),
      rule.words->name(keys::kDialect, "compressed-tensors")));
}

/// Odd linears among the chosen, with those that engines fuse with them.
std::set<size_t> odd_groups(const std::vector<Linear>& modules, const EncodeRule& rule,
                            const std::vector<size_t>& chosen) {
  std::vector<Linear> own;
  for (const size_t i : chosen) own.push_back(modules[i]);
  std::set<size_t> odd;
  for (const std::vector<size_t>& group : fused_groups(own)) {
    if (std::any_of(group.begin(), group.end(), [&](size_t i) { return is_odd(own[i], rule); })) {
      for (const size_t i : group) odd.insert(chosen[i]);
    }
  }
  return odd;
}

void refuse_odd(const Checkpoint& c, const std::vector<Linear>& modules, const EncodeRule& rule,
                const std::set<size_t>& odd, Problems& problems) {
  const auto first = std::find_if(odd.begin(), odd.end(), [&](size_t i) { return is_odd(modules[i], rule); });
  const auto count = static_cast<size_t>(
      std::count_if(odd.begin(), odd.end(), [&](size_t i) { return is_odd(modules[i], rule); }));
  const auto row = std::find_if(std::begin(kOddBlocks), std::end(kOddBlocks),
                                [&](const OddBlockRow& r) { return r.dialect == rule.dialect->name; });
  problems.add(
      fmt::format("{}: expected N a multiple of {} and K of {} for blocks in the {} dialect, for {}, found "
                  "[{}, {}]{}; {} leaves such linears as they are, write writes them all the same",
                  c.where(modules[*first].weight), rule.scheme.rows, rule.scheme.cols, rule.dialect->name,
                  row->loaders, matrix_rows(modules[*first]), modules[*first].k,
                  and_more(count, " ({} more are like this)"), rule.words->name(keys::kOddBlocks, "keep")));
}

void keep_odd(const Checkpoint& c, const std::vector<Linear>& modules, const std::set<size_t>& odd,
              const EncodeRule& rule, std::vector<size_t>& chosen, Findings& findings) {
  std::erase_if(chosen, [&](size_t i) { return odd.contains(i); });
  findings.push_back(
      {Severity::kNote, "odd-blocks", c.path().string(),
       fmt::format("{} linears that blocks of {} x {} do not divide, or fused with such, are left "
                   "as they are, the first {}",
                   odd.size(), rule.scheme.rows, rule.scheme.cols, modules[*odd.begin()].name)});
}

}  // namespace

void apply_loader_limits(const Checkpoint& c, const std::vector<Linear>& modules, const EncodeRule& rule,
                         std::vector<size_t>& chosen, Findings& findings, Problems& problems) {
  if (!rule.is_tiled()) return;
  refuse_experts(c, modules, rule, chosen, problems);
  const OddBlocks odd_blocks = rule.words->odd_blocks.or_default();
  if (rule.scheme.granularity != Granularity::kBlock || odd_blocks == OddBlocks::kWrite) return;
  const std::set<size_t> odd = odd_groups(modules, rule, chosen);
  if (odd.empty()) return;
  if (odd_blocks == OddBlocks::kRefuse) {
    refuse_odd(c, modules, rule, odd, problems);
  } else {
    keep_odd(c, modules, odd, rule, chosen, findings);
  }
}

}  // namespace twofour
