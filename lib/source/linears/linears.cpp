#include "lib/source/linears/linears.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "formats/atom.h"
#include "formats/error.h"
#include "formats/module_parts.h"
#include "lib/base/names/natural.h"
#include "lib/source/config/model_config.h"
#include "lib/source/linears/expert_stacks.h"
#include "lib/source/linears/linear_shapes.h"

namespace twofour {
namespace {

using Dims = std::vector<int64_t>;

/// A tensor that may hold a module's weights in some dialect.
struct Candidate {
  std::string name;  ///< the module's name
  const WeightDialect* dialect;
  size_t weight;
  std::optional<size_t> scale;
  bool stacked = false;
};

/// The tensors with the weights of gate and up, and of down, in a block of stacked experts.
struct Stacks {
  std::optional<size_t> gate_up, down;
};

std::optional<int64_t> hidden_size(const Json& config) {
  for (const Json* size : model_settings(config, "hidden_size")) {
    if (size->is_number_integer()) return size->get<int64_t>();
  }
  return std::nullopt;
}

class Finder {
 public:
  Finder(const Checkpoint& c, Problems& problems, std::span<const WeightDialect> dialects)
      : c_(c), problems_(problems), dialects_(dialects), shapes_(c, problems) {}

  std::vector<Linear> find() {
    std::vector<Candidate> candidates;
    for (size_t i = 0; i < c_.tensors().size(); ++i) {
      if (auto candidate = candidate_at(i)) candidates.push_back(std::move(*candidate));
    }
    std::vector<Linear> modules;
    for (const Candidate& candidate : candidates) {
      if (auto module = module_of(candidate)) modules.push_back(std::move(*module));
    }
    for (size_t i = 0; i < c_.nvfp4_modules().size(); ++i) {
      const std::string& name = c_.nvfp4_modules()[i].name;
      if (!is_linear_name(name) && !is_table_name(name)) continue;
      if (auto module = nvfp4_module(i)) modules.push_back(std::move(*module));
    }
    if (!c_.is_view()) {
      for (Linear& m : modules) m.contradiction = shapes_.contradiction_of(m);
      add_odd_stacks(modules);
    }
    std::sort(modules.begin(), modules.end(),
              [](const Linear& a, const Linear& b) { return natural_less(a.name, b.name); });
    return modules;
  }

 private:
  void add_odd_stacks(std::vector<Linear>& modules) const {
    std::vector<StackShape> stacks;
    for (const Linear& m : modules) {
      if (m.stacked) stacks.push_back({m.name, m.weight, m.e, m.n, m.k, m.k_outer});
    }
    for (const auto& [weight, problem] : find_odd_stacks(c_, stacks)) {
      const auto at = std::ranges::find(modules, weight, &Linear::weight);
      if (at->contradiction.empty()) at->contradiction = problem;
    }
  }

  const TensorInfo& tensor(size_t i) const { return c_.tensors()[i]; }
  std::string described(size_t i) const { return describe(tensor(i)); }
  void expect(size_t i, const std::string& expected) {
    problems_.add("{}: expected {}, found {}", c_.where(i), expected, described(i));
  }
  /// True if a tensor of that rank and name may be a linear. A stack must have a known name.
  bool fits_rank(size_t rank, const WeightDialect& dialect, const std::string& name, bool& stacked) {
    if (std::string_view(dialect.weight) == "_blocks") return stacked = true, rank == 4;
    if (rank == 2) {
      const bool quantized = dialect.format->coded;
      return !dialect.bare && (is_linear_name(name) || (quantized && is_table_name(name)));
    }
    if (rank != 3) return false;
    const auto parsed = parse_module_name(name);
    if (!parsed || parsed->kind != BlockKind::kRoutedExperts || parsed->expert >= 0) return false;
    return stacked = true;
  }

  std::optional<Candidate> candidate_at(size_t i) {
    const TensorInfo& t = tensor(i);
    if (t.shape.size() < 2) return std::nullopt;
    std::optional<Candidate> found;
    const WeightDialect* lacking = nullptr;  // a dialect that would fit if the tensor had a scale beside it
    for (const WeightDialect& dialect : dialects_) {
      if (!dialect.weight_types.has(t.dtype) || !t.name.ends_with(dialect.weight)) continue;
      Candidate candidate{t.name.substr(0, t.name.size() - std::string_view(dialect.weight).size()), &dialect,
                          i, std::nullopt};
      if (!fits_rank(t.shape.size(), dialect, candidate.name, candidate.stacked)) continue;
      if (dialect.scale != nullptr) {
        candidate.scale = find_scale(candidate.name, dialect);
        if (!candidate.scale || !dialect.scale_types.has(tensor(*candidate.scale).dtype)) {
          lacking = &dialect;
          continue;
        }
        const bool has_all =
            dialect.global_scale == nullptr || c_.find(candidate.name + dialect.global_scale);
        if (!has_all || !shapes_.is_of(candidate.name, dialect, i, *candidate.scale)) continue;
        if (found) {
          problems_.add("{}: expected one scale beside it, found {} and {}", c_.where(i),
                        tensor(*found->scale).name, tensor(*candidate.scale).name);
          return std::nullopt;
        }
      }
      if (!found) {
        found = std::move(candidate);
        if (found->stacked) note_stack(*found);
      }
    }
    if (!found && lacking != nullptr && !is_other_format(t)) {
      expect(i, lacking->format->tiles
                    ? "FP8 weights with .weight_scale_inv, .weight_scale or .scale beside them"
                    : fmt::format("{} codes with their scales beside them", lacking->format->name));
    }
    if (!found && is_modelopt_int4(t)) {
      expect(i, "INT4 of compressed-tensors, AWQ or GPTQ, not W4A16_AWQ or W4A8_AWQ as ModelOpt packs it");
    }
    return found;
  }

