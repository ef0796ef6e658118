#include "lib/recipe/selection/output_matrix.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "lib/base/findings/finding.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/problems.h"
#include "lib/base/names/natural.h"
#include "lib/recipe/selection/chooser.h"
#include "lib/recipe/settings/rule.h"
#include "lib/source/config/model_config.h"
#include "lib/source/linears/expert_stacks.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

/// The matrices of one expert, as positions in Checkpoint::nvfp4_modules().
struct Expert {
  std::optional<size_t> gate, up, down;
  std::optional<size_t> gate_up{};  ///< gate and up in one matrix of a dense model
};

/// A feed-forward block as the checkpoint names it.
struct Block {
  BlockKind kind;
  std::map<int64_t, Expert> experts;                    ///< experts with separate matrices; key 0 for an MLP
  std::optional<size_t> stacked_gate_up, stacked_down;  ///< or stacks of all experts
};

struct NaturalOrder {
  bool operator()(const std::string& a, const std::string& b) const { return natural_less(a, b); }
};
using Blocks = std::map<std::string, Block, NaturalOrder>;

/// Returns the MLP of a dense model whose gate and up are the matrix `m`: "P.mlp" for "P.mlp.gate_up_proj" of
/// Phi-3. Empty: it is no such matrix.
std::string fused_mlp(const Nvfp4Linear& m) {
  if (m.dialect->stacked || leaf_of(m.name) != "gate_up_proj") return "";
  std::string mlp(parent_of(m.name));
  const auto down = parse_module_name(mlp + ".down_proj");
  return down && down->kind == BlockKind::kDenseMlp && down->block == mlp ? mlp : "";
}

Blocks find_blocks(const Checkpoint& c) {
  Blocks blocks;
  for (size_t i = 0; i < c.nvfp4_modules().size(); ++i) {
    const Nvfp4Linear& m = c.nvfp4_modules()[i];
    const auto name = parse_module_name(m.name);
    if (const std::string mlp = fused_mlp(m); !name && !mlp.empty()) {
      Block& block = blocks[mlp];
      block.kind = BlockKind::kDenseMlp;
      block.experts[0].gate_up = i;
    }
    if (!name) continue;
    const bool in_stack = name->kind == BlockKind::kRoutedExperts && name->expert < 0;
    if (in_stack != m.dialect->stacked) continue;  // the name and the module disagree on being a stack
    Block& block = blocks[std::string(name->block)];
    block.kind = name->kind;
    if (name->expert < 0 && m.dialect->stacked) {
      (name->projection == Projection::kDown ? block.stacked_down : block.stacked_gate_up) = i;
      continue;
    }
    Expert& expert = block.experts[std::max<int64_t>(name->expert, 0)];
    (name->projection == Projection::kGate ? expert.gate
     : name->projection == Projection::kUp ? expert.up
                                           : expert.down) = i;
  }
  return blocks;
}

std::string shape_text(const Nvfp4Linear& m) { return fmt::format("[{}, {}]", m.n, m.k); }

/// Checks that a block has experts 0 .. E-1, that each is complete and that all have the same shapes.
/// Collects problems.
class BlockCheck {
 public:
  BlockCheck(const Checkpoint& c, const std::string& name, const Block& block, Problems& problems)
      : checkpoint_(c),
        modules_(c.nvfp4_modules()),
        promised_(block.kind == BlockKind::kRoutedExperts ? promised_experts(c.config()) : 0),
        name_(name),
        block_(block),
        problems_(problems) {}

  void run() {
    int64_t count = 0;
    if (block_.stacked_gate_up || block_.stacked_down) {
      check_stack();
      count = modules_[block_.stacked_down ? *block_.stacked_down : *block_.stacked_gate_up].e;
    } else {
      check_sequence();
      check_experts();
      count = static_cast<int64_t>(block_.experts.size());
    }
    check_beyond(count);
    if (count < promised_) {
      problems_.add(
          fmt::format("{}: expected {} NVFP4 experts (config.json), found {}", name_, promised_, count));
    }
  }

