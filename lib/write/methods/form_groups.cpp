#include "lib/write/methods/quantize_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "lib/recipe/selection/output_matrix.h"
#include "lib/write/encode/quantize_select.h"

namespace twofour {
namespace {

/// The input scale of an expert as a multiplier for E4M3 (amax / 448). 0 if the source has none.
float fp8_input_scale(const Checkpoint& c, const Linear& m, int64_t e, Problems& problems) {
  if (!m.input_scale) return 0;
  const TensorInfo& t = c.tensors()[*m.input_scale];
  const uint64_t count = t.bytes() / sizeof(float);
  const bool fits = t.dtype == DType::kF32 && (count == 1 || count == static_cast<uint64_t>(m.e));
  if (!fits) {
    problems.add(fmt::format("{}: expected F32 [] or [1], found {}", c.where(*m.input_scale),
                             describe(t.dtype, t.shape)));
    return 0;
  }
  uint8_t bytes[sizeof(float)];
  c.read(*m.input_scale, count == 1 ? 0 : static_cast<uint64_t>(e) * sizeof(float), bytes);
  float scale = 0;
  std::memcpy(&scale, bytes, sizeof(scale));
  if (m.nvfp4) {
    // The stored scale is amax / 2688 or its reciprocal.
    scale = global_scale_multiplier(*c.nvfp4_modules()[*m.nvfp4].dialect, scale) * kE2m1Max;
  }
  if (!std::isfinite(scale) || scale <= 0) {
    problems.add(
        fmt::format("{}: expected a positive finite input scale, found {}", c.where(*m.input_scale), scale));
  }
  return scale;
}

/// Forms the groups of one rule.
class GroupBuilder {
 public:
  GroupBuilder(const EncodeRule& encode, const FixedGlobalScales& kept, Planner& planner)
      : c_(planner.source),
        limits_(planner.limits),
        problems_(planner.problems),
        rule_(encode),
        dialect_(*encode.dialect),
        kept_(std::make_shared<const FixedGlobalScales>(encode.in_place ? own_scales() : kept)) {}

  FormedGroups form(const std::vector<Linear>& linears) {
    bool is_known = true;
    for (const std::vector<size_t>& members : fused_groups(linears)) {
      const auto first = std::make_shared<const Linear>(linears[members[0]]);
      if (first->stacked) {
        const auto parts = stack_parts(c_, first->name, first->n);
        if (parts.empty()) {
          problems_.add(fmt::format("{}: expected a stack of experts with a known name, found {}",
                                    c_.where(first->weight), first->name));
          is_known = false;
          continue;
        }
        for (int64_t e = 0; e < first->e; ++e) {
          begin_group();
          for (const StackPart& p : parts) {
            add_matrix({expert_name(first->name, e, p.leaf), first, e, p.first, p.step, p.rows, first->k});
          }
          if (e == 0) consume(*first);
        }
        continue;
      }
      begin_group();
      for (const size_t i : members) {
        const auto one = i == members[0] ? first : std::make_shared<const Linear>(linears[i]);
        // Only matrices in NVFP4 share a scale.
        if (!rule_.is_nvfp4() && i != members[0]) begin_group();
        add_matrix({one->name, one, 0, 0, 1, one->n, one->k});
        consume(*one);
      }
    }
    if (!is_known) problems_.refuse();  // otherwise they would be reported again as linears that stay
    for (auto& group : formed_.groups) group->set_weight_type(weight_type(*group));
    return std::move(formed_);
  }

 private:
  /// The global scales of the source's NVFP4, in the rule's dialect.
  FixedGlobalScales own_scales() const {
    FixedGlobalScales own;
    own.divides = dialect_.nvfp4->divides;
    for (const Nvfp4Linear& m : c_.nvfp4_modules()) {
      if (m.dialect->name != dialect_.nvfp4->name || m.dialect->stacked) continue;
      own.scales.push_back({m.name, read_global_scale(c_, m, 0, problems_).raw_bits});
    }
    own.sort();
    if (rule_.folds_pairs) fold_pairs(own);
    return own;
  }

  /// Gives a gate and its up the larger of their two global scales.
  static void fold_pairs(FixedGlobalScales& own) {
    const auto pair_of = [](const FixedGlobalScales::Scale& s) {
      const auto name = parse_module_name(s.name);
      const bool pairs =
          name && (name->projection == Projection::kGate || name->projection == Projection::kUp);
      return pairs ? fmt::format("{}.{}", name->block, name->expert) : s.name;
    };
    std::map<std::string, uint32_t> folded;  // positive numbers have the same order as their float32 bits
    for (const FixedGlobalScales::Scale& s : own.scales) {
      uint32_t& bits = folded.try_emplace(pair_of(s), s.bits).first->second;
      bits = own.divides ? std::min(bits, s.bits) : std::max(bits, s.bits);
    }
    for (FixedGlobalScales::Scale& s : own.scales) s.bits = folded.at(pair_of(s));
  }

