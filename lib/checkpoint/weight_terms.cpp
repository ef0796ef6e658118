#include "lib/checkpoint/weight_terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/error.h"
#include "formats/module_parts.h"
#include "formats/naming.h"
#include "formats/weight_dialect.h"
#include "lib/checkpoint/model_config.h"
#include "lib/checkpoint/quantization_config.h"
#include "lib/checkpoint/tensor_values.h"

namespace twofour {
namespace {

bool is_harmless(const TensorAccess& access, size_t tensor, Harmless harmless) {
  if (harmless == Harmless::kNever) return false;
  const bool readable = access.read && (access.whole == nullptr || (*access.whole)[tensor]);
  if (!readable || access.tensors[tensor].bytes() == 0) return true;
  const TensorInfo& t = access.tensors[tensor];
  const auto read = [&](uint64_t offset, std::span<uint8_t> out) { access.read(tensor, offset, out); };
  return harmless == Harmless::kZeros ? is_all_zero(t, read) : is_in_order(t, read);
}

/// The linear of a block that a tensor with a name on no list lies below: "P.0.gate_proj" of
/// "P.0.gate_proj.smooth_scale". Empty: none.
std::string_view linear_of_block(std::string_view tensor, std::string_view block) {
  for (size_t dot = tensor.find('.', block.size() + 1); dot != tensor.npos; dot = tensor.find('.', dot + 1)) {
    const auto name = parse_module_name(tensor.substr(0, dot));
    if (name && name->block == block) return tensor.substr(0, dot);
  }
  return {};
}

/// Suffixes of weights behind a linear's name; a stack has none or "_blocks".
constexpr const char* kWeightSuffixes[] = {".weight", ".weight_packed", ".qweight"};
constexpr const char* kOtherWeightSuffixes[] = {
    ".base_layer.weight", ".base_layer.weight_packed", ".base_layer.qweight", "", "_blocks", ".compressed"};

/// The weights of a linear, in whatever format.
std::optional<size_t> find_weight(const TensorAccess& access, const std::string& linear) {
  for (const char* suffix : kWeightSuffixes) {
    if (const auto weight = find_tensor(access.tensors, linear + suffix)) return weight;
  }
  for (const char* suffix : kOtherWeightSuffixes) {
    if (const auto weight = find_tensor(access.tensors, linear + suffix)) return weight;
  }
  return std::nullopt;
}

/// Whether the decoder of these weights accounts for the term.
bool is_decoded(const TensorInfo& weight, const TensorInfo& own, const ModulePart& term) {
  if (!term.decoder) return false;
  if ((*term.decoder)->global_scale) {
    const bool one = own.shape.empty() || own.shape == std::vector<int64_t>{1};
    return weight.dtype == DType::kU8 && one;
  }
  return (*term.decoder)->integers && weight.dtype == DType::kI32 && weight.name.ends_with(term.codes);
}

std::string text_of_term(std::string_view linear, const char* effect) {
  return fmt::format(
      "expected weights that consist of values and scales only, found this tensor beside {}, {}", linear,
      effect);
}

/// A linear with codes, or a stack of them, as its weights show it.
struct Codes {
  std::string linear, suffix;
  bool is_stack;  ///< its parts are behind "_", too
};

bool is_plain_float(DType type) {
  return type == DType::kBF16 || type == DType::kF16 || type == DType::kF32 || type == DType::kF64;
}

std::optional<Codes> codes_at(const TensorInfo& t) {
  if (is_plain_float(t.dtype) || t.dtype == DType::kBool || t.shape.size() < 2) return std::nullopt;
  for (const char* suffix : kWeightSuffixes) {
    if (!t.name.ends_with(suffix)) continue;
    const std::string linear = t.name.substr(0, t.name.size() - std::string_view(suffix).size());
    const auto name = t.shape.size() == 3 ? parse_module_name(linear) : std::nullopt;
    return Codes{linear, suffix, name.has_value()};
  }
  constexpr std::string_view kBlocks = "_blocks";
  if (t.shape.size() == 4 && t.name.ends_with(kBlocks))
    return Codes{t.name.substr(0, t.name.size() - kBlocks.size()), std::string(kBlocks), true};
  if (t.shape.size() != 3) return std::nullopt;
  const auto name = parse_module_name(t.name);
  const bool is_stack = name && name->kind == BlockKind::kRoutedExperts && name->expert < 0;
  return is_stack ? std::optional(Codes{t.name, "", true}) : std::nullopt;
}

/// The scales that the reader of these codes takes, by what is behind the linear's name: those of the first
/// row of the dialects that fits. Empty: no row fits, and nothing is known.
std::vector<std::string_view> scales_of(const TensorAccess& access, const Codes& codes, DType type) {
  const auto find = [&](const char* suffix) { return find_tensor(access.tensors, codes.linear + suffix); };
  if (type == DType::kU8) {
    for (const Nvfp4Dialect& d : nvfp4_dialects()) {
      if (d.codes == codes.suffix && find(d.block_scale) && find(d.global_scale))
        return {std::string_view(d.block_scale).substr(1), std::string_view(d.global_scale).substr(1)};
    }
  }
  for (const WeightDialect& d : weight_dialects()) {
    if (d.scale == nullptr || d.weight != codes.suffix || !d.weight_types.has(type)) continue;
    const auto scale = find(d.scale);
    if (scale && d.scale_types.has(access.tensors[*scale].dtype))
      return {std::string_view(d.scale).substr(1)};
  }
  return {};
}

class Terms {
 public:
  explicit Terms(const TensorAccess& access) : access_(access) {}