 private:
  void check_stack() {
    if (!block_.stacked_gate_up || !block_.stacked_down) {
      problems_.add(fmt::format("{}: expected stacks of {} as NVFP4, found none", name_,
                                block_.stacked_gate_up ? "down_proj" : "gate_up_proj"));
      return;
    }
    const Nvfp4Linear &up = modules_[*block_.stacked_gate_up], &down = modules_[*block_.stacked_down];
    if (up.n % 2 != 0 || down.e != up.e || down.n != up.k || down.k != up.n / 2) {
      problems_.add(fmt::format("{}: expected {} experts of [{}, {}], found {} of {}", down.name, up.e, up.k,
                                up.n / 2, down.e, shape_text(down)));
    }
    const GateUpOrder found = find_gate_up_order(checkpoint_, name_);
    if (!found.rows) problems_.add(fmt::format("{}: {}", up.name, found.problem));
  }

  /// Adds a problem if an expert in another format follows the experts that were found, such as
  /// "P.512.gate_proj.weight" beside 512 experts.
  void check_beyond(int64_t count) {
    if (block_.kind != BlockKind::kRoutedExperts) return;
    const std::string prefix = name_ + ".";
    const auto tensors = checkpoint_.tensors();
    auto it = std::lower_bound(tensors.begin(), tensors.end(), prefix,
                               [](const TensorInfo& t, const std::string& n) { return t.name < n; });
    for (; it != tensors.end() && it->name.starts_with(prefix); ++it) {
      const std::string digits =
          it->name.substr(prefix.size(), it->name.find('.', prefix.size()) - prefix.size());
      const bool number =
          !digits.empty() && digits.size() < 10 && digits.find_first_not_of("0123456789") == digits.npos;
      if (!number || std::stoll(digits) < count) continue;
      problems_.add(
          fmt::format("{}: expected only NVFP4 experts 0 to {}, found {}", name_, count - 1, it->name));
      return;
    }
  }

  void check_sequence() {
    if (block_.experts.empty()) return;
    const int64_t last = block_.experts.rbegin()->first;
    // A hostile name can have any number, so missing experts are counted, not listed.
    const int64_t missing = last + 1 - static_cast<int64_t>(block_.experts.size());
    if (missing == 0) return;
    int64_t first = 0;
    for (const auto& [e, expert] : block_.experts) {
      if (e != first) break;
      ++first;
    }
    problems_.add(fmt::format("{}: expected experts 0 to {}, found {} missing, the first {}", name_, last,
                              missing, first));
  }

  void check_experts() {
    const bool gated = std::any_of(block_.experts.begin(), block_.experts.end(), [&](auto& x) {
      return x.second.gate || has_gate_tensor(path_of(x.first));
    });
    const Nvfp4Linear* model = nullptr;
    for (const auto& [e, expert] : block_.experts) {
      const std::string where = path_of(e);
      if (expert.gate_up && !expert.gate && !expert.up) {
        check_fused(modules_[*expert.gate_up], expert, where);
        continue;
      }
      const bool whole = expert.up && expert.down && (expert.gate || !gated);
      if (!whole) {
        problems_.add(fmt::format("{}: expected {}up and down as NVFP4, found{}{}{}", where,
                                  gated ? "gate, " : "", expert.gate ? " gate" : "", expert.up ? " up" : "",
                                  expert.down ? " down" : ""));
        continue;
      }
      if (model == nullptr) model = &modules_[*expert.up];
      check_shape(modules_[*expert.up], model->n, model->k);
      if (expert.gate) check_shape(modules_[*expert.gate], model->n, model->k);
      check_shape(modules_[*expert.down], model->k, model->n);
    }
  }

  /// Checks gate and up in one matrix, as dense models fuse them: Phi-3's gate_up_proj.
  void check_fused(const Nvfp4Linear& gate_up, const Expert& expert, const std::string& where) {
    if (!expert.down) {
      problems_.add(fmt::format("{}: expected gate_up and down as NVFP4, found gate_up", where));
    } else if (gate_up.n % 2 != 0) {
      problems_.add(fmt::format("{}: expected as many rows of gate as of up, found {} in all", gate_up.name,
                                gate_up.n));
    } else {
      check_shape(modules_[*expert.down], gate_up.k, gate_up.n / 2);
    }
  }

  std::string path_of(int64_t expert) const {
    return block_.kind == BlockKind::kRoutedExperts ? fmt::format("{}.{}", name_, expert) : name_;
  }

