#include "lib/plan_encode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "lib/encode_config.h"
#include "lib/methods/quantize_select.h"
#include "lib/plan_rewrite_parts.h"
#include "lib/quantization_config.h"

namespace twofour {
namespace {

/// Weights read at once: their floats and what is made of them should stay in the L2 cache.
constexpr int64_t kStripWeights = 128 << 10;
/// A worker's buffers, bytes a weight of a strip: as stored twice, floats as read, pruned and read back, and
/// what is written.
constexpr uint64_t kStripBytes = 24;
/// What the survey of a matrix keeps at most of each row.
constexpr uint64_t kRowBytes = 8;

template <class T>
T option(const char* name, const std::string& text, std::initializer_list<std::pair<const char*, T>> known) {
  std::string names;
  for (const auto& [word, value] : known) {
    if (text == word) return value;
    if (*word != '\0') names += (names.empty() ? "" : ", ") + std::string(word);
  }
  throw Error(fmt::format("{}: expected one of {}, found '{}'", name, names, text));
}

EncodeRule fp8_rule(const Recipe& r) {
  EncodeRule rule;
  rule.fp8 = true;
  rule.dialect = r.dialect;
  option<int>("--dialect", r.dialect, {{"compressed-tensors", 0}, {"modelopt", 0}, {"deepseek", 0}});
  rule.granularity = option<Granularity>(
      "--granularity", r.granularity,
      {{"tensor", Granularity::kTensor}, {"row", Granularity::kRow}, {"block", Granularity::kBlock}});
  if (r.dialect == "deepseek" && rule.granularity != Granularity::kBlock) {
    throw Error(
        fmt::format("--granularity: expected block, which is all that the deepseek dialect has, found {}",
                    r.granularity));
  }
  return rule;
}

/// The recipe with every default in words, so that the manifest needs none.
void complete(Recipe& r) {
  if (rewrite_of(r.layout) == Rewrite::kFp8) {
    if (r.dialect.empty()) r.dialect = "compressed-tensors";
    if (r.granularity.empty()) r.granularity = r.dialect == "deepseek" ? "block" : "row";
    return;
  }
  if (r.dialect.empty()) r.dialect = "modelopt";
  if (r.arithmetic.empty()) r.arithmetic = r.dialect;
  if (r.block_scale.empty()) r.block_scale = "max";
  if (r.zero_block.empty()) r.zero_block = "producer";
}

/// The input scale of an expert as a multiplier of E4M3 (amax / 448); 0 where the source has none.
float fp8_input_scale(const Checkpoint& c, const WeightModule& m, int64_t e, Problems& problems) {
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
  if (m.format == WeightFormat::kNvfp4) {
    // amax / 2688, or its reciprocal.
    scale = global_scale_multiplier(*c.nvfp4_modules()[*m.nvfp4].dialect, scale) * kE2m1Max;
  }
  if (!std::isfinite(scale) || scale <= 0) {
    problems.add(
        fmt::format("{}: expected a positive finite input scale, found {}", c.where(*m.input_scale), scale));
  }
  return scale;
}

class Planner {
 public:
  Planner(const Checkpoint& c, Plan& plan, std::vector<OutputTensor>& outputs, Problems& problems)
      : c_(c), plan_(plan), outputs_(outputs), problems_(problems), rule_(encode_rule(plan.recipe)) {}

  void run() {
    std::vector<WeightModule> all = find_weight_modules(c_, problems_);
    refuse_unknown(all);
    EncodeSelection selection = select_encoded(c_, all, plan_.recipe, rule_, plan_.findings, problems_);
    plan_.unquantized = std::move(selection.left);
    note_unknown_stacks(all);
    for (const size_t i : selection.chosen) choose(all[i]);
    if (plan_.weights.empty()) {
      problems_.refuse();
      const bool done = !all.empty() && std::all_of(all.begin(), all.end(), [](const WeightModule& m) {
        return m.format == WeightFormat::kNvfp4;
      });
      throw Error(fmt::format("{}: expected linears to encode, found {} among {}", c_.path().string(),
                              done ? "NVFP4 alone" : "none", all.size()));
    }
    form_groups();
    for (size_t i = 0; i < plan_.matrices.size(); ++i) add_outputs(i);
    for (const WeightModule& m : plan_.weights) consume(m);
    if (rule_.dialect != "deepseek") plan_kv_scales(c_, rule_.dialect, outputs_);
    report();
    encode_texts(c_, plan_);  // refuses now what it could not write later
  }