  /// True for ModelOpt's INT4 [N/2, K], where a byte holds two rows, beside float scales.
  bool is_modelopt_int4(const TensorInfo& t) const {
    if (t.dtype != DType::kU8 || t.shape.size() != 2 || !t.name.ends_with(".weight")) return false;
    const auto scale = c_.find(t.name + "_scale");
    return scale && is_float(tensor(*scale).dtype);
  }

  /// Finds the scale beside a weight. For a piece of an embedding, finds the scale that its pieces share.
  std::optional<size_t> find_scale(const std::string& module, const WeightDialect& dialect) {
    const auto own = c_.find(module + dialect.scale);
    const std::string_view whole = table_of_piece(module);
    if (own || whole.empty()) return own;
    const auto shared = c_.find(std::string(whole) + dialect.scale);
    return shared && tensor(*shared).bytes() * 8 == static_cast<uint64_t>(dtype_bits(tensor(*shared).dtype))
               ? shared
               : std::nullopt;
  }

  /// True for formats that are not read here. I8 without E8M0 scales is INT8, and U8 without U8 scales is
  /// NVFP4.
  static bool is_other_format(const TensorInfo& t) {
    return t.dtype == DType::kI8 || (t.dtype == DType::kU8 && !t.name.ends_with("_blocks"));
  }

  void note_stack(const Candidate& stack) {
    const auto parsed = parse_module_name(stack.name);
    if (!parsed || stack.dialect->format->in_groups()) return;
    Stacks& block = stacks_[std::string(parsed->block)];
    (parsed->projection == Projection::kGateUp ? block.gate_up : block.down) = stack.weight;
  }

  std::optional<Linear> nvfp4_module(size_t i) {
    const Nvfp4Linear& m = c_.nvfp4_modules()[i];
    Linear module{.name = m.name, .format = WeightFormat::kNvfp4, .weight = m.codes};
    module.scale = m.block_scale;
    module.global_scale = m.global_scale;
    module.input_scale = m.input_scale;
    module.bias = c_.find(m.name + (m.dialect->stacked ? "_bias" : ".bias"));
    module.e = m.e;
    module.n = m.n;
    module.k = m.k;
    module.stacked = m.dialect->stacked;
    module.k_outer = m.k_outer;
    module.scale_rows = 1;
    module.scale_cols = kGroup;
    module.nvfp4 = i;
    module.is_table = is_table_name(m.name);
    return set_rows(module) ? std::optional(std::move(module)) : std::nullopt;
  }

  /// Sets the order of the rows in a stack of gate and up. Returns false if the order is uncertain.
  bool set_rows(Linear& module) {
    const auto parsed = module.stacked ? parse_module_name(module.name) : std::nullopt;
    if (!parsed || parsed->projection != Projection::kGateUp) return true;
    const GateUpOrder found = find_gate_up_order(c_, parsed->block);
    if (found.rows) {
      module.rows = *found.rows;
    } else {
      problems_.add("{}: {}", c_.where(module.weight), found.problem);
    }
    return found.rows.has_value();
  }

  std::optional<Linear> module_of(const Candidate& candidate) {
    const TensorInfo& t = tensor(candidate.weight);
    Linear m{.name = candidate.name, .format = candidate.dialect->format, .weight = candidate.weight};
    m.scale = candidate.scale;
    m.stacked = candidate.stacked;
    m.is_table = is_table_name(m.name);
    m.bias = c_.find(m.name + candidate.dialect->bias);
    if (candidate.dialect->input_scale != nullptr) {
      m.input_scale = c_.find(m.name + candidate.dialect->input_scale);
    }
    const auto find_term = [&](const char* suffix) {
      return suffix != nullptr ? c_.find(m.name + suffix) : std::nullopt;
    };
    m.zero_points = find_term(candidate.dialect->zero_points);
    m.group_index = find_term(candidate.dialect->group_index);
    m.shape = find_term(candidate.dialect->shape);
    if (!set_rows(m)) return std::nullopt;
    if (std::count(t.shape.begin(), t.shape.end(), 0) > 0) {
      expect(candidate.weight, "at least one weight");
      return std::nullopt;
    }
    m.global_scale = find_term(candidate.dialect->global_scale);
    const bool sound = m.format->in_groups() ? shapes_.read_grouped(m)
                       : m.format->integers  ? shapes_.read_int4(m)
                                             : read_shape(m) && (!m.scale || shapes_.read_fp8_scale(m));
    if (sound && !m.format->coded) return without_scale(std::move(m));
    return sound ? std::optional(std::move(m)) : std::nullopt;
  }

