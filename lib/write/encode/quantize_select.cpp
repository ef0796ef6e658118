#include "lib/write/encode/quantize_select.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include "formats/error.h"
#include "formats/naming.h"
#include "lib/base/findings/and_more.h"
#include "lib/recipe/selection/chooser.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

/// Modules that producers do not quantize, by any part of the name. Sources: NVIDIA/Model-Optimizer,
/// modelopt_recipes, quantizers that are disabled by default; vLLM, modelopt.py, for vision; vLLM,
/// models/kimi_k3, which makes five modules without quantization; vLLM, deepseek_v4, compressor.py, which
/// takes no quantized weights.
constexpr std::string_view kLeftAlone[] = {"lm_head",
                                           "head",
                                           "embed_tokens",
                                           "embed_out",
                                           "output_layer",
                                           "proj_out",
                                           "score",
                                           "classifier",
                                           "gate",
                                           "router",
                                           "shared_expert_gate",
                                           "conv1d",
                                           "vision_tower",
                                           "vision_model",
                                           "visual",
                                           "audio_tower",
                                           "multi_modal_projector",
                                           "mm_projector",
                                           "eh_proj",
                                           "weights_proj",
                                           "patch_merge_mlp",
                                           "routed_expert_down_proj",
                                           "routed_expert_up_proj",
                                           "self_attention_res_proj",
                                           "mlp_res_proj",
                                           "output_attn_res_proj",
                                           "compressor"};

/// Last parts of the names of linears that engines multiply as one. Sources: vLLM, packed_modules_mapping;
/// llm-compressor, observers.
constexpr std::array<std::array<std::string_view, 3>, 8> kFused = {{{"gate_proj", "up_proj", ""},
                                                                    {"w1", "w3", ""},
                                                                    {"q_proj", "k_proj", "v_proj"},
                                                                    {"wq", "wk", "wv"},
                                                                    {"q_a_proj", "kv_a_proj_with_mqa", ""},
                                                                    {"in_proj_qkv", "in_proj_z", ""},
                                                                    {"in_proj_b", "in_proj_a", ""},
                                                                    {"wq_a", "wkv", ""}}};
/// The linears that engines fuse in DeepSeek-V4's compressor. Its wkv differs from the wkv above.
constexpr std::array<std::string_view, 2> kFusedInCompressor = {"wkv", "wgate"};

bool is_left_alone(std::string_view name) {
  return any_part(name, [](std::string_view part) {
    return part.starts_with("mtp") ||
           std::find(std::begin(kLeftAlone), std::end(kLeftAlone), part) != std::end(kLeftAlone);
  });
}

/// True for layers after the model's own layers, which predict further tokens. An example is
/// "model.layers.61" of DeepSeek-V3 with 61 layers.
bool is_beyond_layers(std::string_view name, int64_t layers) {
  bool after_layers = false;
  return any_part(name, [&](std::string_view part) {
    int64_t number = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool beyond =
        after_layers && error == std::errc() && end == part.data() + part.size() && number >= layers;
    after_layers = part == "layers";
    return beyond;
  });
}

