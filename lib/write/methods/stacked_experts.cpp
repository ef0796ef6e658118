#include "lib/write/methods/stacked_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "formats/families/family.h"
#include "lib/source/config/model_config.h"
#include "lib/write/encode/quantized_group.h"

namespace twofour {
namespace {

/// The bytes of a weight in BF16.
constexpr int64_t kWidth = 2;

/// The tensors of a linear from which a stack is made. The bias of a linear that is a stack stays as it is.
std::vector<size_t> tensors_of(const Linear& m) {
  std::vector<size_t> all = m.tensors();
  if (!m.stacked && m.bias) all.push_back(*m.bias);
  return all;
}

}  // namespace

StackedExperts::StackedExperts(ExpertStack stack, const MemoryLimits& limits)
    : stack_(std::move(stack)), limits_(limits) {
  set_rule("its family stores experts in stacks");
}

int64_t StackedExperts::unit_lines() const {
  if (!stack_.by_columns) return std::clamp<int64_t>(kStackUnitWeights / stack_.k, 1, stack_.n());
  // Each unit reads all rows, so fewer units are better.
  const auto most = static_cast<int64_t>(limits_.piece) / (kWidth * stack_.n());
  return std::clamp<int64_t>(most, 1, stack_.k);
}

int64_t StackedExperts::strip_rows() const {
  return std::clamp<int64_t>(kQuantizeStripWeights / stack_.k, 1, stack_.rows);
}

std::vector<TensorInfo> StackedExperts::outputs(const Checkpoint&) const {
  std::vector<TensorInfo> all{stack_.weights};
  if (stack_.bias) all.push_back(*stack_.bias);
  return all;
}

std::vector<size_t> StackedExperts::sources() const {
  std::set<size_t> all(dropped_.begin(), dropped_.end());
  for (const auto& m : stack_.matrices) {
    const auto own = tensors_of(*m);
    all.insert(own.begin(), own.end());
  }
  return {all.begin(), all.end()};
}

std::vector<Unit> StackedExperts::units(const Checkpoint& source) const {
  uint64_t stored = 0;  // of all experts
  for (const size_t tensor : sources()) stored += source.tensors()[tensor].bytes();
  const uint64_t of_expert = stored / static_cast<uint64_t>(stack_.e);
  const int64_t lines = stack_.by_columns ? stack_.k : stack_.n(), step = unit_lines();
  const auto line = static_cast<uint64_t>(kWidth * (stack_.by_columns ? stack_.n() : stack_.k));
  std::vector<Unit> all;
  for (int64_t e = 0; e < stack_.e; ++e) {
    for (int64_t at = 0; at < lines; at += step) {
      const int64_t end = std::min(lines, at + step);
      const uint64_t first = static_cast<uint64_t>(e * lines) * line;
      const uint64_t read = stack_.by_columns
                                ? of_expert
                                : of_expert / static_cast<uint64_t>(lines) * static_cast<uint64_t>(end - at);
      all.push_back({.index = all.size(),
                     .part = 0,
                     .begin = first + static_cast<uint64_t>(at) * line,
                     .end = first + static_cast<uint64_t>(end) * line,
                     .read = read});
    }
  }
  if (stack_.bias) {
    all.push_back({.index = all.size(),
                   .part = 1,
                   .begin = 0,
                   .end = stack_.bias->bytes(),
                   .read = stack_.bias->bytes()});
  }
  return all;
}

uint64_t StackedExperts::worker_bytes() const {
  const int64_t line = stack_.by_columns ? stack_.n() : stack_.k;
  // The buffers hold the bytes that are written, the stored rows twice, and the rows as floats.
  const auto made = static_cast<uint64_t>(unit_lines() * line * kWidth);
  return made + static_cast<uint64_t>(strip_rows() * stack_.k) * kQuantizeStripBytes;
}

std::string StackedExperts::origin(const Checkpoint& source, int part) const {
  const Linear& first = stack_.matrix(0, 0);
  return source.where(part == 0 ? first.weight : *first.bias);
}

Json StackedExperts::empty_result() const { return {{"weights", Hash128{}.hex()}}; }

void StackedExperts::check_result(const Json& result) const {
  parse_hash("weights", result.at("weights").get<std::string>());
}

Json StackedExperts::entries(const Checkpoint& source, const Json& result,
                             const std::vector<Json>& tensors) const {
  Json entry = {{"name", stack_.weights.name},
                {"layout", "bf16"},
                {"shape", {stack_.e, stack_.n(), stack_.k}},
                {"gated", false}};
  entry["tensors"] = tensors;
  const Linear& first = stack_.matrix(0, 0);
  entry["sources"] = Json::array({{{"module", first.name},  // the first module and the modules after it
                                   {"format", first.format->name},
                                   {"dtype", dtype_name(source.tensors()[first.weight].dtype)},
                                   {"weights_xxh3_128", result.at("weights")}}});
  return Json::array({std::move(entry)});
}

std::string StackedExperts::content(const Json& result, std::span<const Hash128> outputs) const {
  auto text = result.at("weights").get<std::string>();
  if (stack_.bias) text += outputs[1].hex();
  return text;
}

std::vector<ModuleReport> StackedExperts::report(const Checkpoint&, const Json&) const {
  return {{stack_.weights.name, {stack_.e, stack_.n(), stack_.k}}};
}

namespace {

/// Experts of a block that are single, or in stacks of a different form, as indices of modules.
struct ExpertBlock {
  std::map<int64_t, std::map<Projection, size_t>> experts;
  std::map<Projection, size_t> stacks;
};

/// A family whose loaders accept stacks.
struct StackingFamily {
  const ExpertStacks* stacks = nullptr;  ///< null if the family has none
  std::string model_type;
  /// True if its files have stacks alone. Loaders of other families also accept single experts.
  bool needs_stacks() const { return stacks->files != ExpertFiles::kApart; }
};
StackingFamily stacking_family(const Json& config) {
  StackingFamily found;
  for (const Json* type : model_settings(config, "model_type")) {
    if (!type->is_string()) continue;
    const std::string& name = type->get_ref<const std::string&>();
    const ExpertStacks* stacks = find_expert_stacks(name);
    if (stacks == nullptr) continue;
    if (stacks->files != ExpertFiles::kApart) return {stacks, name};
    if (found.stacks == nullptr) found = {stacks, name};
  }
  return found;
}

class StackPlanner {
 public:
  StackPlanner(Planner& planner, const std::vector<Linear>& modules, std::span<const size_t> chosen,
               const StackingFamily& family)
      : planner_(planner),
        modules_(modules),
        chosen_(chosen.begin(), chosen.end()),
        family_(family),
        by_columns_(family.stacks->files == ExpertFiles::kColumnStacks) {}

