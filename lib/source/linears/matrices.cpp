#include "lib/source/linears/matrices.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "formats/error.h"
#include "formats/module_parts.h"
#include "lib/base/io/file.h"
#include "lib/base/names/weight_names.h"
#include "lib/source/config/config_terms.h"
#include "lib/source/config/model_config.h"
#include "lib/source/linears/expert_stacks.h"
#include "lib/source/linears/linear_shapes.h"

namespace twofour {
namespace {

const char* leaf_of(Projection projection) {
  return projection == Projection::kGate ? "gate_proj"
         : projection == Projection::kUp ? "up_proj"
                                         : "down_proj";
}

const StoredMatrix*& slot_of(StoredExpert& expert, Projection projection) {
  return projection == Projection::kGate ? expert.gate
         : projection == Projection::kUp ? expert.up
                                         : expert.down;
}

}  // namespace

Matrices::Matrices(const Checkpoint& checkpoint, Findings& findings) : checkpoint_(checkpoint) {
  Problems problems;
  modules_ = find_weight_modules(checkpoint, problems);
  const auto leave_out = [&](std::string why) {
    findings.push_back({Severity::kWarning, "not-compared", checkpoint.path().string(), std::move(why)});
  };
  odd_ = problems.lines();
  WeightReader reader(checkpoint);
  std::erase_if(modules_, [&](const Linear& m) {
    if (m.contradiction.empty() && !m.lacks_config) return false;
    try {
      reader.check_settings(m);
      return false;
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      odd_.push_back(e.what());
      return true;
    }
  });
  for (const std::string& line : odd_) leave_out(line);
  std::set<std::string> scopes;  // each scope is checked once
  for (WeightTerm& term : find_weight_terms(access_to(checkpoint))) {
    std::string why = fmt::format("{}: {}", checkpoint.where(term.tensor), term.problem);
    const bool is_new = !term.scope || scopes.insert(*term.scope).second;
    const bool is_left =
        is_new && std::erase_if(modules_, [&](auto& m) { return term.concerns(m.name); }) > 0;
    if (is_left || (!term.scope && !term.weight)) leave_out(why);
    if (is_new) left_out_.push_back({std::move(term), std::move(why)});
  }
  for (OddExperts& block : find_odd_experts(checkpoint)) {
    const std::set<size_t> weights(block.weights.begin(), block.weights.end());
    if (std::erase_if(modules_, [&](const Linear& m) { return weights.contains(m.weight); }) == 0) continue;
    leave_out(block.problem);
    WeightTerm term{block.weights[0], {}, block.block, "experts-extra", block.problem};
    term.scope = block.block;
    left_out_.push_back({std::move(term), std::move(block.problem)});
  }
  const auto terms = find_config_terms(checkpoint, checkpoint.tensors());
  if (!terms.empty() && !modules_.empty()) {
    all_left_out_ = text_of(checkpoint, terms[0]);
    leave_out(all_left_out_);
    modules_.clear();
  }
  for (size_t i = 0; i < modules_.size(); ++i) add(i, findings);
}

const std::string* Matrices::why_left_out(std::string_view name) const {
  for (const auto& [term, why] : left_out_) {
    if (term.concerns(name)) return &why;
    const auto stack = parse_module_name(term.linear);
    if (stack && stack->expert < 0 && is_below(name, stack->block)) return &why;
  }
  // A place is "FILE: TENSOR: " at the beginning or, after that of a setting, "(FILE: TENSOR)" at the end.
  for (const std::string& why : odd_) {
    for (const size_t colon : {why.find(": "), why.rfind(": ")}) {
      if (colon == why.npos) break;
      const std::string_view tensor = std::string_view(why).substr(colon + 2);
      if (!tensor.starts_with(name) || tensor.size() == name.size()) continue;
      if (std::string_view("._:").find(tensor[name.size()]) != std::string_view::npos) return &why;
    }
  }
  return all_left_out_.empty() ? nullptr : &all_left_out_;
}

void Matrices::add_tables_of(const Matrices& other) {
  for (const Linear& m : other.modules_) {
    const auto weight = checkpoint_.find(m.name + ".weight");
    if (!m.is_table || !m.format->coded || !weight || all_.contains(m.name)) continue;
    const TensorInfo& t = checkpoint_.tensors()[*weight];
    if (!is_float(t.dtype) || t.shape != std::vector<int64_t>{m.n, m.k}) continue;
    Linear table{.name = m.name, .format = WeightFormat::kFloat, .weight = *weight};
    table.n = m.n;
    table.k = m.k;
    table.is_table = true;
    all_.emplace(m.name, StoredMatrix{modules_.size(), 0, 0, 1, m.n});
    modules_.push_back(std::move(table));
  }
}

void Matrices::add(size_t i, Findings& findings) {
  const Linear& m = modules_[i];
  const auto put = [&](const std::string& name, const StoredMatrix& matrix) -> const StoredMatrix* {
    const auto [at, is_new] = all_.emplace(name, matrix);
    if (is_new) return &at->second;
    findings.push_back(
        {Severity::kWarning, "not-compared", m.name,
         fmt::format("expected {} once, found it also in {}", name, module_of(at->second).name)});
    return nullptr;
  };
  const auto parsed = parse_module_name(m.name);
  if (!parsed) {
    for (int64_t e = 0; e < m.e; ++e)
      put(m.stacked ? fmt::format("{}.{}", m.name, e) : m.name, {i, e, 0, 1, m.n});
    return;
  }
  const bool routed = parsed->kind == BlockKind::kRoutedExperts;
  const std::string block(parsed->block);
  const auto put_projection = [&](int64_t expert, Projection projection, const StoredMatrix& matrix) {
    const std::string prefix = routed ? fmt::format("{}.{}", block, expert) : block;
    if (const auto* at = put(fmt::format("{}.{}", prefix, leaf_of(projection)), matrix)) {
      slot_of(blocks_[block][expert], projection) = at;
    }
  };
  for (int64_t e = 0; e < m.e; ++e) {
    const int64_t expert = m.stacked ? e : std::max<int64_t>(parsed->expert, 0);
    if (parsed->projection != Projection::kGateUp) {
      put_projection(expert, parsed->projection, {i, e, 0, 1, m.n});
    } else if (m.n % 2 == 0) {
      const bool halves = m.rows == GateUpRows::kHalves;
      const int64_t count = m.n / 2, step = halves ? 1 : 2;
      put_projection(expert, Projection::kGate, {i, e, 0, step, count});
      put_projection(expert, Projection::kUp, {i, e, halves ? count : 1, step, count});
    } else {
      findings.push_back({Severity::kWarning, "not-compared", m.name,
                          fmt::format("expected as many rows of gate as of up, found {} in all", m.n)});
      return;
    }
  }
}

std::string Matrices::format_of(const Linear& m) const {
  if (m.format->coded) return m.format->name;
  return std::string(dtype_name(checkpoint_.tensors()[m.weight].dtype));
}

void read_stored_rows(WeightReader& reader, const Linear& m, const StoredMatrix& s, int64_t n0, int64_t n1,
                      std::span<float> out) {
  if (n0 == n1) return;
  if (s.step == 1) return reader.read_rows(m, s.e, s.first + n0, s.first + n1, out);
  const int64_t begin = s.first + n0 * s.step, end = s.first + (n1 - 1) * s.step + 1;
  std::vector<float> rows(static_cast<size_t>((end - begin) * m.k));
  reader.read_rows(m, s.e, begin, end, rows);
  for (int64_t n = 0; n < n1 - n0; ++n) {
    std::copy_n(rows.begin() + n * s.step * m.k, m.k, out.begin() + n * m.k);
  }
}

std::string other_formats_text(const Checkpoint& c) {
  struct Found {
    size_t count = 0;
    std::string first;
  };
  std::map<std::string, Found> formats;
  const auto add = [&](const char* format, const std::string& module) {
    Found& found = formats[format];
    if (found.count++ == 0) found.first = module;
  };
  Problems problems;
  for (const Linear& m : find_weight_modules(c, problems)) {
    if (m.format->coded && !m.nvfp4) add(m.format->name, m.name);
  }
  for (const UnreadCodes& codes : find_unread_codes(c.tensors())) add(codes.format, codes.module);
  if (formats.empty()) return fmt::format("none among {}", counted(c.tensors().size(), "tensor"));
  std::string text;
  for (const auto& [format, found] : formats) {
    text += fmt::format("{}{} linear{} in {} (first: {})", text.empty() ? "" : ", ", found.count,
                        found.count == 1 ? "" : "s", format, found.first);
  }
  return text;
}

std::vector<std::pair<size_t, std::string>> find_nvfp4_contradictions(const Checkpoint& c) {
  std::vector<std::pair<size_t, std::string>> found;
  if (c.is_view()) return found;
  Problems none;
  LinearShapes shapes(c, none);
  for (const Nvfp4Linear& m : c.nvfp4_modules()) {
    std::string problem =
        shapes.contradiction_of({.name = m.name, .format = WeightFormat::kNvfp4, .weight = m.codes});
    if (!problem.empty()) found.emplace_back(m.codes, std::move(problem));
  }
  std::vector<StackShape> stacks;
  for (const Nvfp4Linear& m : c.nvfp4_modules()) {
    if (m.dialect->stacked) stacks.push_back({m.name, m.codes, m.e, m.n, m.k, m.k_outer});
  }
  for (auto& [codes, problem] : find_odd_stacks(c, stacks)) found.emplace_back(codes, std::move(problem));
  return found;
}

std::string wide_linear(const TensorInfo& t) {
  const auto name = t.dtype == DType::kF64 ? weight_name(t) : std::nullopt;
  if (!name || t.shape.size() < 2 || !(name->is_stack || is_linear_name(name->linear))) return "";
  return fmt::format("expected weights in BF16, F16 or F32, found {}: cast them first", describe(t));
}

std::string scale_beside_floats(std::span<const TensorInfo> tensors, size_t weight, const std::string& linear,
                                bool is_stack) {
  for (const ModulePart& part : module_parts()) {
    if (part.kind != PartKind::kScale) continue;
    const std::string scale = fmt::format("{}{}{}", linear, is_stack ? '_' : '.', part.name);
    if (!find_tensor(tensors, scale)) continue;
    return fmt::format("expected F8_E4M3 because of {} beside it, found {}", scale,
                       describe(tensors[weight]));
  }
  return "";
}

namespace {

/// Finds out whether a term without a linear may change any tensor that is read.
class ReadScopes {
 public:
  ReadScopes(std::span<const TensorInfo> tensors, const std::function<bool(size_t)>& is_read)
      : tensors_(tensors), is_read_(is_read) {}
  bool has(const std::string& scope) {
    const auto [at, is_new] = known_.try_emplace(scope, false);
    if (!is_new) return at->second;
    const std::string below = scope.empty() ? "" : scope + ".";
    auto first = std::lower_bound(tensors_.begin(), tensors_.end(), below,
                                  [](const TensorInfo& t, const std::string& p) { return t.name < p; });
    for (; !at->second && first != tensors_.end() && first->name.starts_with(below); ++first)
      at->second = is_read_(static_cast<size_t>(first - tensors_.begin()));
    return at->second;
  }