  std::vector<WeightTerm> find() {
    for (size_t i = 0; i < access_.tensors.size(); ++i) {
      add_listed(i);
      add_flattened(i);
      if (const auto codes = codes_at(access_.tensors[i]); codes && !is_computed(i)) {
        add_beside(i, *codes);
        add_described(i, *codes);
      }
    }
    std::stable_sort(found_.begin(), found_.end(),
                     [](const WeightTerm& a, const WeightTerm& b) { return a.tensor < b.tensor; });
    return std::move(found_);
  }

 private:
  const TensorInfo& tensor(size_t i) const { return access_.tensors[i]; }
  bool is_computed(size_t i) const {
    return std::binary_search(access_.computed.begin(), access_.computed.end(), i);
  }
  void add(size_t i, std::optional<size_t> weight, std::string linear, const char* rule,
           std::string problem) {
    found_.push_back({i, weight, std::move(linear), rule, std::move(problem)});
  }

  /// A tensor with a name on the list: a term, or a part of what is missing.
  void add_listed(size_t i) {
    const auto name = parse_part_name(tensor(i).name);
    if (!name || (name->part->kind != PartKind::kTerm && !name->part->needs_codes)) return;
    std::string linear(name->module);
    const auto weight = find_weight(access_, linear);
    if (!weight && name->part->needs_codes) return add_incomplete(i, *name);
    if (!weight) return;
    const bool is_term = name->part->kind == PartKind::kTerm && *weight != i &&
                         !is_decoded(tensor(*weight), tensor(i), *name->part) &&
                         !is_harmless(access_, i, name->part->harmless);
    if (!is_term) return;
    std::string problem = text_of_term(linear, name->part->effect);
    add(i, weight, std::move(linear), "weight-term", std::move(problem));
  }

  /// Pieces of a table may share a scale that is beside the pieces.
  bool is_of_table(std::string_view module) const {
    const std::string prefix = std::string(module) + ".";
    const auto at = std::lower_bound(access_.tensors.begin(), access_.tensors.end(), prefix,
                                     [](const TensorInfo& t, const std::string& p) { return t.name < p; });
    for (auto t = at; t != access_.tensors.end() && t->name.starts_with(prefix); ++t) {
      if (table_of_piece(module_of(t->name)) == module) return true;
    }
    return false;
  }

  void add_incomplete(size_t i, const PartName& name) {
    // "X_weight_scale" of a stack, and other names that end alike, say nothing of codes.
    const bool is_dotted = tensor(i).name[name.module.size()] == '.';
    const bool is_stack = !is_dotted && parse_module_name(name.module).has_value();
    if (access_.is_part || (!is_dotted && !is_stack) || is_of_table(name.module)) return;
    if (!incomplete_.emplace(name.module).second) return;
    add(i, std::nullopt, std::string(name.module), "incomplete-module",
        fmt::format("expected the weights of {} beside it, found none: export the module again",
                    name.module));
  }