 private:
  /// Stacks of floats under names that no rule knows stay as they are, and the configuration says so.
  void note_unknown_stacks(const std::vector<WeightModule>& all) {
    std::set<size_t> known;
    for (const WeightModule& m : all) known.insert({m.weight, m.bias.value_or(m.weight)});
    for (size_t i = 0; i < c_.tensors().size(); ++i) {
      const TensorInfo& t = c_.tensors()[i];
      const bool is_float = t.dtype == DType::kF32 || t.dtype == DType::kBF16 || t.dtype == DType::kF16;
      const bool is_stack = t.shape.size() == 3 && t.shape[1] >= kGroup && t.shape[2] >= kGroup;
      if (!is_float || !is_stack || known.count(i) || t.name.find("conv") != std::string::npos) continue;
      const std::string module = t.name.ends_with(".weight") ? t.name.substr(0, t.name.size() - 7) : t.name;
      plan_.unquantized.push_back(module);
      plan_.findings.push_back({Severity::kWarning, "unknown-stack", c_.where(i),
                                fmt::format("stays as it is: no naming of experts that is known has {}",
                                            describe(t.dtype, t.shape))});
    }
  }

  /// Tensors of few bits that belong to no module known: their layer would be told falsely.
  void refuse_unknown(const std::vector<WeightModule>& all) {
    std::set<size_t> known;
    for (const WeightModule& m : all) {
      known.insert(m.weight);
      if (m.scale) known.insert(*m.scale);
      for (const char* suffix : {".pre_quant_scale", ".svdquant_lora_a", ".weight_zero_point"}) {
        if (const auto at = c_.find(m.name + suffix)) {
          problems_.add(fmt::format("{}: expected weights of values and scales alone, found this beside them",
                                    c_.where(*at)));
        }
      }
    }
    for (size_t i = 0; i < c_.tensors().size(); ++i) {
      const TensorInfo& t = c_.tensors()[i];
      const bool few_bits = dtype_bits(t.dtype) <= 8 && t.dtype != DType::kBool;
      if (!few_bits || t.shape.size() < 2 || known.count(i)) continue;
      problems_.add(fmt::format("{}: expected weights in floats, FP8, MXFP4 or NVFP4, found {}", c_.where(i),
                                describe(t.dtype, t.shape)));
    }
  }

  void choose(const WeightModule& m) {
    const auto row = static_cast<uint64_t>(m.k) * kStripBytes;
    if (row > plan_.limits.piece) {
      problems_.add(fmt::format("{}: expected K of at most {}, found {}", c_.where(m.weight),
                                plan_.limits.piece / kStripBytes, m.k));
    }
    if (m.stacked && stack_parts(c_, m.name, m.n).empty()) {
      problems_.add(fmt::format("{}: expected a stack of experts under a name that is known, found {}",
                                c_.where(m.weight), m.name));
    }
    plan_.weights.push_back(m);
  }

  void form_groups() {
    for (const std::vector<size_t>& members : fused_groups(plan_.weights)) {
      const WeightModule& m = plan_.weights[members[0]];
      if (m.stacked) {
        const auto parts = stack_parts(c_, m.name, m.n);
        for (int64_t e = 0; e < m.e; ++e) {
          begin_group();
          for (const StackPart& p : parts) {
            add_matrix({expert_name(m.name, e, p.leaf), members[0], e, p.first, p.step, p.rows, m.k, 0, {}});
          }
        }
        continue;
      }
      begin_group();
      for (const size_t i : members) {
        const WeightModule& one = plan_.weights[i];
        // FP8 has no scale to share.
        if (rule_.fp8 && i != members[0]) begin_group();
        add_matrix({one.name, i, 0, 0, 1, one.n, one.k, 0, {}});
      }
    }
  }
  void begin_group() { plan_.groups.push_back({plan_.matrices.size(), 0}); }
  void add_matrix(EncodedMatrix matrix) {
    matrix.parts.fill(EncodedMatrix::kNoPart);
    if (rule_.fp8 && rule_.dialect == "modelopt" && rule_.granularity == Granularity::kTensor) {
      matrix.input_scale = fp8_input_scale(c_, plan_.weights[matrix.module], matrix.expert, problems_);
      if (matrix.input_scale == 0) {
        matrix.input_scale = 1;
        ++without_input_scale_;
      }
    }
    plan_.matrices.push_back(std::move(matrix));
    ++plan_.groups.back().count;
  }