  /// True if there is a gate in any format. Experts without a gate in NVFP4 are not gateless if they have a
  /// gate in another format.
  bool has_gate_tensor(const std::string& where) const {
    const auto tensors = checkpoint_.tensors();
    return std::any_of(naming_rules().begin(), naming_rules().end(), [&](const NamingRule& rule) {
      if (rule.gate == nullptr) return false;
      const std::string prefix = fmt::format("{}.{}.", where, rule.gate);
      const auto at = std::lower_bound(tensors.begin(), tensors.end(), prefix,
                                       [](const TensorInfo& t, const std::string& p) { return t.name < p; });
      return at != tensors.end() && at->name.starts_with(prefix);
    });
  }

  void check_shape(const Nvfp4Linear& m, int64_t n, int64_t k) {
    if (m.n != n || m.k != k) {
      problems_.add(fmt::format("{}: expected weights of [{}, {}], found {}", m.name, n, k, shape_text(m)));
    }
  }

  const Checkpoint& checkpoint_;
  const std::vector<Nvfp4Linear>& modules_;
  const int64_t promised_;
  const std::string& name_;
  const Block& block_;
  Problems& problems_;
};

OutputMatrix single_target(const Nvfp4Linear& m, size_t index) {
  return {m.name, m.name, '.', Shape{1, m.n, m.k}, 1, {SourceRows{index, 0, 0, 1, m.n, 0}}};
}

/// Adds the w13 and w2 of a block that passed BlockCheck.
void add_matrices(const Checkpoint& c, const std::string& name, const Block& block,
                  std::vector<OutputMatrix>& out) {
  const auto& modules = c.nvfp4_modules();
  OutputMatrix w13{name, name + ".w13", '_', {}, 2, {}}, w2{name, name + ".w2", '_', {}, 1, {}};
  if (block.stacked_gate_up) {
    const size_t gate_up = *block.stacked_gate_up, down = *block.stacked_down;
    const Nvfp4Linear& m = modules[gate_up];
    const int64_t i = m.n / 2;
    const bool halves = gate_up_order(c, name) == GateUpRows::kHalves;
    for (int64_t e = 0; e < m.e; ++e) {
      w13.sources.push_back({gate_up, e, 0, halves ? 1 : 2, i, 0});
      w13.sources.push_back({gate_up, e, halves ? i : 1, halves ? 1 : 2, i, i});
      w2.sources.push_back({down, e, 0, 1, m.k, 0});
    }
    w13.shape = {m.e, m.n, m.k, true};
    w2.shape = {m.e, m.k, i};
  } else {
    const auto count = static_cast<int64_t>(block.experts.size());
    for (const auto& [e, expert] : block.experts) {
      if (expert.gate_up) {
        const Nvfp4Linear& both = modules[*expert.gate_up];
        const int64_t half = both.n / 2;
        w13.sources.push_back({*expert.gate_up, 0, 0, 1, half, 0});
        w13.sources.push_back({*expert.gate_up, 0, half, 1, half, half});
        w2.sources.push_back({*expert.down, 0, 0, 1, both.k, 0});
        w13.shape = {count, both.n, both.k, true};
        w2.shape = {count, both.k, half};
        continue;
      }
      const Nvfp4Linear& up = modules[*expert.up];
      const bool gated = expert.gate.has_value();
      if (gated) w13.sources.push_back({*expert.gate, 0, 0, 1, up.n, 0});
      w13.sources.push_back({*expert.up, 0, 0, 1, up.n, gated ? up.n : 0});
      w2.sources.push_back({*expert.down, 0, 0, 1, up.k, 0});
      w13.sources_per_expert = gated ? 2 : 1;
      w13.shape = {count, gated ? 2 * up.n : up.n, up.k, gated};
      w2.shape = {count, up.k, up.n};
    }
  }
  out.push_back(std::move(w13));
  out.push_back(std::move(w2));
}

/// A tensor's name without the suffixes that formats add to a module's name.
std::string_view module_of_tensor(std::string_view name) {
  for (const std::string_view suffix : {".weight_packed", ".weight", ".qweight", "_blocks"}) {
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  }
  return name;
}

/// Passes the blocks in other formats, which stay as they are, to `chooser`.
void add_other_blocks(const Checkpoint& checkpoint, Chooser& chooser) {
  for (const TensorInfo& t : checkpoint.tensors()) {
    if (const auto name = parse_module_name(module_of_tensor(t.name))) chooser.add_other(name->block);
  }
}

}  // namespace

