#include "formats/module_parts.h"
#include "formats/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace twofour {
namespace {

using enum PartKind;
constexpr const char* kScaled = "which scales the inputs";
constexpr const char* kDescribed = "which describes codes in words that are not read";
constexpr const char* kSubtracted = "which is subtracted from codes";
constexpr const char* kReordered = "which gives inputs to groups in another order";
constexpr const char* kLowRank = "which adds a low-rank matrix";
constexpr const char* kSparse = "which belongs to a sparse form that is not read";

constexpr ModulePart kParts[] = {
    // Weights, and other parameters of the module.
    {"weight", kPart},
    {"weight_packed", kPart},
    {"qweight", kPart},
    {"bias", kPart},
    {"weight_shape", kPart, true},
    // Scales of codes.
    {"weight_scale", kScale, true},
    {"weight_scale_2", kScale, true},
    {"weight_scale_inv", kScale, true},
    {"weight_global_scale", kScale, true},
    {"scale", kScale},
    {"scales", kScale},
    {"scale_inv", kScale, true},
    {"weight_scaling_factor", kScale, true},
    {"weights_scaling_factor", kScale, true},
    // Inputs, outputs and the cache of keys and values.
    {"input_scale", kPart, true},
    {"input_global_scale", kPart, true},
    {"input_zero_point", kPart, true},
    {"input_scale_ub", kPart},
    {"output_scale", kPart},
    {"output_zero_point", kPart},
    {"prob_scale", kPart},
    {"prob_output_scale", kPart},
    {"q_scale", kPart},
    {"q_zero_point", kPart},
    {"k_scale", kPart},
    {"k_zero_point", kPart},
    {"v_scale", kPart},
    {"v_zero_point", kPart},
    {"kv_scale", kPart},
    {"k_bias", kPart},
    {"v_bias", kPart},
    // Routers.
    {"e_score_correction_bias", kPart},
    {"expert_bias", kPart},
    {"bias_vl", kPart},
    {"tid2eid", kPart},
    // Terms that change the meaning of weights.
    {"pre_quant_scale", kTerm, false, Harmless::kNever, kScaled},
    {"input_prescale", kTerm, false, Harmless::kNever, kScaled},  // Quark's
    {"smooth_scale", kTerm, false, Harmless::kNever, kScaled},
    {"smooth_factor", kTerm, false, Harmless::kNever, kScaled},
    {"channel_scale", kTerm, false, Harmless::kNever, kScaled},
    {"act.scales", kTerm, false, Harmless::kNever, kScaled},  // AutoAWQ's scaled activation
    {"act_fn.scales", kTerm, false, Harmless::kNever, kScaled},
    {"weight_perm", kTerm, false, Harmless::kNever, "which gives inputs another order"},
    {"input_rotation", kTerm, false, Harmless::kNever, "which rotates the inputs"},
    {"online_rotation", kTerm, false, Harmless::kNever, "which rotates the inputs"},
    {"rotation_matrix", kTerm, false, Harmless::kNever, "which rotates the inputs"},
    {"hadamard", kTerm, false, Harmless::kNever, "which rotates the inputs"},
    {"comfy_quant", kTerm, false, Harmless::kNever, kDescribed},
    {"quant_metadata", kTerm, false, Harmless::kNever, kDescribed},
    {"scaled_fp8", kTerm, false, Harmless::kNever, kDescribed},
    {"svdquant_lora_a", kTerm, false, Harmless::kNever, kLowRank},
    {"svdquant_lora_b", kTerm, false, Harmless::kNever, kLowRank},
    {"input_scale_2", kTerm, false, Harmless::kNever, "an input scale of a form that is not supported",
     WeightFormat::kNvfp4},
    {"weight_zero_point", kTerm, true, Harmless::kZeros, "which is not zero and subtracted from codes",
     WeightFormat::kInt4, ".weight_packed"},
    {"qzeros", kTerm, true, Harmless::kNever, kSubtracted, WeightFormat::kInt4, ".qweight"},
    {"weight_g_idx", kTerm, true, Harmless::kInOrder, kReordered, WeightFormat::kInt4, ".weight_packed"},
    {"g_idx", kTerm, true, Harmless::kInOrder, kReordered, WeightFormat::kInt4, ".qweight"},
    {"bitmask", kTerm, false, Harmless::kNever, kSparse},
    {"weight_mask", kTerm, false, Harmless::kNever, "which masks weights"},  // torch.nn.utils.prune's
    {"weight_orig", kTerm, false, Harmless::kNever, "which holds weights before a mask"},
    {"compressed", kTerm, false, Harmless::kNever, kSparse},
};

/// ModelOpt's buffers before an export renames them. They are found only below a quantizer.
constexpr ModulePart kQuantizerState[] = {
    {"amax", kState},
    {"global_amax", kState},
    {"double_scale", kState},
};

/// The beginnings of the names of PEFT's adapters: "X.lora_A.weight", "X.lora_B.default.weight",
/// "X.ia3_l.default". PEFT moves the weights of a module with an adapter to "X.base_layer".
constexpr std::string_view kAdapters[] = {"lora_",
                                          "ia3_",
                                          "oft_",
                                          "boft_",
                                          "hada_",
                                          "lokr_",
                                          "vera_",
                                          "hra_",
                                          "bone_",
                                          "miss_",
                                          "shira_",
                                          "c3a_",
                                          "road_",
                                          "fourierft",
                                          "vblora_",
                                          "randlora_",
                                          "dora_",
                                          "delora_",
                                          "trainable_tokens_",
                                          "token_adapter.",
                                          "base_layer.",
                                          "modules_to_save."};
constexpr ModulePart kAdapter = {"adapter", kTerm, false, Harmless::kNever, "an adapter that was not merged"};
constexpr ModulePart kUnknownPart = {"", kUnknown, false, Harmless::kNever, "which no reader of codes knows"};

const ModulePart* find_in(std::span<const ModulePart> list, std::string_view name) {
  const auto at = std::find_if(list.begin(), list.end(), [&](const ModulePart& p) { return p.name == name; });
  return at == list.end() ? nullptr : &*at;
}

/// The name without the "s" of a plural. A term may have either name: "smooth_scales".
std::string_view stem_of(std::string_view name) {
  if (name.ends_with('s')) name.remove_suffix(1);
  return name;
}

constexpr std::string_view kQuantizer = "_quantizer.";

/// The row of a quantizer's buffer, such as "_amax" or "pre_quant_scale". If the module has several
/// quantizers in sequence, the name has a number, as in "0._amax". nullptr if the buffer is not known.
const ModulePart* find_buffer(std::string_view buffer) {
  if (const size_t digits = buffer.find_first_not_of("0123456789");
      digits > 0 && digits < buffer.size() && buffer[digits] == '.')
    buffer.remove_prefix(digits + 1);
  if (buffer.starts_with('_')) buffer.remove_prefix(1);
  if (const ModulePart* state = find_in(kQuantizerState, buffer)) return state;
  const ModulePart* part = find_in(kParts, buffer);
  return part != nullptr && part->kind == kTerm ? part : nullptr;
}

/// The last position of `part`. Where there is none, as nearly always, it is faster than rfind().
size_t find_last(std::string_view name, std::string_view part) {
  return name.find(part) == name.npos ? name.npos : name.rfind(part);
}

/// The position of the dot before an adapter's name. In a stack, as in "X_lora_A.weight", it is the position
/// of the underscore. npos if there is no adapter.
size_t find_adapter(std::string_view tensor) {
  for (size_t dot = tensor.rfind('.'); dot != tensor.npos && dot > 0; dot = tensor.rfind('.', dot - 1)) {
    const std::string_view below = tensor.substr(dot + 1);
    constexpr std::string_view kFirst = "bcdfhilmorstv";  // of the adapters' names
    if (below.size() < 4 || kFirst.find(below[0]) == kFirst.npos) continue;
    if (std::any_of(std::begin(kAdapters), std::end(kAdapters),
                    [&](std::string_view adapter) { return below.starts_with(adapter); }))
      return dot;
  }
  constexpr std::string_view kOfStack = "_lora_";
  const size_t at = find_last(tensor, kOfStack);
  if (at == tensor.npos || at == 0) return tensor.npos;
  const std::string_view matrix = tensor.substr(at + kOfStack.size());
  const bool is_one = !matrix.empty() && std::string_view("ABab").find(matrix[0]) != matrix.npos &&
                      (matrix.size() == 1 || matrix[1] == '.' || matrix[1] == '_');
  return is_one ? at : tensor.npos;
}

/// The module to which a quantizer belongs. `before` is the name before "_quantizer.". The result is X for
/// "X.input" and for "X_input" of a stack.
std::string_view module_of_quantizer(std::string_view before) {
  const size_t at = before.find_last_of("._");
  return before.substr(0, at == before.npos ? 0 : at);
}

/// The part whose name is the longest suffix of the tensor's name.
const ModulePart* find_end(std::string_view tensor) {
  const ModulePart* longest = nullptr;
  for (const ModulePart& part : kParts) {
    if (tensor.empty() || tensor.back() != part.name.back() || !tensor.ends_with(part.name)) continue;
    const size_t size = tensor.size() - part.name.size();
    const bool is_one =
        size == 0 ? part.kind == kTerm : size > 1 && (tensor[size - 1] == '.' || tensor[size - 1] == '_');
    if (is_one && (longest == nullptr || part.name.size() > longest->name.size())) longest = &part;
  }
  return longest;
}

}  // namespace

