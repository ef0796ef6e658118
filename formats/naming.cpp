#include "formats/naming.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <string_view>

namespace twofour {

namespace {

// Rules are tried in order; the first that fits wins.
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
    // The experts are beside the dense MLP, not below it; # is a number.
    {"Gemma-4", "layers.#.experts", nullptr, nullptr,  //
     "gate_proj", "up_proj", "down_proj", "gate_up_proj", "down_proj"},
};

std::optional<int64_t> parse_index(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool canonical = text.size() == 1 || (!text.empty() && text[0] != '0');
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || !canonical)
    return std::nullopt;
  return value;
}

/// Splits "a.b.c" into "a.b" and "c".
std::pair<std::string_view, std::string_view> split_last(std::string_view path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

/// Whether `path` is `container` or ends in ".container", where # is any number.
bool ends_with_path(std::string_view path, const char* container) {
  if (container == nullptr) return false;
  std::string_view tail(container);
  while (!tail.empty()) {
    if (path.empty()) return false;
    const auto [above, own] = split_last(path);
    const auto [rest, expected] = split_last(tail);
    if (expected == "#" ? !parse_index(own) : own != expected) return false;
    path = above;
    tail = rest;
  }
  return true;
}

/// Where stacks are below the layer.
const char* stacks_of(const NamingRule& rule) { return rule.stacks != nullptr ? rule.stacks : rule.routed; }

/// What `routed` has behind the path of the stacks: "" or ".experts".
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
  const auto [path, leaf] = split_last(module);
  const auto [above, number] = split_last(path);
  const auto expert = parse_index(number);
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

constexpr std::string_view kRoleNames[] = {
    "experts", "shared-experts", "router",    "attention", "linear-attention", "mlp",
    "mtp",     "head",           "embeddings"};

/// The role of modules at or below a part of their names, the first row that fits. Where experts and MLPs are
/// is in kRules.
struct RoleRule {
  std::string_view part;
  ModuleRole role;
  bool is_last;  ///< the name's last part alone
};
/// Source: Hugging Face transformers, models; of DeepSeek-V4 its reference inference code.
constexpr RoleRule kRoles[] = {
    {"mtp", ModuleRole::kMtp, false},
    {"draft_model", ModuleRole::kMtp, false},
    {"shared_expert_gate", ModuleRole::kSharedExperts, true},
    {"shared_expert", ModuleRole::kSharedExperts, false},
    {"shared_experts", ModuleRole::kSharedExperts, false},
    {"shared_mlp", ModuleRole::kSharedExperts, false},
    {"experts", ModuleRole::kRoutedExperts, false},
    {"router", ModuleRole::kRouter, false},
    {"gate", ModuleRole::kRouter, true},
    {"wg", ModuleRole::kRouter, true},  // Hunyuan's, below the gate
    {"linear_attn", ModuleRole::kLinearAttention, false},
    {"mamba", ModuleRole::kLinearAttention, false},
    {"self_attn", ModuleRole::kAttention, false},
    {"attn", ModuleRole::kAttention, false},
    {"attention", ModuleRole::kAttention, false},
    // Nemotron-H's mixers are of any kind under one name.
    {"q_proj", ModuleRole::kAttention, true},
    {"k_proj", ModuleRole::kAttention, true},
    {"v_proj", ModuleRole::kAttention, true},
    {"o_proj", ModuleRole::kAttention, true},
    {"in_proj", ModuleRole::kLinearAttention, true},
    {"out_proj", ModuleRole::kLinearAttention, true},
    {"lm_head", ModuleRole::kHead, true},
    {"head", ModuleRole::kHead, true},
    {"embed_tokens", ModuleRole::kEmbeddings, false},
    {"embed_tokens_per_layer", ModuleRole::kEmbeddings, false},
    {"embeddings", ModuleRole::kEmbeddings, false},
    {"embed", ModuleRole::kEmbeddings, false},
    {"wte", ModuleRole::kEmbeddings, false},
    {"mlp", ModuleRole::kMlp, false},
    {"feed_forward", ModuleRole::kMlp, false},
    {"ffn", ModuleRole::kMlp, false},
};

/// Parts of models that read no text, with layers and attention of their own.
constexpr std::string_view kOtherInputs[] = {"vision_tower", "vision_model",          "visual",
                                             "audio_tower",  "audio_model",           "embed_vision",
                                             "embed_audio",  "multi_modal_projector", "mm_projector"};

/// Whether a dot-separated part of a name is `part`.
bool has_part(std::string_view module, std::string_view part) {
  for (size_t at = 0; at < module.size();) {
    const size_t dot = std::min(module.find('.', at), module.size());
    if (module.substr(at, dot - at) == part) return true;
    at = dot + 1;
  }
  return false;
}

/// The number behind the first "layers." of a name; -1: none.
int64_t layer_of(std::string_view module) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = module.find(kLayers);
  if (at == module.npos || (at > 0 && module[at - 1] != '.')) return -1;
  const std::string_view rest = module.substr(at + kLayers.size());
  return parse_index(rest.substr(0, rest.find('.'))).value_or(-1);
}

}  // namespace

