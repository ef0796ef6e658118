#include "lib/checkpoint/unsupported_terms.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/naming.h"
#include "formats/weight_dialect.h"
#include "lib/checkpoint/model_config.h"
#include "lib/checkpoint/quantization_config.h"

namespace twofour {
namespace {

/// Which values of a term change nothing.
enum class Harmless { kNever, kZeros, kInOrder };

struct TermKind {
  std::string_view suffix;  ///< of "X.suffix" and, of a stack, "X_suffix"
  Harmless harmless;
  const char* effect;
  /// The format whose decoder (WeightReader, derive_weights) accounts for it, and the name of its codes, a
  /// row of weight_dialects(); beside others it is refused.
  std::optional<WeightFormat> decoder{};
  std::string_view codes{};
};

/// Sources: NVIDIA/Model-Optimizer, export/quant_utils.py (pre_quant_scale, svdquant_lora); vLLM,
/// quark_nvfp4.py (input_scale_2); compressed-tensors, pack_quantized (weight_zero_point, weight_g_idx); AWQ
/// (qzeros); GPTQ (qzeros, g_idx). Longer suffixes come before those that they end in.
constexpr TermKind kTerms[] = {
    {"pre_quant_scale", Harmless::kNever, "which scales the inputs"},
    {"svdquant_lora_a", Harmless::kNever, "which adds a low-rank matrix"},
    {"svdquant_lora_b", Harmless::kNever, "which adds a low-rank matrix"},
    {"input_scale_2", Harmless::kNever, "an input scale of a form that is not supported",
     WeightFormat::kNvfp4},
    {"weight_zero_point", Harmless::kZeros, "which is not zero and subtracted from codes",
     WeightFormat::kInt4, ".weight_packed"},
    {"qzeros", Harmless::kNever, "which is subtracted from codes", WeightFormat::kInt4, ".qweight"},
    {"weight_g_idx", Harmless::kInOrder, "which gives inputs to groups in another order", WeightFormat::kInt4,
     ".weight_packed"},
    {"g_idx", Harmless::kInOrder, "which gives inputs to groups in another order", WeightFormat::kInt4,
     ".qweight"},
};
/// PEFT's adapters: "X.lora_A.weight", "X.lora_B.default.weight", "X.lora_magnitude_vector".
constexpr std::string_view kLora = ".lora_";
constexpr const char* kLoraEffect = "an adapter that was not merged";

constexpr uint64_t kTermPiece = 1u << 20;

/// Calls `f(index, value)` for the integers of a tensor until it returns false. Returns false if the tensor
/// holds no integers or `f` returned false.
bool for_integers(const TensorAccess& access, size_t tensor, const std::function<bool(int64_t, int64_t)>& f) {
  const TensorInfo& t = access.tensors[tensor];
  const uint64_t width = static_cast<uint64_t>(dtype_bits(t.dtype)) / 8;
  const bool is_signed =
      t.dtype == DType::kI8 || t.dtype == DType::kI16 || t.dtype == DType::kI32 || t.dtype == DType::kI64;
  const bool is_unsigned =
      t.dtype == DType::kU8 || t.dtype == DType::kU16 || t.dtype == DType::kU32 || t.dtype == DType::kU64;
  if (!is_signed && !is_unsigned) return false;
  std::vector<uint8_t> bytes(std::min(kTermPiece, t.bytes()));
  for (uint64_t at = 0; at < t.bytes(); at += kTermPiece) {
    const std::span<uint8_t> some(bytes.data(), std::min(kTermPiece, t.bytes() - at));
    access.read(tensor, at, some);
    for (uint64_t i = 0; i < some.size(); i += width) {
      uint64_t value = 0;
      for (uint64_t b = 0; b < width; ++b) value |= uint64_t{some[i + b]} << (8 * b);
      const uint64_t sign = uint64_t{1} << (8 * width - 1);
      if (is_signed) value = (value ^ sign) - sign;
      if (!f(static_cast<int64_t>((at + i) / width), static_cast<int64_t>(value))) return false;
    }
  }
  return true;
}

/// Whether all numbers of a tensor are 0 or, of floats, -0.
bool is_zero(const TensorAccess& access, size_t tensor) {
  const TensorInfo& t = access.tensors[tensor];
  const uint64_t width = std::max<uint64_t>(1, static_cast<uint64_t>(dtype_bits(t.dtype)) / 8);
  const bool is_float = t.dtype == DType::kF64 || t.dtype == DType::kF32 || t.dtype == DType::kBF16 ||
                        t.dtype == DType::kF16 || t.dtype == DType::kF8E4M3 || t.dtype == DType::kF8E5M2;
  std::vector<uint8_t> bytes(std::min(kTermPiece, t.bytes()));
  for (uint64_t at = 0; at < t.bytes(); at += kTermPiece) {
    const std::span<uint8_t> some(bytes.data(), std::min(kTermPiece, t.bytes() - at));
    access.read(tensor, at, some);
    for (uint64_t i = 0; i < some.size(); ++i) {
      const bool has_sign = is_float && i % width == width - 1;
      if ((some[i] & (has_sign ? 0x7F : 0xFF)) != 0) return false;
    }
  }
  return true;
}

/// Whether inputs 0, 1, 2, ... belong to groups 0, 0, ..., 1, 1, ... of one size, as they do without the
/// tensor; -1 throughout is what compressed-tensors writes where it orders nothing.
bool is_in_order(const TensorAccess& access, size_t tensor) {
  const TensorInfo& t = access.tensors[tensor];
  const int64_t k = t.shape.empty() ? 1 : t.shape.back();
  // The first group's size is that of all.
  int64_t size = k;
  bool unset = true, in_order = true;
  const bool integers = for_integers(access, tensor, [&](int64_t index, int64_t value) {
    const int64_t i = index % k;
    unset = unset && value == -1;
    if (index < k && size == k && value == 1) size = i;
    in_order = in_order && value >= 0 && size > 0 && value == i / size;
    return unset || in_order;
  });
  return integers && (unset || (in_order && k % size == 0));
}

bool is_harmless(const TensorAccess& access, size_t tensor, Harmless harmless) {
  if (harmless == Harmless::kNever) return false;
  const bool readable = access.read && (access.whole == nullptr || (*access.whole)[tensor]);
  if (!readable || access.tensors[tensor].bytes() == 0) return true;
  return harmless == Harmless::kZeros ? is_zero(access, tensor) : is_in_order(access, tensor);
}

/// "P.0.gate_proj" of "P.0.gate_proj.bias", "P.down_proj" of "P.down_proj_bias"; empty where the tensor does
/// not end so.
std::string_view linear_of(std::string_view tensor, std::string_view suffix) {
  if (!tensor.ends_with(suffix)) return {};
  tensor.remove_suffix(suffix.size());
  if (!tensor.ends_with('.') && !tensor.ends_with('_')) return {};
  return tensor.substr(0, tensor.size() - 1);
}

/// A tensor's name as that of a term.
struct TermName {
  std::string_view linear;
  Harmless harmless;
  const char* effect;
  std::optional<WeightFormat> decoder{};
  std::string_view codes{};
};

std::optional<TermName> parse_term_name(std::string_view name) {
  if (const size_t lora = name.rfind(kLora); lora != name.npos)
    return TermName{name.substr(0, lora), Harmless::kNever, kLoraEffect};
  for (const TermKind& kind : kTerms) {
    const std::string_view linear = linear_of(name, kind.suffix);
    if (!linear.empty()) return TermName{linear, kind.harmless, kind.effect, kind.decoder, kind.codes};
  }
  return std::nullopt;
}

/// The weights of a linear, in a format that twofour reads.
std::optional<size_t> find_weight(const TensorAccess& access, const std::string& linear) {
  for (const char* suffix : {".weight", ".weight_packed", ".qweight", ".base_layer.weight",
                             ".base_layer.weight_packed", ".base_layer.qweight", "", "_blocks"}) {
    if (const auto weight = find_tensor(access.tensors, linear + suffix)) return weight;
  }
  return std::nullopt;
}

/// Whether the decoder of these weights accounts for the term.
bool is_decoded(const TensorInfo& weight, const TensorInfo& own, const TermName& term) {
  if (term.decoder == WeightFormat::kNvfp4) {
    const bool one = own.shape.empty() || own.shape == std::vector<int64_t>{1};
    return weight.dtype == DType::kU8 && one;
  }
  return term.decoder == WeightFormat::kInt4 && weight.dtype == DType::kI32 &&
         weight.name.ends_with(term.codes);
}

std::optional<WeightTerm> find_weight_term(const TensorAccess& access, size_t tensor) {
  const auto name = parse_term_name(access.tensors[tensor].name);
  if (!name) return std::nullopt;
  std::string linear(name->linear);
  const auto weight = find_weight(access, linear);
  if (!weight || is_decoded(access.tensors[*weight], access.tensors[tensor], *name)) return std::nullopt;
  if (is_harmless(access, tensor, name->harmless)) return std::nullopt;
  return WeightTerm{
      tensor, *weight, std::move(linear),
      fmt::format("expected weights that consist of values and scales only, found this tensor beside {}, {}",
                  name->linear, name->effect)};
}

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
    const auto term = parse_term_name(at->name);
    if (term && term->decoder == WeightFormat::kNvfp4) continue;
    const std::string linear(term ? term->linear : linear_of(at->name, "bias"));
    const auto name = parse_module_name(linear);
    if (!name || name->block != block || (term && is_harmless(access, tensor, term->harmless))) continue;
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
    if (*type != "gpt_oss") continue;
    return fmt::format(
        "{}: model_type: expected a model with silu(gate) * up, found \"gpt_oss\", which has "
        "gate * sigmoid(1.702 gate) * (up + 1)",
        where);
  }
  return std::nullopt;
}

}  // namespace