std::vector<OutputMatrix> select_matrices(const Checkpoint& checkpoint, const Selection& selection) {
  const auto& modules = checkpoint.nvfp4_modules();
  const char* expected = "experts or an MLP as a whole (model.layers.0.mlp.experts)";
  if (modules.empty()) {
    Chooser(selection, model_layers(checkpoint.config())).refuse_unused(expected);
    throw Error(fmt::format(
        "{}: expected NVFP4 modules, or experts or MLPs to quantize, found {}; to prune floats: twofour "
        "quantize {}",
        checkpoint.path().string(), other_formats_text(checkpoint),
        spelled(keys::kPattern, "2:4", Author::kPrompt)));
  }
  const Blocks blocks = find_blocks(checkpoint);
  const bool is_moe = std::any_of(blocks.begin(), blocks.end(),
                                  [](auto& b) { return b.second.kind == BlockKind::kRoutedExperts; });
  const BlockKind default_kind = is_moe ? BlockKind::kRoutedExperts : BlockKind::kDenseMlp;

  Chooser chooser(selection, model_layers(checkpoint.config()));
  std::vector<OutputMatrix> targets;
  std::set<size_t> taken;  // modules that belong to a chosen block
  Problems problems;
  for (const auto& [name, block] : blocks) {
    if (!chooser.chooses(name, block.kind == default_kind)) continue;
    const char* reason = chooser.reason();
    BlockCheck(checkpoint, name, block, problems).run();
    if (!problems.empty()) continue;  // problems are collected, and thrown below
    const size_t before = targets.size();
    add_matrices(checkpoint, name, block, targets);
    for (size_t t = before; t < targets.size(); ++t) {
      targets[t].rule = reason;
      for (const SourceRows& s : targets[t].sources) taken.insert(s.module);
    }
  }
  problems.refuse();
  for (size_t i = 0; i < modules.size(); ++i) {
    if (taken.count(i) || modules[i].dialect->stacked || !chooser.adds(modules[i].name)) continue;
    targets.push_back(single_target(modules[i], i));
    targets.back().rule = chooser.reason();
  }
  if (!selection.exclude.empty()) add_other_blocks(checkpoint, chooser);
  chooser.refuse_unused(expected);
  if (targets.empty()) {
    throw Error(fmt::format("{}: expected NVFP4 experts or MLPs to convert, found none in {}",
                            checkpoint.path().string(), counted(modules.size(), "NVFP4 module")));
  }
  std::stable_sort(targets.begin(), targets.end(),
                   [](const OutputMatrix& a, const OutputMatrix& b) { return natural_less(a.name, b.name); });
  return targets;
}

namespace {

/// True if a tensor looks like the matrices of several experts.
bool is_stack_of_weights(const TensorInfo& t) {
  return t.shape.size() == 3 && t.shape[1] >= kGroup && t.shape[2] >= kGroup &&
         t.name.find("conv") == t.name.npos && t.name.find("scale") == t.name.npos;
}

}  // namespace

void warn_of_experts_left(const Checkpoint& c, const std::function<bool(size_t)>& is_taken, ExpertsLeft which,
                          Findings& findings) {
  const int64_t layers = model_layers(c.config());
  std::set<size_t> nvfp4;
  for (const Nvfp4Linear& m : c.nvfp4_modules()) nvfp4.insert(m.codes);
  std::map<std::string, bool, NaturalOrder> taken;  // by block, or by stack without a known name
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const TensorInfo& t = c.tensors()[i];
    if (t.shape.size() < 2) continue;
    const std::string_view module = module_of_tensor(t.name);
    const auto name = parse_module_name(module);
    const bool routed = name && name->kind == BlockKind::kRoutedExperts;
    if (!routed && (!which.stacks || name || !is_stack_of_weights(t))) continue;
    if (!which.nvfp4 && nvfp4.contains(i)) continue;
    if (!which.drafts && module_role(module, layers) == ModuleRole::kMtp) continue;
    bool& any = taken[routed ? name->block : std::string(module)];
    any = any || is_taken(i);
  }
  std::erase_if(taken, [](const auto& block) { return block.second; });
  if (taken.empty()) return;
  findings.push_back({Severity::kWarning, "experts-left", taken.begin()->first,
                      fmt::format("routed experts that stay as they are while others are converted: {}",
                                  counted(taken.size(), "block"))});
}

}  // namespace twofour
