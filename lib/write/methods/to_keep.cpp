#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "formats/e8m0.h"
#include "formats/module_names.h"
#include "lib/recipe/selection/chooser.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/dialect_rows.h"
#include "lib/write/encode/quantized_group.h"
#include "lib/write/methods/method_list.h"
#include "lib/write/methods/nvfp4_modules.h"

namespace twofour {
namespace {

/// True if the tensors of a linear already have the names, types and shapes of `to`.
bool is_spelled(const Checkpoint& c, const Linear& m, const Spelling& to) {
  if (m.stacked || (to.needs_input_scale && !m.input_scale)) return false;
  const TensorInfo &weight = c.tensors()[m.weight], &scale = c.tensors()[*m.scale];
  return weight.name == m.name + to.weight && weight.dtype == to.weight_type &&
         scale.name == m.name + to.scale && scale.dtype == to.scale_type.value_or(scale.dtype) &&
         scale.shape == to.scale_shape;
}

/// The scheme that a linear with `scheme` has in a dialect.
Scheme scheme_in(const OutputDialect& dialect, const Scheme& scheme, const Linear& m) {
  const auto name = parse_module_name(m.name);
  const bool routed = name && name->kind == BlockKind::kRoutedExperts;
  return routed && dialect.of_experts != nullptr ? dialect.of_experts(scheme) : scheme;
}

/// True if `type` can represent all F32 values of a tensor exactly.
bool holds_exactly(const Checkpoint& c, size_t tensor, DType type) {
  if (type != DType::kBF16) return false;
  std::vector<uint32_t> bits(c.tensors()[tensor].bytes() / sizeof(float));
  c.read(tensor, 0, {reinterpret_cast<uint8_t*>(bits.data()), bits.size() * sizeof(float)});
  return std::all_of(bits.begin(), bits.end(), [](uint32_t b) { return (b & 0xFFFF) == 0; });
}

/// Plans a linear in the spelling of a dialect. Stacks become single experts, since engines need these.
class Respelling {
 public:
  Respelling(const std::string& becomes, const Linear& m, const Scheme& scheme, Planner& planner)
      : m_(m),
        planner_(planner),
        c_(planner.source),
        dialect_(*planner.config.dialect()),
        scheme_(scheme_in(*planner.config.dialect(), scheme, m)),
        made_(std::make_unique<LinearRewrite>(m, becomes, 0.0)) {}

  /// Plans the tensors of each matrix under the name of the matrix.
  void run() {
    if (!m_.stacked) {
      add_matrix(m_.name, 0, {"", 0, 1, m_.n});
    } else {
      const auto parts = stack_parts(c_, m_.name, m_.n);
      if (m_.k_outer || parts.empty()) {
        planner_.problems.add(
            fmt::format("{}: expected each expert in separate tensors, which {} needs, found a stack",
                        m_.name, dialect_.name));
        return;
      }
      for (int64_t e = 0; e < m_.e; ++e) {
        for (const StackPart& part : parts) add_matrix(expert_name(m_.name, e, part.leaf), e, part);
      }
    }
    for (const size_t tensor : m_.tensors()) made_->consume(tensor);
    planner_.add(std::move(made_));
  }

 private:
  void add(const std::string& name, DType type, std::vector<int64_t> shape, size_t source,
           std::unique_ptr<const TensorRewrite> rewrite) {
    TensorInfo info{name, type, std::move(shape), 0, 0};
    info.end = tensor_bytes(info.name, info.dtype, info.shape);
    made_->add({std::move(info), source, std::move(rewrite), true});
  }

  /// Rows of a tensor that has one row per `rows_each` rows of weights.
  std::unique_ptr<const TensorRewrite> rows_of(size_t tensor, int64_t rows_each, int64_t e,
                                               const StackPart& part) const {
    if (!m_.stacked) return std::make_unique<CopiedTensor>(tensor, false);
    const int64_t rows = count_blocks(m_.n, rows_each),
                  all = static_cast<int64_t>(c_.tensors()[tensor].bytes());
    const bool shared =
        all == dtype_bits(c_.tensors()[tensor].dtype) / 8;  // one scale is shared by all experts
    const int64_t row = shared ? all : all / (m_.e * rows);
    const int64_t first = shared ? 0 : (e * rows + part.first / rows_each) * row;
    return std::make_unique<GatheredRows>(tensor, static_cast<uint64_t>(row), static_cast<uint64_t>(first),
                                          static_cast<uint64_t>(part.step * row));
  }

