#include "lib/source/linears/expert_stacks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "formats/error.h"
#include "formats/families/family.h"
#include "formats/json/access.h"
#include "lib/base/names/weight_names.h"
#include "lib/source/config/model_config.h"

namespace twofour {

GateUpOrder find_gate_up_order(const Json& config, std::string_view block,
                               const std::function<bool(const std::string&)>& exists) {
  constexpr const char* kAdvice =
      "set model_type in config.json to that of a model with such stacks: gpt_oss interleaves gate and up, "
      "llama4_text and qwen3_5_moe store them as halves";
  const bool has_bias = exists(std::string(block) + ".gate_up_proj_bias");
  const char* bias = has_bias ? "gate_up_proj_bias" : "none";
  const ExpertStacks* stacks = nullptr;
  std::string_view model_type;  // model_type of a model with these stacks
  const Json* unknown = nullptr;
  for (const Json* type : model_settings(config, "model_type")) {
    const ExpertStacks* named =
        type->is_string() ? find_expert_stacks(type->get_ref<const std::string&>()) : nullptr;
    if (named == nullptr) {
      unknown = type;
      continue;
    }
    const std::string_view name = type->get_ref<const std::string&>();
    if (stacks != nullptr && stacks->rows != named->rows) {
      return {{},
              fmt::format(
                  "expected one model_type, found {} and {}, which order rows of gate and up differently; {}",
                  model_type, name, kAdvice)};
    }
    stacks = named;
    model_type = name;
  }
  if (stacks != nullptr) {
    if (stacks->has_bias == has_bias) return {stacks->rows};
    return {{},
            fmt::format("expected {} beside it (as in model_type {}), found {}: the order of gate and up "
                        "rows (interleaved or halves) is uncertain; {}",
                        stacks->has_bias ? "gate_up_proj_bias" : "no bias", model_type, bias, kAdvice)};
  }
  if (unknown == nullptr && has_bias) return {GateUpRows::kInterleaved};
  return {{},
          fmt::format("expected a model_type in config.json that determines the order of gate and up rows "
                      "(interleaved or halves), found {} (and {} beside the stack); {}",
                      unknown != nullptr ? quoted_setting(*unknown) : "none",
                      has_bias ? bias : "no gate_up_proj_bias", kAdvice)};
}

GateUpOrder find_gate_up_order(const Checkpoint& c, std::string_view block) {
  return find_gate_up_order(c.config_of_values(), block,
                            [&](const std::string& name) { return c.find(name).has_value(); });
}

GateUpRows gate_up_order(const Checkpoint& c, std::string_view block) {
  const GateUpOrder found = find_gate_up_order(c, block);
  if (!found.rows) throw Error(fmt::format("{}.gate_up_proj: {}", block, found.problem));
  return *found.rows;
}

std::vector<UncertainStack> find_uncertain_stacks(const Json& config, std::span<const TensorInfo> tensors) {
  const auto exists = [&](const std::string& name) { return find_tensor(tensors, name).has_value(); };
  std::vector<UncertainStack> uncertain;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::string_view name = tensors[i].name;
    if (tensors[i].shape.size() < 3) continue;
    for (const std::string_view suffix : {"_blocks", ".weight"}) {
      if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
    }
    const auto parsed = parse_module_name(name);
    if (!parsed || parsed->projection != Projection::kGateUp) continue;
    GateUpOrder found = find_gate_up_order(config, parsed->block, exists);
    if (!found.rows) uncertain.push_back({i, std::move(found.problem)});
  }
  return uncertain;
}

namespace {

struct BlockStacks {
  const StackShape *gate_up = nullptr, *down = nullptr;
};

/// The hidden size of a family whose loaders accept stacks; nullopt: it is unknown.
std::optional<int64_t> hidden_size_of_stacks(const Json& config) {
  const auto model = find_language_model(config);
  if (!model || !model->family->experts.stacks) return std::nullopt;
  return integer_of(*model->config, "hidden_size");
}

/// True if files of the config's family have stacks [E, K, N], and false if they have stacks [E, N, K].
/// nullopt: its files have no stacks, or no family has the model_type.
std::optional<bool> has_column_stacks(const Json& config) {
  std::optional<bool> found;
  for (const Json* type : model_settings(config, "model_type")) {
    const ExpertStacks* stacks =
        type->is_string() ? find_expert_stacks(type->get_ref<const std::string&>()) : nullptr;
    if (stacks == nullptr || stacks->files == ExpertFiles::kApart) continue;
    const bool by_columns = stacks->files == ExpertFiles::kColumnStacks;
    if (found && *found != by_columns) return std::nullopt;
    found = by_columns;
  }
  return found;
}

std::string text_of(const StackShape& s) { return fmt::format("N = {} and K = {}", s.n, s.k); }

}  // namespace