/// Checks that routed experts are numbered 0 to E - 1, and that each has the same matrices in the same
/// shapes. Stacks must have both projections.
void check_experts(const std::vector<Linear>& modules, Problems& problems) {
  struct ExpertBlock {
    std::map<int64_t, std::map<Projection, const Linear*>> experts;
    std::map<Projection, const Linear*> stacks;
  };
  std::map<std::string, ExpertBlock> blocks;
  for (const Linear& m : modules) {
    const auto name = parse_module_name(m.name);
    if (!name || name->kind != BlockKind::kRoutedExperts || (name->expert < 0) != m.stacked) continue;
    ExpertBlock& block = blocks[std::string(name->block)];
    (m.stacked ? block.stacks : block.experts[name->expert])[name->projection] = &m;
  }
  for (const auto& [name, block] : blocks) {
    if (block.stacks.size() == 1) {
      problems.add(
          fmt::format("{}: expected stacks of gate_up_proj and down_proj, found only one of them", name));
    }
    if (block.experts.empty()) continue;
    const auto count = static_cast<int64_t>(block.experts.size());
    if (block.experts.rbegin()->first != count - 1) {
      problems.add(
          fmt::format("{}: expected experts 0 to {}, found {}", name, block.experts.rbegin()->first, count));
    }
    const auto largest = std::max_element(block.experts.begin(), block.experts.end(),
                                          [](auto& a, auto& b) { return a.second.size() < b.second.size(); });
    for (const auto& [e, matrices] : block.experts) {
      if (matrices.size() < largest->second.size()) {
        problems.add(fmt::format("{}.{}: expected {} matrices (as in expert {}), found {}", name, e,
                                 largest->second.size(), largest->first, matrices.size()));
      }
      for (const auto& [projection, m] : matrices) {
        const auto model = largest->second.find(projection);
        if (model == largest->second.end() || (model->second->n == m->n && model->second->k == m->k))
          continue;
        problems.add(fmt::format("{}: expected weights of [{}, {}] (as in expert {}), found [{}, {}]",
                                 m->name, model->second->n, model->second->k, largest->first, m->n, m->k));
      }
    }
    const auto gate = largest->second.find(Projection::kGate), up = largest->second.find(Projection::kUp);
    if (gate == largest->second.end() || up == largest->second.end()) continue;
    if (gate->second->n != up->second->n || gate->second->k != up->second->k) {
      problems.add(fmt::format("{}: expected [{}, {}] like gate, found [{}, {}]", up->second->name,
                               gate->second->n, gate->second->k, up->second->n, up->second->k));
    }
  }
}

}  // namespace

bool is_left_in_floats(std::string_view name, int64_t layers) {
  return is_left_alone(name) || is_beyond_layers(name, layers);
}

bool is_left_of_role(std::string_view name, int64_t layers) {
  using enum ModuleRole;
  const auto role = module_role(name, layers);
  const bool meant = role == kRouter || role == kHead || role == kEmbeddings || role == kMtp;
  return !meant && is_left_in_floats(name, layers);
}

std::vector<size_t> select_encoded(const Checkpoint& c, const std::vector<Linear>& modules,
                                   const Selection& selection, const EncodeRule& rule, Findings& findings,
                                   Problems& problems) {
  const bool quantized = std::any_of(modules.begin(), modules.end(), [](auto& m) { return m.format->coded; });
  const int64_t layers = model_layers(c.config());
  Chooser chooser(selection, layers);
  std::vector<bool> is_chosen(modules.size());
  size_t refused = 0;  // number of NVFP4 modules to quantize
  const Linear* nvfp4 = nullptr;
  for (size_t i = 0; i < modules.size(); ++i) {
    const Linear& m = modules[i];
    const bool is_float = !m.format->coded;
    const bool casts_draft = chooser.casts_draft(m.name);
    const bool left_alone = !casts_draft && is_left_in_floats(m.name, layers);
    const bool usual =
        is_float ? !left_alone && (rule.is_nvfp4() || !quantized) : !rule.is_nvfp4() || !m.nvfp4;
    if (m.is_table) continue;
    // DeepSeek-V4's own form stores only experts in four bits.
    const bool holds = rule.dialect->name != "deepseek-v4" || rule.is_tiled() || casts_draft ||
                       module_role(m.name, layers) == ModuleRole::kRoutedExperts;
    is_chosen[i] = chooser.chooses(m.name, usual && holds);
    if (is_float && chooser.chose_by_role() && is_left_of_role(m.name, layers)) is_chosen[i] = false;
    // A recipe names modules that become NVFP4. Modules that are already NVFP4 stay. They are refused if the
    // rule would prune them.
    if (!selection.from_default && m.nvfp4 && rule.is_nvfp4() && !rule.prune) is_chosen[i] = false;
    if (is_chosen[i] && !is_float && m.k % rule.group() != 0) {
      problems.add(fmt::format("{}: expected K a multiple of {} to quantize, found {}", c.where(m.weight),
                               rule.group(), m.k));
    } else if (is_chosen[i] && is_float && m.k % rule.group() != 0) {
      is_chosen[i] = false;
      findings.push_back(
          {Severity::kWarning, "odd-inputs", m.name,
           fmt::format("is left unquantized: expected K a multiple of {}, found {}", rule.group(), m.k)});
    }
    if (is_chosen[i] && m.nvfp4 && rule.is_nvfp4() && !rule.in_place) {
      if (!nvfp4) nvfp4 = &m;
      ++refused;
    }
  }
  if (nvfp4) {
    problems.add(fmt::format("{}: expected weights in floats, FP8, MXFP4 or INT4 to quantize, found NVFP4{}",
                             c.where(nvfp4->weight), and_more(refused, " (and {} more)")));
  }
  chooser.refuse_unused("a linear (model.layers.0.mlp.down_proj)");
  check_experts(modules, problems);
  std::vector<size_t> chosen;
  for (size_t i = 0; i < modules.size(); ++i) {
    if (is_chosen[i]) chosen.push_back(i);
  }
  return chosen;
}

