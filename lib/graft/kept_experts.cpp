#include "lib/graft/kept_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "formats/error.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/problems.h"
#include "lib/graft/module_patterns.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

/// The value of the first key that is a whole number in `config`. Empty if none is.
std::optional<int64_t> setting(const Json& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const Json& value = model_setting(config, key);
    if (value.is_number_integer()) return value.get<int64_t>();
  }
  return std::nullopt;
}

bool has_correction_bias(const Checkpoint& c, const std::vector<ExpertBlock>& blocks) {
  for (const ExpertBlock& block : blocks) {
    for (const ExpertTensor& t : block.tensors) {
      if (c.tensors()[t.tensor].name.ends_with("correction_bias")) return true;
    }
  }
  return false;
}

/// Throws Error unless the config allows `count` experts in a layer.
void check_count(const Checkpoint& c, const ExpertRules& rules, int64_t count) {
  const std::string where = (c.path() / "config.json").string();
  if (count >= rules.experts)
    throw Error(fmt::format("{}: expected fewer than the {} experts of {}, found {}", options::kExperts,
                            rules.experts, c.path().string(), count));
  if (count < rules.top_k)
    throw Error(fmt::format("{}: expected at least {} experts, the count per token of {}, found {}",
                            options::kExperts, rules.top_k, where, count));
  if (rules.groups <= 1) return;
  const int64_t each = count / rules.groups;
  if (count % rules.groups != 0 || rules.experts % rules.groups != 0) {
    throw Error(fmt::format(
        "{}: expected a multiple of the {} groups of {}, because equally many of each stay, found {} of {}",
        options::kExperts, rules.groups, where, count, rules.experts));
  }
  if (each * rules.top_groups < rules.top_k || (rules.two_a_group && each < 2)) {
    throw Error(
        fmt::format("{}: expected groups with enough experts for {} a token from {} groups of "
                    "{}{}, found {} a group",
                    options::kExperts, rules.top_k, rules.top_groups, where,
                    rules.two_a_group ? ", because the scores of two experts rank a group" : "", each));
  }
}

/// Advice for a message about a block that a file of saliencies or experts does not name.
std::string advice_for(const Checkpoint& c, const std::string& block) {
  const int64_t layers = layer_count(c);
  return draft_layer(block, layers) < 0
             ? std::string()
             : fmt::format(
                   "; it is a draft layer, which has as many experts as the others: drop it first by "
                   "twofour drop {} mtp, or add it",
                   options::kModules);
}

}  // namespace

