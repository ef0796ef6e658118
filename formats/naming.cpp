#include "formats/naming.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

namespace twofour {

namespace {

// The rules are tried in this order. The first rule that matches counts.
constexpr NamingRule kRules[] = {
    {"Qwen2-MoE, Qwen3-MoE, Qwen3-Next, Qwen3.5, gpt-oss", "mlp.experts", "mlp.shared_expert", "mlp",  //
     "gate_proj", "up_proj", "down_proj", "gate_up_proj", "down_proj"},
    {"DeepSeek-V2/V3/R1, Kimi-K2, GLM-4.x, GLM-5, dots1, ERNIE-4.5", "mlp.experts", "mlp.shared_experts",
     "mlp", "gate_proj", "up_proj", "down_proj", nullptr, nullptr},
    {"DeepSeek-V4", "ffn.experts", "ffn.shared_experts", "ffn", "w1", "w3", "w2", nullptr, nullptr},
    {"Mixtral, MiniMax, Granite-MoE", "block_sparse_moe.experts", "block_sparse_moe.shared_experts",
     nullptr,  //
     "w1", "w3", "w2", "input_linear", "output_linear", "block_sparse_moe", ".weight"},
    {"Granite-MoE by llm-compressor", "block_sparse_moe.experts", nullptr, nullptr,  //
     "gate_proj", "up_proj", "down_proj", nullptr, nullptr},
    {"Phi-MoE", "mlp.experts", nullptr, nullptr, "w1", "w3", "w2", nullptr, nullptr},
    {"LFM2-MoE", "feed_forward.experts", nullptr, "feed_forward", "w1", "w3", "w2", nullptr, nullptr},
    {"Llama-4", "feed_forward.experts", "feed_forward.shared_expert", "feed_forward",  //
     "gate_proj", "up_proj", "down_proj", "gate_up_proj", "down_proj"},
    {"Nemotron-H", "mixer.experts", "mixer.shared_experts", "mixer", nullptr, "up_proj", "down_proj",  //
     nullptr, nullptr},
    // Gemma-4's experts are next to the dense MLP, not below it. # stands for a number.
    {"Gemma-4", "layers.#.experts", nullptr, nullptr,  //
     "gate_proj", "up_proj", "down_proj", "gate_up_proj", "down_proj"},
};

/// True if `path` equals `container` or ends in ".container". # stands for any number.
bool ends_with_path(std::string_view path, const char* container) {
  if (container == nullptr) return false;
  std::string_view tail(container);
  while (!tail.empty()) {
    if (path.empty()) return false;
    const std::string_view own = leaf_of(path), expected = leaf_of(tail);
    if (expected == "#" ? !parse_index(own) : own != expected) return false;
    path = parent_of(path);
    tail = parent_of(tail);
  }
  return true;
}

/// The path of stacks, relative to the layer.
const char* stacks_of(const NamingRule& rule) { return rule.stacks != nullptr ? rule.stacks : rule.routed; }

/// The part of `routed` that follows the path of the stacks: "" or ".experts".
std::string_view below_stacks(const NamingRule& rule) {
  return std::string_view(rule.routed).substr(std::string_view(stacks_of(rule)).size());
}

std::optional<Projection> projection_of(const NamingRule& rule, std::string_view leaf) {
  const auto is = [&](const char* name) { return name != nullptr && leaf == name; };
  if (is(rule.gate)) return Projection::kGate;
  if (is(rule.up)) return Projection::kUp;
  if (is(rule.down)) return Projection::kDown;
  return std::nullopt;
}

std::optional<Projection> stacked_projection_of(const NamingRule& rule, std::string_view leaf) {
  if (rule.stacked_gate_up != nullptr && leaf == rule.stacked_gate_up) return Projection::kGateUp;
  if (rule.stacked_down != nullptr && leaf == rule.stacked_down) return Projection::kDown;
  return std::nullopt;
}

}  // namespace

std::span<const NamingRule> naming_rules() { return kRules; }

std::optional<ModuleName> parse_module_name(std::string_view module) {
  const std::string_view path = parent_of(module), leaf = leaf_of(module), above = parent_of(path);
  const auto expert = parse_index(leaf_of(path));
  for (const NamingRule& rule : kRules) {
    const auto single = projection_of(rule, leaf);
    if (single && expert && ends_with_path(above, rule.routed)) {
      return ModuleName{BlockKind::kRoutedExperts, *single, *expert, std::string(above), &rule};
    }
    const auto stacked = stacked_projection_of(rule, leaf);
    if (stacked && ends_with_path(path, stacks_of(rule))) {
      std::string block(path);
      block += below_stacks(rule);
      return ModuleName{BlockKind::kRoutedExperts, *stacked, -1, std::move(block), &rule};
    }
    if (single && ends_with_path(path, rule.shared)) {
      return ModuleName{BlockKind::kSharedExpert, *single, -1, std::string(path), &rule};
    }
    if (single && ends_with_path(path, rule.dense)) {
      return ModuleName{BlockKind::kDenseMlp, *single, -1, std::string(path), &rule};
    }
  }
  return std::nullopt;
}

std::string stack_tensor(std::string_view block, Projection projection) {
  for (const NamingRule& rule : kRules) {
    if (rule.stacked_gate_up == nullptr || !ends_with_path(block, rule.routed)) continue;
    std::string name(block.substr(0, block.size() - below_stacks(rule).size()));
    name += '.';
    name += projection == Projection::kDown ? rule.stacked_down : rule.stacked_gate_up;
    return name + rule.stack_suffix;
  }
  return {};
}

namespace {

/// A part of module names that a loader renames. Parts are separated by dots.
struct RenamedPart {
  std::string_view model_type;
  std::string_view in_files, in_loader;
};
/// Renamed parts of linears, in the order of replacement. Source: transformers 5.17, conversion_mapping.py;
/// PhimoeTopKRouter is a Linear.
constexpr RenamedPart kRenamedInTransformers[] = {
    {"phimoe", ".block_sparse_moe.gate.", ".mlp.router."},
    {"deepseek_v4", ".head.", ".lm_head."},
    {"deepseek_v4", ".attn.", ".self_attn."},
    {"deepseek_v4", ".ffn.", ".mlp."},
    {"deepseek_v4", ".indexer.compressor.", ".compressor.indexer."},
    {"deepseek_v4", ".indexer.weights_proj.", ".compressor.indexer.scorer.weights_proj."},
    {"deepseek_v4", ".indexer.wq_b.", ".compressor.indexer.q_b_proj."},
    {"deepseek_v4", ".wq_a.", ".q_a_proj."},
    {"deepseek_v4", ".self_attn.wq_b.", ".self_attn.q_b_proj."},
    {"deepseek_v4", ".wkv.", ".kv_proj."},
    {"deepseek_v4", ".wgate.", ".gate_proj."},
    {"deepseek_v4", ".wo_a.", ".o_a_proj."},
    {"deepseek_v4", ".wo_b.", ".o_b_proj."},
    {"deepseek_v4", ".shared_experts.w1.", ".shared_experts.gate_proj."},
    {"deepseek_v4", ".shared_experts.w2.", ".shared_experts.down_proj."},
    {"deepseek_v4", ".shared_experts.w3.", ".shared_experts.up_proj."},
};
/// vLLM renames exact names in a configuration, but not expressions. Source: vLLM 0.33, hf_to_vllm_mapper of
/// the models' classes.
constexpr RenamedPart kRenamedInVllm[] = {
    {"jamba", ".self_attn.", "."},
    {"gpt_oss", ".self_attn.", ".attn."},
    {"lfm2_moe", ".conv.", ".short_conv."},
    {"deepseek_v4", ".shared_experts.w2.", ".shared_experts.down_proj."},
};

/// Returns a module's name with all parts renamed. Empty if no part is renamed.
std::string rename(std::span<const RenamedPart> parts, std::string_view model_type, std::string_view module) {
  std::string name = fmt::format(".{}.", module);
  bool renamed = false;
  for (const RenamedPart& part : parts) {
    const size_t at = part.model_type == model_type ? name.find(part.in_files) : name.npos;
    if (at == name.npos) continue;
    name.replace(at, part.in_files.size(), part.in_loader);
    renamed = true;
  }
  return renamed ? name.substr(1, name.size() - 2) : "";
}

}  // namespace

std::string name_in_transformers(std::string_view model_type, std::string_view module) {
  return rename(kRenamedInTransformers, model_type, module);
}

std::string name_in_vllm(std::string_view model_type, std::string_view module) {
  return rename(kRenamedInVllm, model_type, module);
}

namespace {

/// Source: llm-compressor, observers/helpers.py.
constexpr std::array<std::array<std::string_view, 3>, 4> kFused = {{{"gate_proj", "up_proj", ""},
                                                                    {"w1", "w3", ""},
                                                                    {"q_proj", "k_proj", "v_proj"},
                                                                    {"q_a_proj", "kv_a_proj_with_mqa", ""}}};

}  // namespace

std::optional<std::pair<std::string, size_t>> fused_group(const std::string& module) {
  const std::string_view leaf = leaf_of(module);
  if (leaf.size() == module.size()) return std::nullopt;
  for (size_t g = 0; g < kFused.size(); ++g) {
    if (std::find(kFused[g].begin(), kFused[g].end(), leaf) != kFused[g].end())
      return std::pair(std::string(parent_of(module)), g);
  }
  return std::nullopt;
}

}  // namespace twofour