std::string_view role_name(ModuleRole role) { return kRoleNames[static_cast<size_t>(role)]; }

std::span<const std::string_view> role_names() { return kRoleNames; }

std::optional<ModuleRole> role_from_name(std::string_view name) {
  const auto at = std::find(std::begin(kRoleNames), std::end(kRoleNames), name);
  if (at == std::end(kRoleNames)) return std::nullopt;
  return static_cast<ModuleRole>(at - std::begin(kRoleNames));
}

namespace {

/// The role of a module within its layer, a draft's or the model's.
std::optional<ModuleRole> role_in_layer(std::string_view module) {
  if (const auto known = parse_module_name(module)) {
    if (known->kind == BlockKind::kRoutedExperts) return ModuleRole::kRoutedExperts;
    if (known->kind == BlockKind::kSharedExpert) return ModuleRole::kSharedExperts;
    return ModuleRole::kMlp;
  }
  const std::string_view leaf = split_last(module).second;
  const auto at = std::find_if(std::begin(kRoles), std::end(kRoles), [&](const RoleRule& rule) {
    return rule.role != ModuleRole::kMtp && (rule.is_last ? leaf == rule.part : has_part(module, rule.part));
  });
  if (at == std::end(kRoles)) return std::nullopt;
  return at->role;
}

}  // namespace

std::optional<ModuleRole> module_role(std::string_view module, int64_t layers) {
  if (std::any_of(std::begin(kOtherInputs), std::end(kOtherInputs),
                  [&](std::string_view part) { return has_part(module, part); }))
    return std::nullopt;
  // A draft is what it predicts, whatever its layers are made of.
  const bool drafts = std::any_of(std::begin(kRoles), std::end(kRoles), [&](const RoleRule& rule) {
    return rule.role == ModuleRole::kMtp && has_part(module, rule.part);
  });
  return drafts || layer_of(module) >= layers ? ModuleRole::kMtp : role_in_layer(module);
}

bool is_draft_expert(std::string_view module, int64_t layers) {
  return module_role(module, layers) == ModuleRole::kMtp &&
         role_in_layer(module) == ModuleRole::kRoutedExperts;
}

namespace {

/// A part of modules' names that a loader calls otherwise, between dots.
struct RenamedPart {
  std::string_view model_type;
  std::string_view in_files, in_loader;
};
/// Of linears, in the order in which they are replaced. Source: transformers 5.17, conversion_mapping.py;
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
/// Exact names in a configuration follow, expressions do not. Source: vLLM 0.33, hf_to_vllm_mapper of the
/// models' classes.
constexpr RenamedPart kRenamedInVllm[] = {
    {"jamba", ".self_attn.", "."},
    {"gpt_oss", ".self_attn.", ".attn."},
    {"lfm2_moe", ".conv.", ".short_conv."},
    {"deepseek_v4", ".shared_experts.w2.", ".shared_experts.down_proj."},
};

/// A module's name with all parts renamed; empty where none is.
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
  const size_t dot = module.rfind('.');
  if (dot == module.npos) return std::nullopt;
  const std::string_view leaf = std::string_view(module).substr(dot + 1);
  for (size_t g = 0; g < kFused.size(); ++g) {
    if (std::find(kFused[g].begin(), kFused[g].end(), leaf) != kFused[g].end())
      return std::pair(module.substr(0, dot), g);
  }
  return std::nullopt;
}

}  // namespace twofour