ExpertRules expert_rules(const Checkpoint& c, const std::vector<ExpertBlock>& blocks) {
  const std::string where = (c.path() / "config.json").string();
  if (blocks.empty())
    throw Error(fmt::format("{}: expected blocks of routed experts, found none", c.path().string()));
  ExpertRules rules;
  const auto count =
      setting(c.config(), {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"});
  if (!count || promised_experts(c.config()) != *count) {
    throw Error(
        fmt::format("{}: expected one count of experts (num_experts, num_local_experts, "
                    "n_routed_experts or moe_num_experts), found {}",
                    where, count ? "several" : "none"));
  }
  rules.experts = *count;
  for (const ExpertBlock& block : blocks) {
    if (block.experts == rules.experts) continue;
    throw Error(fmt::format("{}: expected {} experts ({}), found {}", block.name, rules.experts, where,
                            block.experts));
  }
  rules.top_k = setting(c.config(), {"num_experts_per_tok", "num_experts_per_token", "top_k_experts",
                                     "moe_topk", "moe_k", "moe_top_k"})
                    .value_or(1);
  rules.groups = setting(c.config(), {"n_group", "num_expert_group"}).value_or(1);
  rules.top_groups = setting(c.config(), {"topk_group"}).value_or(rules.groups);
  rules.two_a_group = has_correction_bias(c, blocks);
  return rules;
}

void check_kept_experts(const Checkpoint& c, const std::vector<ExpertBlock>& blocks,
                        const std::map<std::string, std::vector<int64_t>>& experts,
                        const std::string& where) {
  const ExpertRules rules = expert_rules(c, blocks);
  Problems problems;
  std::set<std::string> known;
  std::optional<size_t> count;
  for (const ExpertBlock& block : blocks) {
    known.insert(block.name);
    const auto at = experts.find(block.name);
    if (at == experts.end()) {
      problems.add("{}: expected {}, found no entry of it{}", where, block.name, advice_for(c, block.name));
      continue;
    }
    const std::vector<int64_t>& kept = at->second;
    if (!count) count = kept.size();
    if (kept.size() != *count)
      problems.add("{}: {}: expected {} experts (as in the first block), found {}", where, block.name, *count,
                   kept.size());
    std::map<int64_t, int64_t> of_group;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (kept[i] < 0 || kept[i] >= block.experts || (i > 0 && kept[i] <= kept[i - 1])) {
        problems.add("{}: {}: expected different numbers from 0 to {}, found {}", where, block.name,
                     block.experts - 1, kept[i]);
        break;
      }
      ++of_group[kept[i] * rules.groups / block.experts];
    }
    for (const auto& [group, members] : of_group) {
      if (members * rules.groups == static_cast<int64_t>(kept.size())) continue;
      problems.add(
          "{}: {}: expected equally many experts of each of {} groups, found {} of {} "
          "in group {}",
          where, block.name, rules.groups, members, kept.size(), group);
      break;
    }
  }
  for (const auto& [name, kept] : experts) {
    if (!known.contains(name))
      problems.add("{}: {}: expected a block of experts of {}, found none of that name", where,
                   json_quote_short(name), c.path().string());
  }
  problems.refuse();
  check_count(c, rules, static_cast<int64_t>(count.value_or(0)));
}

namespace {

/// Appends the numbers of the `count` most salient experts among [first, last) to `kept`, ascending.
void keep_best(const std::vector<float>& saliency, int64_t first, int64_t last, int64_t count,
               std::vector<int64_t>& kept) {
  std::vector<int64_t> order;
  for (int64_t e = first; e < last; ++e) order.push_back(e);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return saliency[static_cast<size_t>(a)] > saliency[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(count));
  std::sort(order.begin(), order.end());
  kept.insert(kept.end(), order.begin(), order.end());
}

}  // namespace

Edit keep_salient_experts(const Checkpoint& c, int64_t count, const std::filesystem::path& by) {
  constexpr std::string_view kSuffix = ".saliency";
  const std::vector<ExpertBlock> blocks = find_expert_blocks(c);
  const ExpertRules rules = expert_rules(c, blocks);
  check_count(c, rules, count);
  const Checkpoint file = Checkpoint::open(by);
  Edit edit{.kind = Edit::Kind::kDropExperts};
  Problems problems;
  std::set<std::string> known;
  for (const ExpertBlock& block : blocks) {
    const std::string name = block.name + std::string(kSuffix);
    known.insert(name);
    const auto at = file.find(name);
    if (!at) {
      problems.add("{}: expected {} F32 [{}], found none{}", by.string(), name, block.experts,
                   advice_for(c, block.name));
      continue;
    }
    const TensorInfo& t = file.tensors()[*at];
    if (t.dtype != DType::kF32 || t.shape != std::vector{block.experts}) {
      problems.add("{}: {}: expected F32 [{}], found {}", by.string(), name, block.experts, describe(t));
      continue;
    }
    std::vector<float> saliency(static_cast<size_t>(block.experts));
    file.read(*at, 0, {reinterpret_cast<uint8_t*>(saliency.data()), t.bytes()});
    const auto nan = std::find_if(saliency.begin(), saliency.end(), [](float x) { return x != x; });
    if (nan != saliency.end()) {
      problems.add("{}: {}: expected numbers, found NaN of expert {}", by.string(), name,
                   nan - saliency.begin());
      continue;
    }
    const int64_t size = block.experts / rules.groups;
    for (int64_t g = 0; g < rules.groups; ++g)
      keep_best(saliency, g * size, (g + 1) * size, count / rules.groups, edit.experts[block.name]);
  }
  for (const TensorInfo& t : file.tensors()) {
    // A file of `stats collect` has statistics of linears beside.
    if (t.name.ends_with(kSuffix) && !known.contains(t.name))
      problems.add("{}: {}: expected only P.saliency of blocks of experts of {}, found another entry",
                   by.string(), json_quote_short(t.name), c.path().string());
  }
  problems.refuse();
  return edit;
}

Edit keep_named_experts(const Checkpoint& c, const std::filesystem::path& file) {
  const std::string where = file.string();
  const Json json = parse_json(where, read_text(file));
  Edit edit{.kind = Edit::Kind::kDropExperts};
  try {
    if (!json.is_object()) throw Json::exception("an object");
    for (const auto& [block, numbers] : json.items()) {
      std::vector<int64_t>& kept = edit.experts[block];
      if (!numbers.is_array()) throw Json::exception("an array");
      for (const Json& number : numbers) kept.push_back(whole_number<int64_t>(number));
      std::sort(kept.begin(), kept.end());
    }
  } catch (const Json::exception&) {
    throw Error(
        fmt::format("{}: expected an object with a list of expert numbers for each block, found "
                    "something else",
                    where));
  }
  check_kept_experts(c, find_expert_blocks(c), edit.experts, where);
  return edit;
}

}  // namespace twofour