  /// Experts that make one matrix say nowhere how many they are.
  void add_flattened(size_t i) {
    const TensorInfo& t = tensor(i);
    if (t.shape.size() != 2) return;
    std::string_view linear = t.name;
    for (const char* suffix : kWeightSuffixes) {
      if (t.name.ends_with(suffix)) linear.remove_suffix(std::string_view(suffix).size());
      if (linear.size() < t.name.size()) break;
    }
    const auto name = parse_module_name(linear);
    if (!name || name->kind != BlockKind::kRoutedExperts || name->expert >= 0) return;
    const int64_t experts = access_.config != nullptr ? promised_experts(*access_.config) : 0;
    const std::string count =
        experts > 0 && t.shape[0] % experts == 0
            ? fmt::format("[{}, {}, {}], {} experts as config.json says", experts, t.shape[0] / experts,
                          t.shape[1], experts)
        : experts > 0 ? fmt::format("[{}, N, K], {} experts as config.json says", experts, experts)
                      : std::string("[E, N, K]");
    add(i, i, std::string(linear), "module-shape",
        fmt::format("expected a stack of experts {}, found {}", count, describe(t.dtype, t.shape)));
  }

  /// Everything else under the name of a module with codes.
  void add_beside(size_t i, const Codes& codes) {
    const std::vector<std::string_view> scales = scales_of(access_, codes, tensor(i).dtype);
    for (const char* separator : {".", "_"}) {
      if (*separator == '_' && !codes.is_stack) continue;
      const std::string below = codes.linear + separator;
      auto at = std::lower_bound(access_.tensors.begin(), access_.tensors.end(), below,
                                 [](const TensorInfo& t, const std::string& p) { return t.name < p; });
      for (; at != access_.tensors.end() && at->name.starts_with(below); ++at)
        add_unknown(i, codes, scales, static_cast<size_t>(at - access_.tensors.begin()), below.size());
    }
  }
  void add_unknown(size_t i, const Codes& codes, std::span<const std::string_view> scales, size_t other,
                   size_t begin) {
    const std::string_view below = std::string_view(tensor(other).name).substr(begin);
    const ModulePart& part = find_module_part(below);
    const bool is_own = other == i || (codes.is_stack && (below == "blocks" || below == "scale_inv"));
    const bool is_odd_scale = part.kind == PartKind::kScale && !scales.empty() &&
                              std::find(scales.begin(), scales.end(), below) == scales.end();
    const bool is_buffer = part.kind == PartKind::kTerm && part.name != below && part.name != "lora_";
    if (is_own || (part.kind != PartKind::kUnknown && !is_odd_scale && !is_buffer)) return;
    const char* effect = is_odd_scale ? "a scale beside the scales that its codes have" : part.effect;
    add(other, i, codes.linear, "weight-term", text_of_term(codes.linear, effect));
  }

  /// Codes that their file describes beside its tensors.
  void add_described(size_t i, const Codes& codes) {
    if (!access_.file) return;
    const DescribedCodes& described = access_.file(i).described;
    if (!described.has(codes.linear)) return;
    add(i, i, codes.linear, "unsupported-format",
        fmt::format("expected codes that names, types and shapes describe, found {} in __metadata__, which "
                    "describes them otherwise and is not read",
                    json_quote_short(described.key)));
    found_.back().is_in_header = true;
  }