std::vector<std::vector<size_t>> fused_groups(const std::vector<Linear>& modules) {
  std::vector<std::vector<size_t>> groups;
  std::map<std::pair<std::string, size_t>, size_t> known;
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string& name = modules[i].name;
    const std::string parent(parent_of(name));
    const std::string_view leaf = leaf_of(name);
    size_t family = 0;
    const bool in_compressor =
        parent.ends_with("compressor") &&
        std::find(kFusedInCompressor.begin(), kFusedInCompressor.end(), leaf) != kFusedInCompressor.end();
    if (in_compressor) family = kFused.size() + 1;
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

namespace {

/// The treatment, by a dialect's loaders, of blocks whose size does not divide N or K.
struct OddBlockRow {
  std::string_view dialect;
  const char* loaders;
};
/// Tested with vLLM 0.33 and transformers 5.17; formats/README.md, "What loads where".
constexpr OddBlockRow kOddBlocks[] = {
    {"compressed-tensors", "vLLM refuses others, and transformers loads them but cannot run them"},
    {"modelopt", "vLLM refuses others"},
    {"deepseek", "transformers refuses others, and vLLM refuses those that it splits or stacks"},
    {"deepseek-v4", "no tested engine loads others"},
};

/// The number of rows of the matrices that a linear becomes.
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

/// Adds a problem for routed experts in ModelOpt's FP8 by rows or blocks.
void refuse_experts(const Checkpoint& c, const std::vector<Linear>& modules, const EncodeRule& rule,
                    const std::vector<size_t>& chosen, Problems& problems) {
  if (rule.dialect->name != std::string_view("modelopt") || rule.scheme.granularity == Granularity::kTensor)
    return;
  std::vector<size_t> routed;
  std::copy_if(chosen.begin(), chosen.end(), std::back_inserter(routed),
               [&](size_t i) { return is_routed(modules[i]); });
  if (routed.empty()) return;
  problems.add(fmt::format(
      "{}: expected {} for routed experts in the modelopt dialect, because its FP8 experts have one scale a "
      "matrix in every engine that reads it (vLLM 0.33), found {}{}; {} has rows and blocks",
      c.where(modules[routed[0]].weight), rule.settings->name(keys::kGranularity, "tensor"),
      rule.settings->granularity.text(), and_more(routed.size(), " (and {} more)"),
      rule.settings->name(keys::kDialect, "compressed-tensors")));
}

/// The chosen linears with odd sizes, and the linears that engines fuse with them.
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
                  "[{}, {}]{}; {} leaves such linears unchanged, write writes them anyway",
                  c.where(modules[*first].weight), rule.scheme.rows, rule.scheme.cols, rule.dialect->name,
                  row->loaders, matrix_rows(modules[*first]), modules[*first].k,
                  and_more(count, " (and {} more)"), rule.settings->name(keys::kOddBlocks, "keep")));
}

void keep_odd(const Checkpoint& c, const std::vector<Linear>& modules, const std::set<size_t>& odd,
              const EncodeRule& rule, std::vector<size_t>& chosen, Findings& findings) {
  std::erase_if(chosen, [&](size_t i) { return odd.contains(i); });
  findings.push_back(
      {Severity::kNote, "odd-blocks", c.path().string(),
       fmt::format("{} linears that blocks of {} x {} do not divide, or that are fused with such linears, "
                   "stay unchanged, the first {}",
                   odd.size(), rule.scheme.rows, rule.scheme.cols, modules[*odd.begin()].name)});
}

}  // namespace

void apply_loader_limits(const Checkpoint& c, const std::vector<Linear>& modules, const EncodeRule& rule,
                         std::vector<size_t>& chosen, Findings& findings, Problems& problems) {
  if (!rule.is_tiled()) return;
  refuse_experts(c, modules, rule, chosen, problems);
  const OddBlocks odd_blocks = rule.settings->odd_blocks.or_default();
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
