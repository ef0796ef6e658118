#include "formats/naming.h"

#include <charconv>

namespace twofour {
namespace {

constexpr GateUpRows kHalves = GateUpRows::kHalves, kInterleaved = GateUpRows::kInterleaved;

// Rules are tried in order; the first that fits wins.
constexpr NamingRule kRules[] = {
    {"gpt-oss", "mlp.experts", nullptr, nullptr, nullptr, nullptr, nullptr,  //
     "gate_up_proj", "down_proj", kInterleaved, "gate_up_proj_bias"},
    {"Qwen2-MoE, Qwen3-MoE, Qwen3-Next, Qwen3.5", "mlp.experts", "mlp.shared_expert", "mlp",  //
     "gate_proj", "up_proj", "down_proj", "gate_up_proj", "down_proj", kHalves, nullptr},
    {"DeepSeek-V2/V3/R1, Kimi-K2, GLM-4.x, GLM-5, dots1, ERNIE-4.5", "mlp.experts", "mlp.shared_experts",
     "mlp", "gate_proj", "up_proj", "down_proj", nullptr, nullptr, kHalves, nullptr},
    {"DeepSeek-V4", "ffn.experts", "ffn.shared_experts", "ffn", "w1", "w3", "w2",  //
     nullptr, nullptr, kHalves, nullptr},
    {"Mixtral, MiniMax", "block_sparse_moe.experts", "block_sparse_moe.shared_experts", nullptr,  //
     "w1", "w3", "w2", nullptr, nullptr, kHalves, nullptr},
    {"Phi-MoE", "mlp.experts", nullptr, nullptr, "w1", "w3", "w2", nullptr, nullptr, kHalves, nullptr},
    {"LFM2-MoE", "feed_forward.experts", nullptr, "feed_forward", "w1", "w3", "w2",  //
     nullptr, nullptr, kHalves, nullptr},
    {"Llama-4", "feed_forward.experts", "feed_forward.shared_expert", "feed_forward",  //
     "gate_proj", "up_proj", "down_proj", "gate_up_proj", "down_proj", kHalves, nullptr},
    {"Nemotron-H", "mixer.experts", "mixer.shared_experts", "mixer", nullptr, "up_proj", "down_proj",  //
     nullptr, nullptr, kHalves, nullptr},
};

/// Whether `path` is `container` or ends in ".container".
bool ends_with_path(std::string_view path, const char* container) {
  if (container == nullptr) return false;
  const std::string_view tail(container);
  if (!path.ends_with(tail)) return false;
  return path.size() == tail.size() || path[path.size() - tail.size() - 1] == '.';
}

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

std::optional<ModuleName> parse_module_name(std::string_view module,
                                            const std::function<bool(const std::string&)>& exists) {
  const auto [path, leaf] = split_last(module);
  const auto [above, number] = split_last(path);
  const auto expert = parse_index(number);
  for (const NamingRule& rule : kRules) {
    const auto single = projection_of(rule, leaf);
    if (single && expert && ends_with_path(above, rule.routed)) {
      return ModuleName{BlockKind::kRoutedExperts, *single, kHalves, *expert, above};
    }
    const auto stacked = stacked_projection_of(rule, leaf);
    if (stacked && ends_with_path(path, rule.routed)) {
      const bool applies = rule.stacked_sibling == nullptr ||
                           exists(std::string(path) + "." + std::string(rule.stacked_sibling));
      if (applies) return ModuleName{BlockKind::kRoutedExperts, *stacked, rule.stacked_rows, -1, path};
    }
    if (single && ends_with_path(path, rule.shared)) {
      return ModuleName{BlockKind::kSharedExpert, *single, kHalves, -1, path};
    }
    if (single && ends_with_path(path, rule.dense)) {
      return ModuleName{BlockKind::kDenseMlp, *single, kHalves, -1, path};
    }
  }
  return std::nullopt;
}

}  // namespace twofour