  const TensorAccess& access_;
  std::vector<WeightTerm> found_;
  std::set<std::string, std::less<>> incomplete_;  ///< modules that were found so
};

/// Whether a transform_config asks for nothing: {}, or no groups.
bool is_empty(const Json& value) {
  if (value.is_null()) return true;
  if (!value.is_object() && !value.is_array()) return false;
  return std::all_of(value.begin(), value.end(), [](const Json& inner) { return is_empty(inner); });
}

std::optional<std::string> find_term(const Checkpoint& c, const std::string& block) {
  const TensorAccess access = access_to(c);
  const auto tensors = c.tensors();
  const std::string prefix = block + ".";
  auto at = std::lower_bound(tensors.begin(), tensors.end(), prefix,
                             [](const TensorInfo& t, const std::string& p) { return t.name < p; });
  for (; at != tensors.end() && at->name.starts_with(prefix); ++at) {
    const auto tensor = static_cast<size_t>(at - tensors.begin());
    // An artifact has the terms of its source, not the weights.
    const auto part = parse_part_name(at->name);
    std::string linear(part ? part->module : linear_of_block(at->name, block));
    const auto name = parse_module_name(linear);
    if (!name || name->block != block) continue;
    const ModulePart& found =
        part ? *part->part : find_module_part(std::string_view(at->name).substr(linear.size() + 1));
    const bool is_term = found.kind == PartKind::kTerm &&
                         !(found.decoder && (*found.decoder)->global_scale) &&
                         !is_harmless(access, tensor, found.harmless);
    if (!is_term && found.kind != PartKind::kUnknown && found.name != "bias") continue;
    return fmt::format("{}: expected linears with weights only, found this tensor beside {}", c.where(tensor),
                       linear);
  }
  return std::nullopt;
}

std::optional<std::string> find_activation(const Checkpoint& c, bool gated) {
  const std::string where = (c.path() / "config.json").string();
  const auto configs = model_configs(c.config());
  for (const char* key : {"hidden_act", "hidden_activation", "mlp_hidden_act"}) {
    for (const Json* value : model_settings(configs, key)) {
      const bool usual = gated ? *value == "silu" || *value == "swish" : *value == "relu2";
      if (usual) continue;
      return fmt::format("{}: {}: expected {}, found {}", where, key, gated ? "silu" : "relu2",
                         quoted_setting(*value));
    }
  }
  for (const Json* alpha : model_settings(configs, "swiglu_alpha")) {
    if (*alpha != 1)
      return fmt::format("{}: swiglu_alpha: expected 1, found {}", where, quoted_setting(*alpha));
  }
  // Its config.json says silu.
  for (const Json* type : model_settings(configs, "model_type")) {
    if (!type->is_string() || !clamps_gates(type->get_ref<const std::string&>())) continue;
    return fmt::format(
        "{}: model_type: expected a model with silu(gate) * up, found {}, which has "
        "gate * sigmoid(1.702 gate) * (up + 1)",
        where, quoted_setting(*type));
  }
  return std::nullopt;
}

}  // namespace

TensorAccess access_to(const Checkpoint& c) {
  TensorAccess access{c.tensors(), [&c](size_t tensor, uint64_t offset, std::span<uint8_t> out) {
                        c.read(tensor, offset, out);
                      }};
  // A view has other codes than the headers of its files describe; whoever opens these looks there.
  if (!c.is_view()) access.file = [&c](size_t tensor) -> const Shard& { return c.shard_of(tensor); };
  access.config = &c.config();
  for (const Nvfp4Linear& m : c.nvfp4_modules()) {
    if (c.is_computed(m)) access.computed.push_back(m.codes);
  }
  std::sort(access.computed.begin(), access.computed.end());
  return access;
}

std::vector<WeightTerm> find_weight_terms(const TensorAccess& access) { return Terms(access).find(); }

std::vector<size_t> find_quantizer_state(std::span<const TensorInfo> tensors) {
  std::vector<size_t> found;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t at = tensors[i].name.rfind("_quantizer.");
    const size_t dot = at == std::string::npos ? at : tensors[i].name.rfind('.', at);
    if (dot == std::string::npos) continue;
    if (find_module_part(std::string_view(tensors[i].name).substr(dot + 1)).kind == PartKind::kState)
      found.push_back(i);
  }
  return found;
}

std::optional<std::string> find_config_term(const Json& quantization) {
  if (!quantization.is_object()) return std::nullopt;
  const auto at = quantization.find("transform_config");
  if (at != quantization.end() && !is_empty(*at)) {
    return fmt::format("transform_config: expected none, found {}: the weights are stored transformed",
                       quoted_setting(*at));
  }
  const auto base = quantization.find("base");
  return base == quantization.end() ? std::nullopt : find_config_term(*base);
}

void refuse_changed_weights(const Checkpoint& c, const std::function<bool(size_t)>& is_read,
                            std::span<const Linear> linears, Problems& problems) {
  WeightReader reader(c);
  for (const Linear& m : linears) {
    if (!is_read(m.weight)) continue;
    try {
      reader.check_zero_points(m);
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      problems.add(e.what());
    }
  }
  for (const std::string& problem : find_odd_settings(c.config()))
    problems.add(fmt::format("{}: {}", (c.path() / "config.json").string(), problem));
  if (const auto term = find_config_term(source_quantization(c))) problems.add(quantization_place(c, *term));
  for (const WeightTerm& term : find_weight_terms(access_to(c))) {
    if (!term.weight || term.is_in_header || is_read(*term.weight))
      problems.add(fmt::format("{}: {}", c.where(term.tensor), term.problem));
  }
}

void refuse_described_codes(const Checkpoint& c) {
  Problems problems;
  for (const WeightTerm& term : find_weight_terms(access_to(c))) {
    if (term.is_in_header) problems.add(fmt::format("{}: {}", c.where(term.tensor), term.problem));
  }
  problems.refuse();
}

std::optional<std::string> why_not_run(const Checkpoint& checkpoint, const std::string& block, bool gated) {
  if (auto term = find_term(checkpoint, block)) return term;
  if (const auto term = find_config_term(source_quantization(checkpoint)))
    return quantization_place(checkpoint, *term);
  return find_activation(checkpoint, gated);
}

}  // namespace twofour