  void add_matrix(const std::string& name, int64_t e, const StackPart& part) {
    planner_.config.add(name, m_.weight, scheme_);
    const auto spelling = dialect_.spelling(scheme_, part.rows, m_.k);
    if (!spelling) return;  // the problem was reported
    const int64_t width = m_.format->in_groups() ? m_.format->code_bytes(m_.k) : m_.k;
    add(name + spelling->weight, spelling->weight_type, {part.rows, width}, m_.weight,
        rows_of(m_.weight, 1, e, part));
    add_scales(name, *spelling, e, part);
    if (m_.stacked && m_.bias)
      add(name + ".bias", c_.tensors()[*m_.bias].dtype, {part.rows}, *m_.bias, rows_of(*m_.bias, 1, e, part));
    if (!m_.stacked) add_input_scale(*spelling);
  }

  void add_scales(const std::string& name, const Spelling& spelling, int64_t e, const StackPart& part) {
    const TensorInfo& scale = c_.tensors()[*m_.scale];
    const DType type = spelling.scale_type.value_or(remembered(&Manifest::ScaleTypes::scale, *m_.scale));
    const bool same_bytes = type == scale.dtype || (dtype_bits(type) == 8 && dtype_bits(scale.dtype) == 8);
    const bool whole =
        m_.scale_rows == m_.n || (part.first % m_.scale_rows == 0 && (part.step == 1 || m_.scale_rows == 1));
    std::unique_ptr<const TensorRewrite> rewrite;
    if (same_bytes && whole) rewrite = rows_of(*m_.scale, m_.scale_rows, e, part);
    const bool converts =
        type == DType::kF32 || type == DType::kBF16 || (type == DType::kF8E8M0 && scale.dtype == DType::kF32);
    if (!same_bytes && converts && !m_.stacked) {
      if (type == DType::kF8E8M0) check_powers(*m_.scale);
      rewrite = std::make_unique<ConvertedScalars>(*m_.scale, scale.dtype, type, false);
    }
    if (!rewrite) {
      planner_.problems.add(fmt::format("{}: expected scales that the {} dialect can hold ({}), found {}",
                                        c_.where(*m_.scale), dialect_.name, dtype_name(type),
                                        describe(scale.dtype, scale.shape)));
      return;
    }
    add(name + spelling.scale, type, spelling.scale_shape, *m_.scale, std::move(rewrite));
  }

  /// Adds a problem if a scale is not a power of two, since E8M0 has no other values.
  void check_powers(size_t tensor) {
    constexpr uint64_t kPiece = 1u << 20;
    std::vector<float> some(kPiece / sizeof(float));
    const uint64_t bytes = c_.tensors()[tensor].bytes();
    for (uint64_t at = 0; at < bytes; at += kPiece) {
      const uint64_t count = std::min(kPiece, bytes - at) / sizeof(float);
      c_.read(tensor, at, {reinterpret_cast<uint8_t*>(some.data()), count * sizeof(float)});
      const auto bad = std::find_if(some.begin(), some.begin() + static_cast<int64_t>(count),
                                    [](float x) { return e8m0_from_float(x) == kE8m0Nan; });
      if (bad == some.begin() + static_cast<int64_t>(count)) continue;
      planner_.problems.add(fmt::format(
          "{}: expected scales that are powers of two, because loaders of {} read E8M0 beside experts of "
          "four bits, found {}; a separate rule (to: fp8, scale_dtype: e8m0) rounds these weights again",
          c_.where(tensor), dialect_.name, *bad));
      return;
    }
  }