std::map<size_t, std::string> find_odd_stacks(const Checkpoint& c, std::span<const StackShape> stacks) {
  std::map<std::string, BlockStacks> blocks;
  for (const StackShape& s : stacks) {
    const auto name = parse_module_name(s.name);
    if (!name || name->kind != BlockKind::kRoutedExperts || name->expert >= 0) continue;
    BlockStacks& block = blocks[name->block];
    (name->projection == Projection::kGateUp ? block.gate_up : block.down) = &s;
  }
  std::map<size_t, std::string> odd;
  const auto add = [&](const StackShape& s, const std::string& expected) {
    odd.try_emplace(s.weight, fmt::format("{}: expected {}, found {} in {}", c.where(s.weight), expected,
                                          text_of(s), describe(c.tensors()[s.weight])));
  };
  const auto hidden = hidden_size_of_stacks(c.config_of_values());
  const auto by_columns = has_column_stacks(c.config_of_values());
  for (const auto& [name, block] : blocks) {
    const auto [gate_up, down] = block;
    if (gate_up != nullptr && hidden && gate_up->k != *hidden)
      add(*gate_up, fmt::format("K = {} as the config's hidden_size says", *hidden));
    if (down != nullptr && hidden && down->n != *hidden)
      add(*down, fmt::format("N = {} as the config's hidden_size says", *hidden));
    if (gate_up != nullptr && down != nullptr) {
      // Stacks that fit in no order are damaged, which is no matter of their order.
      const auto fit = [&](bool turns_up, bool turns_down) {
        const int64_t i2 = turns_up ? gate_up->k : gate_up->n, h = turns_up ? gate_up->n : gate_up->k;
        return h == (turns_down ? down->k : down->n) && i2 % 2 == 0 &&
               i2 / 2 == (turns_down ? down->n : down->k);
      };
      if (!fit(false, false) && (fit(true, true) || fit(true, false) || fit(false, true))) {
        constexpr const char* kPair = "[2I, H] of gate and up beside [H, I] of down, {}";
        add(*gate_up, fmt::format(kPair, text_of(*down)));
        add(*down, fmt::format(kPair, text_of(*gate_up)));
      }
    }
    for (const StackShape* s : {gate_up, down}) {
      const bool is_square = s != nullptr && s->n == s->k && c.tensors()[s->weight].shape.size() == 3;
      if (!is_square || !by_columns || *by_columns == s->k_outer) continue;
      // A stack that is not square shows the order of its block.
      const StackShape* other = s == gate_up ? down : gate_up;
      if (other != nullptr && other->n != other->k && other->k_outer == s->k_outer) continue;
      add(*s, fmt::format("a square matrix stored [{}] as files of its family have it",
                          s->k_outer ? "E, N, K" : "E, K, N"));
    }
  }
  return odd;
}

namespace {

/// The experts of a block, by their weights.
struct ExpertWeights {
  std::set<int64_t> experts;
  int64_t in_stack = 0;
  std::vector<size_t> weights;
};

std::map<std::string, ExpertWeights> find_expert_weights(const Checkpoint& c) {
  std::map<std::string, ExpertWeights> blocks;
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const TensorInfo& t = c.tensors()[i];
    if (t.shape.size() < 2 || t.name.find("expert") == t.name.npos) continue;  // fast, as for most tensors
    const auto weight = weight_name(t);
    const auto name = weight ? parse_module_name(weight->linear) : std::nullopt;
    if (!name || name->kind != BlockKind::kRoutedExperts) continue;
    ExpertWeights& block = blocks[name->block];
    if (name->expert >= 0) block.experts.insert(name->expert);
    if (name->expert < 0 && t.shape.size() > 2) block.in_stack = std::max(block.in_stack, t.shape[0]);
    block.weights.push_back(i);
  }
  return blocks;
}

}  // namespace

std::vector<OddExperts> find_odd_experts(const Checkpoint& c) {
  std::vector<OddExperts> odd;
  const std::set<int64_t> stated = stated_expert_counts(c.config_of_values());
  if (stated.empty()) return odd;
  const int64_t most = *stated.rbegin();
  for (auto& [name, block] : find_expert_weights(c)) {
    const int64_t apart = static_cast<int64_t>(block.experts.size());
    const int64_t last = block.experts.empty() ? 0 : *block.experts.rbegin() + 1;
    const int64_t count = std::max(apart, block.in_stack);
    const bool is_odd = std::max(last, count) > most || (c.is_directory() && !stated.contains(count));
    if (count == 0 || !is_odd) continue;
    odd.push_back({name, std::move(block.weights),
                   fmt::format("{}: expected {} experts (config.json), found {}{}", name, most, count,
                               last > apart ? fmt::format(", the last with number {}", last - 1) : "")});
  }
  return odd;
}

}  // namespace twofour