  void add(size_t matrix, EncodedPart part, std::string name, DType dtype, std::vector<int64_t> shape) {
    OutputTensor t{{std::move(name), dtype, std::move(shape), 0, 0},
                   OutputTensor::Kind::kEncoded,
                   matrix,
                   static_cast<int>(part),
                   0};
    t.info.end = tensor_bytes(t.info.name, t.info.dtype, t.info.shape);
    outputs_.push_back(std::move(t));
  }

  void add_outputs(size_t i) {
    const EncodedMatrix& m = plan_.matrices[i];
    const WeightModule& source = plan_.weights[m.module];
    if (rule_.fp8) {
      const bool deepseek = rule_.dialect == "deepseek";
      add(i, EncodedPart::kValues, m.name + ".weight", DType::kF8E4M3, {m.rows, m.k});
      add(i, EncodedPart::kScales, m.name + (deepseek ? ".weight_scale_inv" : ".weight_scale"), DType::kF32,
          fp8_scale_shape(m));
      if (m.input_scale != 0) {
        add(i, EncodedPart::kInputScale, m.name + ".input_scale", DType::kF32, scalar_shape(rule_.dialect));
      }
    } else {
      const Nvfp4Dialect& to = dialect_named(rule_.dialect);
      add(i, EncodedPart::kValues, m.name + to.codes, DType::kU8, {m.rows, m.k / 2});
      add(i, EncodedPart::kScales, m.name + to.block_scale, DType::kF8E4M3, {m.rows, m.k / kGroup});
      add(i, EncodedPart::kGlobalScale, m.name + to.global_scale, DType::kF32, scalar_shape(rule_.dialect));
    }
    if (source.stacked && source.bias) {
      add(i, EncodedPart::kBias, m.name + ".bias", c_.tensors()[*source.bias].dtype, {m.rows});
    }
  }

  std::vector<int64_t> fp8_scale_shape(const EncodedMatrix& m) const {
    const bool modelopt = rule_.dialect == "modelopt";
    const auto blocks = [](int64_t n) { return (n + kFp8Block - 1) / kFp8Block; };
    switch (rule_.granularity) {
      case Granularity::kTensor:
        return scalar_shape(rule_.dialect);
      case Granularity::kRow:
        return modelopt ? std::vector{m.rows} : std::vector{m.rows, int64_t{1}};
      case Granularity::kBlock:
        // ModelOpt exports the axes that it reduced, and vLLM wants them.
        return modelopt ? std::vector{blocks(m.rows), int64_t{1}, blocks(m.k), int64_t{1}}
                        : std::vector{blocks(m.rows), blocks(m.k)};
    }
    return {};
  }

  /// The source's tensors of a module are no copies any more.
  void consume(const WeightModule& m) {
    std::vector<size_t> read{m.weight};
    if (m.scale) read.push_back(*m.scale);
    if (m.global_scale) read.push_back(*m.global_scale);
    if (m.stacked && m.bias) read.push_back(*m.bias);
    for (const size_t i : read) leave_out(outputs_[i]);
    if (m.input_scale) {
      leave_out(outputs_[*m.input_scale]);
      plan_.merged.push_back(*m.input_scale);
      input_scales_dropped_ +=
          !(rule_.fp8 && rule_.dialect == "modelopt" && rule_.granularity == Granularity::kTensor);
    }
    const int64_t strip = encode_strip_rows(m, plan_.limits);
    plan_.derive_bytes = std::max(plan_.derive_bytes, static_cast<uint64_t>(strip * m.k) * kStripBytes +
                                                          static_cast<uint64_t>(m.n) * kRowBytes);
    // A strip at a time: once for the scales and once more to encode.
    if (strip < m.n) plan_.read_bytes += c_.tensors()[m.weight].bytes();
    rounded_twice_ += m.format != WeightFormat::kFloat;
  }