std::span<const ModulePart> module_parts() { return kParts; }

const ModulePart& find_module_part(std::string_view below) {
  if (const ModulePart* part = find_in(kParts, below)) return *part;
  if (const ModulePart* part = find_in(kParts, stem_of(below)); part != nullptr && part->kind == kTerm)
    return *part;
  if (below.starts_with("lora_") || find_adapter(below) != below.npos) return kAdapter;
  const size_t at = find_last(below, kQuantizer);
  const std::string_view buffer = at == below.npos ? below : below.substr(at + kQuantizer.size());
  const bool is_buffer = at != below.npos || below.starts_with('_');
  const ModulePart* part = is_buffer ? find_buffer(buffer) : nullptr;
  const bool is_known = part != nullptr && (at != below.npos || part->kind == kTerm);
  return is_known ? *part : kUnknownPart;
}

std::optional<PartName> parse_part_name(std::string_view tensor) {
  if (const size_t at = find_last(tensor, kQuantizer); at != tensor.npos) {
    if (const ModulePart* part = find_buffer(tensor.substr(at + kQuantizer.size())))
      return PartName{module_of_quantizer(tensor.substr(0, at)), part};
  }
  const ModulePart* end = find_end(stem_of(tensor));
  if (end != nullptr && end->kind == kTerm) {
    tensor = stem_of(tensor);
  } else if (tensor.ends_with('s')) {
    end = find_end(tensor);
  }
  if (end == nullptr || end->kind != kTerm) {
    if (const size_t at = find_adapter(tensor); at != tensor.npos)
      return PartName{tensor.substr(0, at), &kAdapter};
  }
  if (end == nullptr) return std::nullopt;
  const size_t size = tensor.size() - end->name.size();
  std::string_view module = tensor.substr(0, size > 0 ? size - 1 : 0);
  // A buffer that was saved without its quantizer, such as "X._pre_quant_scale".
  if (end->kind == kTerm && module.ends_with('.')) module.remove_suffix(1);
  return PartName{module, end};
}

std::string text_of_fused_scales(const TensorInfo& scales) {
  constexpr std::string_view kFused[] = {"qkv", "query_key_value", "c_attn", "gate_up", "w13", "in_proj"};
  const bool is_few = scales.shape.size() == 1 && (scales.shape[0] == 2 || scales.shape[0] == 3);
  const bool is_fused = std::any_of(std::begin(kFused), std::end(kFused), [&](std::string_view part) {
    return scales.name.find(part) != scales.name.npos;
  });
  if (!is_few || !is_fused || scales.name.find(".weight") == scales.name.npos) return "";
  return fmt::format(", a scale for each of {} fused matrices", scales.shape[0]);
}

}  // namespace twofour