  std::vector<size_t> run() {
    for (const auto& [name, block] : find_blocks()) {
      for (const auto& [projection, i] : block.stacks) plan_turned(name, projection, i);
      if (block.experts.empty()) continue;
      if (const std::string problem = why_apart(name, block); !problem.empty()) {
        planner_.findings.push_back(
            {Severity::kWarning, "experts-not-stacked", name,
             fmt::format("expected all its experts to become one stack (as in files of {}), found {}: its "
                         "loaders do not support single experts",
                         family_.model_type, problem)});
        continue;
      }
      plan_experts(name, block, {Projection::kGate, Projection::kUp}, Projection::kGateUp);
      plan_experts(name, block, {Projection::kDown}, Projection::kDown);
    }
    std::sort(taken_.begin(), taken_.end());
    return std::move(taken_);
  }

 private:
  /// Finds the blocks that have a matrix to widen.
  std::map<std::string, ExpertBlock> find_blocks() const {
    std::map<std::string, ExpertBlock> blocks;
    std::set<std::string> widened;
    for (size_t i = 0; i < modules_.size(); ++i) {
      const Linear& m = modules_[i];
      const auto name = parse_module_name(m.name);
      if (!name || name->kind != BlockKind::kRoutedExperts ||
          stack_tensor(name->block, Projection::kDown).empty())
        continue;
      const bool is_chosen = chosen_.contains(i) && !planner_.is_taken(m.weight);
      if (is_chosen) widened.insert(name->block);
      if (family_.needs_stacks() && name->expert >= 0 && !m.stacked)
        blocks[name->block].experts[name->expert][name->projection] = i;
      // Other stacks keep their form, which is the family's form.
      if (m.stacked && is_chosen && by_columns_ != m.k_outer)
        blocks[name->block].stacks[name->projection] = i;
    }
    std::erase_if(blocks, [&](const auto& block) { return !widened.contains(block.first); });
    return blocks;
  }

  /// The reason why the experts of a block cannot become stacks. Empty if they can.
  std::string why_apart(const std::string& name, const ExpertBlock& block) const {
    const auto count = static_cast<int64_t>(block.experts.size());
    if (block.experts.rbegin()->first != count - 1) {
      return fmt::format("{} experts with numbers up to {}", count, block.experts.rbegin()->first);
    }
    const auto& model = block.experts.begin()->second;
    for (const auto& [e, matrices] : block.experts) {
      if (matrices.size() != 3) return fmt::format("{} matrices of expert {}", matrices.size(), e);
      for (const auto& [projection, i] : matrices) {
        const Linear &m = modules_[i], &first = modules_[model.at(projection)];
        const bool is_bf16 = !m.format->coded && planner_.source.tensors()[m.weight].dtype == DType::kBF16;
        if (!chosen_.contains(i) && !is_bf16) return fmt::format("{} that stays as it is", m.name);
        if (planner_.is_taken(m.weight)) return fmt::format("another rule for {}", m.name);
        if (m.n != first.n || m.k != first.k) {
          return fmt::format("[{}, {}] of {} and [{}, {}] of {}", first.n, first.k, first.name, m.n, m.k,
                             m.name);
        }
      }
      const Linear &gate = modules_[matrices.at(Projection::kGate)],
                   &up = modules_[matrices.at(Projection::kUp)];
      if (gate.n != up.n || gate.k != up.k)
        return fmt::format("[{}, {}] of {} and [{}, {}] of {}", gate.n, gate.k, gate.name, up.n, up.k,
                           up.name);
    }
    for (const Projection p : {Projection::kGateUp, Projection::kDown}) {
      if (planner_.source.find(stack_tensor(name, p))) return stack_tensor(name, p) + " beside them";
    }
    return {};
  }