  void report() {
    const auto note = [&](Severity severity, const char* id, std::string text) {
      plan_.findings.push_back({severity, id, c_.path().string(), std::move(text)});
    };
    if (without_input_scale_ > 0) {
      note(Severity::kWarning, "no-input-scale",
           fmt::format("{} matrices have no input scale, which ModelOpt's FP8 engines want: 1 is written, so "
                       "that activations beyond 448 saturate",
                       without_input_scale_));
    }
    if (input_scales_dropped_ > 0) {
      note(Severity::kNote, "input-scales-dropped",
           fmt::format("{} input scales are left out: what is written {}", input_scales_dropped_,
                       rule_.fp8 ? "scales activations as they come" : "quantizes weights only"));
    }
    if (rounded_twice_ > 0) {
      note(Severity::kNote, "rounded-twice",
           fmt::format(
               "{} of {} modules were quantized before, so that their weights are rounded a second time",
               rounded_twice_, plan_.weights.size()));
    }
    if (rule_.dialect == "deepseek" && has_fp8_kv_cache(c_)) {
      note(Severity::kWarning, "kv-cache",
           "the source's KV cache is FP8, which the deepseek dialect has no words for: its scales go along, "
           "its configuration does not");
    }
    if (!plan_.unquantized.empty()) {
      note(Severity::kNote, "unquantized",
           fmt::format("{} linears or blocks of experts stay as they are, the first {}",
                       plan_.unquantized.size(), plan_.unquantized[0]));
    }
    const KeptScales& kept = plan_.recipe.kept;
    const auto lacking = [&](const EncodedMatrix& m) { return kept.find(m.name) == nullptr; };
    const auto first = std::find_if(plan_.matrices.begin(), plan_.matrices.end(), lacking);
    if (!kept.scales.empty() && first != plan_.matrices.end()) {
      note(Severity::kWarning, "no-kept-scale",
           fmt::format("{} of {} matrices have no global scale to keep and get a new one, the first {}",
                       std::count_if(first, plan_.matrices.end(), lacking), plan_.matrices.size(),
                       first->name));
    }
    if (rule_.quantize.arithmetic == Arithmetic::compressed_tensors && !rule_.fp8 &&
        rule_.quantize.block_scale != BlockScale::max) {
      note(Severity::kNote, "own-extension",
           fmt::format("--block-scale {} in compressed-tensors' arithmetic is no producer's",
                       plan_.recipe.block_scale));
    }
  }

  const Checkpoint& c_;
  Plan& plan_;
  std::vector<OutputTensor>& outputs_;
  Problems& problems_;
  const EncodeRule rule_;
  size_t without_input_scale_ = 0, input_scales_dropped_ = 0, rounded_twice_ = 0;
};

}  // namespace

EncodeRule encode_rule(const Recipe& recipe) {
  Recipe r = recipe;
  complete(r);
  if (rewrite_of(r.layout) == Rewrite::kFp8) return fp8_rule(r);
  EncodeRule rule;
  rule.dialect = dialect_named(r.dialect).name;
  rule.divides = dialect_named(r.dialect).divides;
  rule.quantize.arithmetic = option<Arithmetic>(
      "--arithmetic", r.arithmetic,
      {{"modelopt", Arithmetic::modelopt}, {"compressed-tensors", Arithmetic::compressed_tensors}});
  rule.quantize.block_scale = option<BlockScale>(
      "--block-scale", r.block_scale,
      {{"max", BlockScale::max}, {"mse", BlockScale::mse}, {"four-over-six", BlockScale::four_over_six}});
  rule.quantize.zero_block = option<ZeroBlock>(
      "--zero-block", r.zero_block, {{"producer", ZeroBlock::producer}, {"zero", ZeroBlock::zero}});
  rule.prune = option<bool>("--pattern", r.pattern, {{"", false}, {"2:4", true}});
  return rule;
}

int64_t encode_strip_rows(const WeightModule& m, const MemoryLimits& limits) {
  const auto most = static_cast<int64_t>(limits.piece / kStripBytes);
  // Rows that lie across are read in K pieces each, so many at once.
  const int64_t weights = m.k_outer ? most : std::min(most, kStripWeights);
  return std::clamp<int64_t>(weights / m.k, 1, m.n);
}

std::vector<StackPart> stack_parts(const Checkpoint& c, const std::string& name, int64_t rows) {
  const auto parsed = parse_module_name(name, [&](const std::string& n) { return c.find(n).has_value(); });
  if (!parsed || parsed->expert >= 0) return {};
  if (parsed->projection == Projection::kDown) return {{"down_proj", 0, 1, rows}};
  if (parsed->projection != Projection::kGateUp || rows % 2 != 0) return {};
  const int64_t half = rows / 2;
  if (parsed->rows == GateUpRows::kInterleaved) {
    return {{"gate_proj", 0, 2, half}, {"up_proj", 1, 2, half}};
  }
  return {{"gate_proj", 0, 1, half}, {"up_proj", half, 1, half}};
}

std::string expert_name(const std::string& stack, int64_t expert, const char* leaf) {
  return fmt::format("{}.{}.{}", stack.substr(0, stack.rfind('.')), expert, leaf);
}

void plan_encode(const Checkpoint& c, Plan& plan, std::vector<OutputTensor>& outputs, Problems& problems) {
  complete(plan.recipe);
  Planner(c, plan, outputs, problems).run();
}

}  // namespace twofour