 private:
  const std::span<const TensorInfo> tensors_;
  const std::function<bool(size_t)>& is_read_;
  std::map<std::string, bool> known_;
};

}  // namespace

void refuse_changed_weights(const Checkpoint& c, const std::function<bool(size_t)>& is_read,
                            std::span<const Linear> linears, Problems& problems,
                            const std::function<bool(size_t)>& is_described) {
  const auto is_understood = [&](size_t tensor) {
    return is_read(tensor) || (is_described && is_described(tensor));
  };
  WeightReader reader(c);
  for (const Linear& m : linears) {
    if (!is_understood(m.weight) || m.nvfp4) continue;
    try {
      reader.check_settings(m);
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      problems.add(e.what());
    }
  }
  for (const auto& [codes, problem] : find_nvfp4_contradictions(c)) {
    if (is_understood(codes)) problems.add(problem);
  }
  for (const OddExperts& block : find_odd_experts(c)) {
    if (std::ranges::any_of(block.weights, is_understood)) problems.add(block.problem);
  }
  for (const std::string& problem : find_odd_settings(c.config_of_values()))
    problems.add("{}: {}", (c.path() / "config.json").string(), problem);
  for (const ConfigTerm& term : find_config_terms(c, c.tensors())) problems.add(text_of(c, term));
  ReadScopes scopes(c.tensors(), is_read);
  for (const WeightTerm& term : find_weight_terms(access_to(c))) {
    const bool is_its = term.scope ? scopes.has(*term.scope) : !term.weight || is_understood(*term.weight);
    if (is_its || term.is_in_header) problems.add("{}: {}", c.where(term.tensor), term.problem);
  }
}

void refuse_described_codes(const Checkpoint& c) {
  Problems problems;
  for (const WeightTerm& term : find_weight_terms(access_to(c))) {
    if (term.is_in_header) problems.add("{}: {}", c.where(term.tensor), term.problem);
  }
  problems.refuse();
}

}  // namespace twofour
