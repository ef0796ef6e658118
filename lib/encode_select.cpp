#include "lib/encode_select.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include "lib/plan_rewrite_parts.h"

namespace twofour {
namespace {

/// What producers leave as it is, by any part of a module's name. Source: NVIDIA/Model-Optimizer,
/// modelopt_recipes, default disabled quantizers; vLLM, modelopt.py, for vision.
constexpr std::string_view kLeftAlone[] = {
    "lm_head",      "head",         "embed_tokens", "embed_out",   "output_layer",          "proj_out",
    "score",        "classifier",   "gate",         "router",      "shared_expert_gate",    "conv1d",
    "vision_tower", "vision_model", "visual",       "audio_tower", "multi_modal_projector", "mm_projector"};

/// Leaves that engines multiply as one. Source: vLLM, packed_modules_mapping; llm-compressor, observers.
constexpr std::array<std::array<std::string_view, 3>, 7> kFused = {{{"gate_proj", "up_proj", ""},
                                                                    {"w1", "w3", ""},
                                                                    {"q_proj", "k_proj", "v_proj"},
                                                                    {"wq", "wk", "wv"},
                                                                    {"q_a_proj", "kv_a_proj_with_mqa", ""},
                                                                    {"in_proj_qkv", "in_proj_z", ""},
                                                                    {"in_proj_b", "in_proj_a", ""}}};

template <class F>
bool any_component(std::string_view name, F&& f) {
  while (!name.empty()) {
    const size_t dot = std::min(name.find('.'), name.size());
    if (f(name.substr(0, dot))) return true;
    name.remove_prefix(std::min(dot + 1, name.size()));
  }
  return false;
}

bool is_left_alone(std::string_view name) {
  return any_component(name, [](std::string_view part) {
    return part.starts_with("mtp") ||
           std::find(std::begin(kLeftAlone), std::end(kLeftAlone), part) != std::end(kLeftAlone);
  });
}

const char* format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFloat:
      return "floats";
    case WeightFormat::kFp8:
      return "FP8";
    case WeightFormat::kMxfp4:
      return "MXFP4";
    case WeightFormat::kNvfp4:
      return "NVFP4";
  }
  return "";
}

/// Whether a module may stay in NVFP4 beside new ones: one configuration must describe both.
bool fits_beside(const Checkpoint& c, const WeightModule& m, const EncodeRule& rule) {
  return m.nvfp4 && !rule.fp8 && !m.input_scale && !m.stacked &&
         c.nvfp4_modules()[*m.nvfp4].dialect->name == rule.dialect;
}

std::string parent_of(const std::string& name) {
  return name.substr(0, name.rfind('.') == std::string::npos ? 0 : name.rfind('.'));
}

/// Names of linears that stay; blocks of experts that stay as a whole as one glob.
std::vector<std::string> names_left(const Checkpoint& c, const std::vector<WeightModule>& modules,
                                    const std::vector<bool>& is_chosen) {
  const auto exists = [&](const std::string& name) { return c.find(name).has_value(); };
  const auto block_of = [&](const WeightModule& m) {
    const auto parsed = parse_module_name(m.name, exists);
    return parsed && parsed->kind == BlockKind::kRoutedExperts ? std::string(parsed->block) : "";
  };
  std::set<std::string> chosen_blocks;
  for (size_t i = 0; i < modules.size(); ++i) {
    if (is_chosen[i]) chosen_blocks.insert(block_of(modules[i]));
  }
  std::vector<std::string> names;
  std::set<std::string> blocks;
  for (size_t i = 0; i < modules.size(); ++i) {
    if (is_chosen[i] || modules[i].format != WeightFormat::kFloat) continue;
    const std::string block = block_of(modules[i]);
    if (block.empty() || chosen_blocks.count(block)) {
      names.push_back(modules[i].name);
    } else if (blocks.insert(block).second) {
      names.push_back(block + "*");
    }
  }
  return names;
}

}  // namespace

EncodeSelection select_encoded(const Checkpoint& c, const std::vector<WeightModule>& modules,
                               const Recipe& recipe, const EncodeRule& rule, Findings& findings,
                               Problems& problems) {
  const bool quantized =
      std::any_of(modules.begin(), modules.end(), [](auto& m) { return m.format != WeightFormat::kFloat; });
  Matcher include(recipe.selection.include), exclude(recipe.selection.exclude), also(recipe.selection.also);
  std::vector<bool> is_chosen(modules.size());
  for (size_t i = 0; i < modules.size(); ++i) {
    const WeightModule& m = modules[i];
    const bool is_float = m.format == WeightFormat::kFloat;
    const bool usual = is_float ? !is_left_alone(m.name) && !(rule.fp8 && quantized)
                                : rule.fp8 || m.format != WeightFormat::kNvfp4;
    const bool included = recipe.selection.include.empty() ? usual : include.matches(m.name) && usual;
    const bool added = also.matches(m.name), excluded = exclude.matches(m.name);
    is_chosen[i] = (included || added) && !excluded;
    if (is_chosen[i] && is_float && !rule.fp8 && m.k % kGroup != 0) {
      is_chosen[i] = false;
      findings.push_back({Severity::kWarning, "odd-inputs", m.name,
                          fmt::format("stays as it is: expected K a multiple of {}, found {}", kGroup, m.k)});
    }
    if (is_chosen[i] && m.format == WeightFormat::kNvfp4 && !rule.fp8) {
      problems.add(fmt::format("{}: expected weights in floats, FP8 or MXFP4 to quantize, found NVFP4",
                               c.where(m.weight)));
    }
    if (is_chosen[i] || is_float || fits_beside(c, m, rule)) continue;
    const bool nvfp4 = m.format == WeightFormat::kNvfp4;
    problems.add(fmt::format(
        "{}: expected nothing beside {} {} that one configuration cannot describe, too, "
        "found {}{} that would stay: {}convert to bf16 first",
        c.where(m.weight), rule.dialect, rule.fp8 ? "FP8" : "weight-only NVFP4", format_name(m.format),
        nvfp4 && !rule.fp8 ? (m.input_scale ? " with input scales" : " of another dialect") : "",
        nvfp4 && !rule.fp8 ? "" : "name it with --also, or "));
  }
  const char* expected = "a linear (model.layers.0.mlp.down_proj)";
  include.refuse_unused("--include", expected);
  exclude.refuse_unused("--exclude", expected);
  also.refuse_unused("--also", expected);
  EncodeSelection selection;
  for (size_t i = 0; i < modules.size(); ++i) {
    if (is_chosen[i]) selection.chosen.push_back(i);
  }
  selection.left = names_left(c, modules, is_chosen);
  return selection;
}

std::vector<std::vector<size_t>> fused_groups(const std::vector<WeightModule>& modules) {
  std::vector<std::vector<size_t>> groups;
  std::map<std::pair<std::string, size_t>, size_t> known;
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string& name = modules[i].name;
    const std::string parent = parent_of(name);
    const std::string_view leaf = std::string_view(name).substr(parent.empty() ? 0 : parent.size() + 1);
    size_t family = 0;
    while (family < kFused.size() &&
           std::find(kFused[family].begin(), kFused[family].end(), leaf) == kFused[family].end()) {
      ++family;
    }
    if (family == kFused.size() || modules[i].stacked) {
      groups.push_back({i});
      continue;
    }
    const auto [at, is_new] = known.try_emplace({parent, family}, groups.size());
    if (is_new) groups.emplace_back();
    groups[at->second].push_back(i);
  }
  return groups;
}

}  // namespace twofour