  /// True if input scales are written.
  bool has_input_scales() const { return rule_.scheme.has_input_scale; }

  void begin_group() { formed_.groups.push_back(std::make_unique<QuantizedGroup>(rule_, kept_, limits_)); }

  void add_matrix(EncodedMatrix matrix) {
    if (has_input_scales()) {
      matrix.input_scale = fp8_input_scale(c_, *matrix.source, matrix.expert, problems_);
      if (matrix.input_scale == 0) {
        matrix.input_scale = 1;
        ++formed_.without_input_scale;
      }
    }
    ++formed_.matrices;
    if (!kept_->scales.empty() && kept_->find(matrix.name) == nullptr && formed_.without_kept++ == 0) {
      formed_.first_without_kept = matrix.name;
    }
    QuantizedGroup& group = *formed_.groups.back();
    group.add(std::move(matrix));
    add_parts(group, group.matrices().size() - 1);
  }

  void add_parts(QuantizedGroup& group, size_t i) {
    const EncodedMatrix& m = group.matrices()[i];
    const auto add = [&](EncodedPart part, std::string name, DType dtype, std::vector<int64_t> shape) {
      group.add_part(i, part, {std::move(name), dtype, std::move(shape), 0, 0});
    };
    if (!rule_.is_nvfp4()) {
      const Spelling to = *dialect_.spelling(rule_.scheme, m.rows, m.k);
      add(EncodedPart::kValues, m.name + to.weight, to.weight_type,
          {m.rows, rule_.scheme.format->code_bytes(m.k)});
      add(EncodedPart::kScales, m.name + to.scale, to.scale_type.value_or(rule_.scheme.scale_type),
          to.scale_shape);
      if (m.input_scale != 0) {
        add(EncodedPart::kInputScale, m.name + to.input_scale, DType::kF32, dialect_.scalar_shape());
      }
    } else {
      const Nvfp4Dialect& to = *dialect_.nvfp4;
      add(EncodedPart::kValues, m.name + to.codes, DType::kU8, {m.rows, m.k / 2});
      add(EncodedPart::kScales, m.name + to.block_scale, DType::kF8E4M3, {m.rows, m.k / kGroup});
      const auto own = m.source->nvfp4;
      add(EncodedPart::kGlobalScale, m.name + to.global_scale, DType::kF32,
          rule_.in_place ? c_.tensors()[c_.nvfp4_modules()[*own].global_scale].shape
                         : dialect_.scalar_shape());
    }
    if (m.source->stacked && m.source->bias) {
      add(EncodedPart::kBias, m.name + ".bias", c_.tensors()[*m.source->bias].dtype, {m.rows});
    }
  }

  DType weight_type(const QuantizedGroup& group) const {
    const auto type_of = [&](const EncodedMatrix& m) {
      return !m.source->format->coded ? c_.tensors()[m.source->weight].dtype : DType::kF32;
    };
    const DType type = type_of(group.matrices()[0]);
    const bool same = std::all_of(group.matrices().begin(), group.matrices().end(),
                                  [&](const EncodedMatrix& m) { return type_of(m) == type; });
    return same ? type : DType::kF32;
  }

  /// Adds the source's tensors of a module to the last group.
  void consume(const Linear& m) {
    QuantizedGroup& group = *formed_.groups.back();
    for (const size_t tensor : m.tensors()) {
      if (!rule_.in_place || tensor != m.input_scale) group.consume(tensor);
    }
    if (rule_.in_place) return;
    if (m.stacked && m.bias) group.consume(*m.bias);
    formed_.input_scales_dropped += m.input_scale.has_value() && !has_input_scales();
    formed_.rounded_twice += m.format->coded;
    const auto name = parse_module_name(m.name);
    formed_.has_experts = formed_.has_experts || (name && name->kind == BlockKind::kRoutedExperts);
  }

  const Checkpoint& c_;
  const MemoryLimits& limits_;
  Problems& problems_;
  const EncodeRule& rule_;
  const OutputDialect& dialect_;
  const std::shared_ptr<const FixedGlobalScales> kept_;
  FormedGroups formed_;
};

}  // namespace

FormedGroups form_groups(const EncodeRule& encode, const FixedGlobalScales& kept,
                         const std::vector<Linear>& linears, Planner& planner) {
  return GroupBuilder(encode, kept, planner).form(linears);
}

}  // namespace twofour