  /// A module of floats. A scale of codes beside them is refused, since loaders would differ on it.
  std::optional<Linear> without_scale(Linear m) {
    const std::string problem = scale_beside_floats(c_.tensors(), m.weight, m.name, m.stacked);
    if (problem.empty()) return m;
    problems_.add("{}: {}", c_.where(m.weight), problem);
    return std::nullopt;
  }

  bool read_shape(Linear& m) {
    const Dims& shape = tensor(m.weight).shape;
    if (m.stacked) {
      const auto outer = is_k_outer(m);
      if (!outer) return false;
      m.k_outer = *outer;
      m.e = shape[0];
    }
    m.n = shape[shape.size() - (m.k_outer ? 1 : 2)];
    m.k = shape[shape.size() - (m.k_outer ? 2 : 1)];
    return true;
  }

  /// True if a stack is [E, K, N], and false if it is [E, N, K]. With N first, gate_up is [E, 2I, H] and down
  /// is [E, H, I]. With K first, they are [E, H, 2I] and [E, I, H]. One stack alone may be square, so both
  /// together decide.
  std::optional<bool> is_k_outer(const Linear& m) {
    const auto parsed = parse_module_name(m.name);
    const Stacks& block = stacks_[std::string(parsed->block)];
    if (block.gate_up && block.down) {
      const Dims &a = tensor(*block.gate_up).shape, &b = tensor(*block.down).shape;
      const auto is_twice = [](int64_t x, int64_t half) { return x % 2 == 0 && x / 2 == half; };
      if (a[0] == b[0] && a[2] == b[1] && is_twice(a[1], b[2])) return false;
      if (a[0] == b[0] && a[1] == b[2] && is_twice(a[2], b[1])) return true;
      if (m.weight == *block.gate_up) {
        expect(m.weight, fmt::format("[E, 2I, H] or [E, H, 2I] for {}, {} [E, H, I] or [E, I, H]",
                                     tensor(*block.down).name, described(*block.down)));
      }
      return std::nullopt;
    }
    const Dims& shape = tensor(m.weight).shape;
    const auto h = hidden_size(c_.config_of_values());
    const bool down = parsed->projection == Projection::kDown;
    if (!h || (shape[1] == *h) == (shape[2] == *h)) {
      expect(m.weight, fmt::format("one dimension equal to the hidden size{} to distinguish N from K",
                                   h ? fmt::format(", {},", *h) : ", which config.json does not state,"));
      return std::nullopt;
    }
    return down == (shape[2] == *h);  // the hidden size H is N of down and K of gate_up
  }

  const Checkpoint& c_;
  Problems& problems_;
  std::span<const WeightDialect> dialects_;
  LinearShapes shapes_;
  std::map<std::string, Stacks> stacks_;
};

}  // namespace

std::vector<size_t> Linear::tensors() const {
  std::vector<size_t> all{weight};
  for (const auto& tensor : {scale, global_scale, input_scale, zero_points, group_index, shape}) {
    if (tensor) all.push_back(*tensor);
  }
  return all;
}

bool is_mxfp8(const Checkpoint& c, const Linear& m) {
  return m.format->tiles && m.scale && m.scale_rows == 1 && m.scale_cols == kMxGroup &&
         dtype_bits(c.tensors()[*m.scale].dtype) == 8;
}

void WeightReader::check_settings(const Linear& m) {
  if (!m.contradiction.empty()) throw Error(m.contradiction);
  if (m.is_ordered) read_group_index(m);
  if (!m.lacks_config) return check_zero_points(m);
  Linear strict = m;
  strict.symmetry = "none";
  check_zero_points(strict);
}

void WeightReader::check_zero_points(const Linear& m) {
  const bool is_checked = !m.symmetry.empty() || m.wraps;
  if (!m.format->integers || !m.zero_points || !is_checked) return;
  constexpr int64_t kRows = 4096;  // a multiple of the rows that share a word
  for (int64_t n = 0; n < m.n; n += kRows) read_zero_points(m, n, std::min(m.n, n + kRows));
}

std::vector<Linear> find_weight_modules(const Checkpoint& checkpoint, Problems& problems,
                                        std::span<const WeightDialect> dialects) {
  return Finder(checkpoint, problems, dialects).find();
}

std::vector<Linear> find_weight_modules(const Checkpoint& checkpoint) {
  Problems problems;
  auto modules = find_weight_modules(checkpoint, problems);
  problems.refuse();
  return modules;
}

}  // namespace twofour