TensorAccess access_to(const Checkpoint& c) {
  return {c.tensors(),
          [&c](size_t tensor, uint64_t offset, std::span<uint8_t> out) { c.read(tensor, offset, out); }};
}

std::vector<WeightTerm> find_weight_terms(const TensorAccess& access) {
  std::vector<WeightTerm> terms;
  for (size_t i = 0; i < access.tensors.size(); ++i) {
    if (auto term = find_weight_term(access, i)) terms.push_back(std::move(*term));
  }
  return terms;
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
                            Problems& problems) {
  for (const std::string& problem : find_odd_settings(c.config()))
    problems.add(fmt::format("{}: {}", (c.path() / "config.json").string(), problem));
  if (const auto term = find_config_term(source_quantization(c))) problems.add(quantization_place(c, *term));
  for (const WeightTerm& term : find_weight_terms(access_to(c))) {
    if (is_read(term.weight)) problems.add(fmt::format("{}: {}", c.where(term.tensor), term.problem));
  }
}

std::optional<std::string> why_not_run(const Checkpoint& checkpoint, const std::string& block, bool gated) {
  if (auto term = find_term(checkpoint, block)) return term;
  if (const auto term = find_config_term(source_quantization(checkpoint)))
    return quantization_place(checkpoint, *term);
  return find_activation(checkpoint, gated);
}

}  // namespace twofour