  void add_input_scale(const Spelling& spelling) {
    if (spelling.input_scale == nullptr) return;
    const std::string name = m_.name + spelling.input_scale;
    if (m_.input_scale) {
      const DType type = c_.tensors()[*m_.input_scale].dtype;
      const DType written = spelling.needs_input_scale
                                ? DType::kF32
                                : remembered(&Manifest::ScaleTypes::input_scale, *m_.input_scale);
      add(name, written == DType::kBF16 ? written : DType::kF32, dialect_.scalar_shape(), *m_.input_scale,
          std::make_unique<ConvertedScalars>(*m_.input_scale, type,
                                             written == DType::kBF16 ? written : DType::kF32, false));
    } else if (spelling.needs_input_scale) {
      add(name, DType::kF32, dialect_.scalar_shape(), m_.weight, std::make_unique<ConstantScalar>(1.0f));
      planner_.findings.push_back(
          {Severity::kWarning, "no-input-scale", m_.name,
           "has no input scale, which loaders of the dialect require: 1 is written, and "
           "activations beyond 448 saturate"});
    }
  }

  /// The type that a tensor of scales had before twofour wrote the source, if that type can represent all
  /// values. Otherwise, it is the present type.
  DType remembered(std::optional<DType> Manifest::ScaleTypes::*which, size_t tensor) const {
    const DType own = c_.tensors()[tensor].dtype;
    if (planner_.written == nullptr || own != DType::kF32 || m_.stacked) return own;
    const auto at = planner_.written->scale_types.find(m_.name);
    if (at == planner_.written->scale_types.end()) return own;
    const DType before = (at->second.*which).value_or(own);
    return before != own && holds_exactly(c_, tensor, before) ? before : own;
  }

  const Linear& m_;
  Planner& planner_;
  const Checkpoint& c_;
  const OutputDialect& dialect_;
  const Scheme scheme_;
  std::unique_ptr<LinearRewrite> made_;
};

/// True if a linear is a piece of an embedding and all pieces share one scale. No dialect can describe that.
/// Models with such pieces read them by their own code.
bool shares_scale(const Checkpoint& c, const Linear& m) {
  return m.is_table && m.scale && !c.tensors()[*m.scale].name.starts_with(m.name + ".");
}

/// The scheme in the planner's dialect of a linear whose format and values stay.
Scheme kept_scheme(const Checkpoint& source, const Linear& m, std::optional<DType> fp8_scale_type) {
  Scheme scheme = scheme_of(source, m);
  if (!m.format->tiles || m.stacked) return scheme;
  // U8 and E8M0 count as one type.
  const DType type = fp8_scale_type.value_or(scheme.scale_type);
  if (dtype_bits(type) != dtype_bits(scheme.scale_type)) scheme.scale_type = type;
  return scheme;
}

/// True if a linear of this scheme has the planner's dialect already.
bool is_own(const Linear& m, const Scheme& scheme, const Planner& planner) {
  const OutputDialect* to = planner.config.dialect();
  if (to == nullptr) return true;
  const Checkpoint& c = planner.source;
  if (m.nvfp4) return to->nvfp4 != nullptr && c.nvfp4_modules()[*m.nvfp4].dialect->name == to->nvfp4->name;
  if (shares_scale(c, m)) return true;
  if (source_dialect(c) == to && (!m.format->coded || scheme == scheme_of(c, m))) return true;
  const auto spelling = to->spelling(scheme, m.n, m.k);
  return spelling && is_spelled(c, m, *spelling);
}

}  // namespace

void keep_linear(const std::string& becomes, const Linear& m, std::optional<DType> fp8_scale_type,
                 Planner& planner) {
  const Checkpoint& c = planner.source;
  const Scheme scheme = kept_scheme(c, m, fp8_scale_type);
  if (!m.format->coded || is_own(m, scheme, planner)) {
    planner.config.add_kept(m);
  } else if (m.nvfp4 && planner.config.dialect()->nvfp4 != nullptr) {
    planner.config.add(m.name, m.weight, scheme_of(c, m));
    translate_nvfp4(becomes, c.nvfp4_modules()[*m.nvfp4], *planner.config.dialect(), planner);
  } else {
    Respelling(becomes, m, scheme, planner).run();
  }
}

namespace {

/// Keeps format and values. Tensors get the names and shapes of the output's dialect.
class Keep : public Method {
 public:
  void plan(Rule& rule, Planner& planner) const override {
    const Checkpoint& c = planner.source;
    Chooser chooser(rule.selection, planner.layers());
    std::map<std::string_view, bool> chosen;  // by name of the module
    std::vector<size_t> kept;
    size_t matched = 0;
    for (size_t i = 0; i < c.tensors().size(); ++i) {
      const auto [at, is_new] = chosen.try_emplace(module_of(c.tensors()[i].name));
      if (is_new) at->second = chooser.chooses(at->first, true);
      matched += at->second;
      if (at->second && !planner.is_taken(i)) kept.push_back(i);
    }
    chooser.refuse_unused("modules (model.layers.0.mlp.down_proj)");
    if (kept.empty() && matched > 0) {
      throw Error(fmt::format(
          "expected tensors that no earlier rule matches, found that earlier rules match all {}", matched));
    }
    for (const size_t i : kept) planner.keep(i);
    if (changes_input_scales(rule)) {
      change_scales(rule, kept, planner);
    } else if (planner.config.dialect() != nullptr && planner.config.dialect() != source_dialect(c)) {
      planner.config.rewrite();
    } else {
      planner.config.keep();
    }
  }