  ExpertStack make_stack(const std::string& block, Projection projection, int64_t e, int64_t rows, int64_t k,
                         size_t per_expert) const {
    ExpertStack stack{.projection = projection, .weights = {}, .bias = {}, .matrices = {}};
    stack.by_columns = by_columns_;
    stack.interleaved = per_expert == 2 && family_.stacks->rows == GateUpRows::kInterleaved;
    stack.e = e;
    stack.rows = rows;
    stack.k = k;
    stack.per_expert = per_expert;
    stack.weights = {stack_tensor(block, projection), DType::kBF16,
                     by_columns_ ? std::vector{e, k, stack.n()} : std::vector{e, stack.n(), k}, 0,
                     static_cast<uint64_t>(e * stack.n() * k * kWidth)};
    return stack;
  }

  void plan_experts(const std::string& name, const ExpertBlock& block, std::vector<Projection> order,
                    Projection projection) {
    const Linear& first = modules_[block.experts.at(0).at(order[0])];
    ExpertStack stack = make_stack(name, projection, static_cast<int64_t>(block.experts.size()), first.n,
                                   first.k, order.size());
    for (const auto& [e, matrices] : block.experts) {
      for (const Projection p : order) {
        const size_t i = matrices.at(p);
        stack.matrices.push_back(std::make_shared<const Linear>(modules_[i]));
        taken_.push_back(i);
      }
    }
    add_bias(stack);
    planner_.add(std::make_unique<StackedExperts>(std::move(stack), planner_.limits));
  }

  /// Plans a stack that is stored in another order than the family's stacks of floats, like MXFP4 by rows.
  void plan_turned(const std::string& name, Projection projection, size_t i) {
    const Linear& m = modules_[i];
    ExpertStack stack = make_stack(name, projection, m.e, m.n, m.k, 1);
    stack.matrices.assign(static_cast<size_t>(m.e), std::make_shared<const Linear>(m));
    taken_.push_back(i);
    planner_.add(std::make_unique<StackedExperts>(std::move(stack), planner_.limits));
  }

  void add_bias(ExpertStack& stack) {
    const Checkpoint& c = planner_.source;
    const Linear& first = stack.matrix(0, 0);
    for (const auto& m : stack.matrices) {
      const TensorInfo* bias = m->bias ? &c.tensors()[*m->bias] : nullptr;
      if ((bias != nullptr) != family_.stacks->has_bias) {
        planner_.problems.add(fmt::format("{}: expected {} (as in experts of {}), found {}",
                                          c.where(m->weight),
                                          family_.stacks->has_bias ? "a bias beside it" : "no bias beside it",
                                          family_.model_type, bias != nullptr ? bias->name : "none"));
        return;
      }
      if (bias == nullptr) continue;
      const DType dtype = c.tensors()[*first.bias].dtype;
      if (bias->dtype == dtype && bias->shape == std::vector{stack.rows}) continue;
      planner_.problems.add(fmt::format("{}: expected {}, found {}", c.where(*m->bias),
                                        describe(dtype, std::vector{stack.rows}),
                                        describe(bias->dtype, bias->shape)));
      return;
    }
    if (!first.bias) return;
    TensorInfo bias{stack.weights.name + "_bias", c.tensors()[*first.bias].dtype, {stack.e, stack.n()}, 0, 0};
    bias.end = tensor_bytes(bias.name, bias.dtype, bias.shape);
    stack.bias = std::move(bias);
  }

  Planner& planner_;
  const std::vector<Linear>& modules_;
  const std::set<size_t> chosen_;
  const StackingFamily& family_;
  const bool by_columns_;
  std::vector<size_t> taken_;
};

}  // namespace

std::vector<size_t> plan_stacks(Planner& planner, const std::vector<Linear>& modules,
                                std::span<const size_t> chosen) {
  const StackingFamily family = stacking_family(planner.source.config());
  if (family.stacks == nullptr) return {};
  return StackPlanner(planner, modules, chosen, family).run();
}

}  // namespace twofour