  void finish(PlannedRules& planned) const override {
    Planner& planner = planned.rest;
    const Checkpoint& c = planner.source;
    refuse_unknown_weights(planner);
    for (const Linear& m : planner.linears()) {
      if (planner.config.has(m.weight)) continue;
      if (!planner.is_planned(m.weight)) {
        keep_linear("keep", m, planned.fp8_scale_type, planner);
      } else if (!m.format->coded || is_own(m, kept_scheme(c, m, planned.fp8_scale_type), planner)) {
        planner.config.add_kept(m);  // the module is pruned or in a layout
      } else {
        planner.problems.add(
            fmt::format("{}: expected the {} dialect, which the output is in, found {}; convert "
                        "to that dialect first",
                        c.where(m.weight), planner.config.dialect()->name, describe(scheme_of(c, m))));
      }
    }
    if (planner.config.dialect() != nullptr && planner.config.dialect() != source_dialect(c))
      plan_kv_scales(*planner.config.dialect(), planner);
  }

  std::string file_format(const Rule&) const override { return "keep"; }
  std::string summary(const Rule&) const override { return "kept"; }
  bool rewrites_config() const override { return false; }

 private:
  /// Gives other input scales to NVFP4 modules among the kept tensors.
  static void change_scales(const Rule& rule, const std::vector<size_t>& kept, Planner& planner) {
    if (planner.config.dialect() == nullptr) {
      const OutputDialect* own = source_dialect(planner.source);
      // A dialect that twofour reads but does not write is replaced by ModelOpt's dialect.
      const bool foreign = own == nullptr && quantization_entry(planner.source.config());
      if (!foreign && (own == nullptr || own->nvfp4 == nullptr))
        throw Error(fmt::format("{}: expected a source with a configuration of NVFP4, found none",
                                rule.name(keys::kInputScale)));
      planner.config.set_dialect(foreign ? output_dialects()[0] : *own);
    }
    planner.config.rewrite();
    std::vector<Linear> modules;
    for (const Linear& m : planner.linears()) {
      if (m.nvfp4 && std::binary_search(kept.begin(), kept.end(), m.weight)) modules.push_back(m);
    }
    if (modules.empty())
      throw Error(fmt::format("{}: expected NVFP4 among the modules that stay, found none",
                              rule.name(keys::kInputScale)));
    change_input_scales(rule, modules, planner);
  }
};

}  // namespace

std::unique_ptr<Method> make_keep(Rule&) { return std::make_unique<Keep>(); }

}  // namespace twofour
