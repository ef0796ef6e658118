#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "formats/weight_dialect.h"

namespace twofour {

struct TensorInfo;

/// The kind of a tensor whose name follows the name of a module with codes or scales.
enum class PartKind {
  kPart,   ///< a part of a format, or a description of inputs or outputs; changes no weight
  kScale,  ///< a scale of a format, which multiplies codes; a module has only the scales of one dialect
  kTerm,   ///< changes the meaning of the weights; refused unless a decoder accounts for it
  kState,  ///< the state of a quantizer; changes nothing, but engines do not know the name
  kUnknown,
};

/// The values for which a term changes nothing.
enum class Harmless { kNever, kZeros, kInOrder };

/// A name that follows a module's name: "pre_quant_scale" in "X.pre_quant_scale", and in "X_pre_quant_scale"
/// of a stack.
struct ModulePart {
  std::string_view name;
  PartKind kind;
  /// True if this tensor needs codes: a module with the tensor but without codes is incomplete.
  bool needs_codes = false;
  // The values for which the tensor changes nothing. For terms only.
  Harmless harmless = Harmless::kNever;
  const char* effect = "";
  /// The format whose decoder accounts for the term. The term is refused beside codes of other formats.
  std::optional<WeightFormat> decoder{};
  std::string_view codes{};  ///< the suffix of that format's codes
};

/// The complete list of known parts, which every command uses. A name that is not in the list is kUnknown.
/// Sources: compressed-tensors, compressors; NVIDIA/Model-Optimizer, export/quant_utils.py and
/// nn/modules/tensor_quantizer.py; AutoGPTQ; AutoAWQ; vLLM, quantization/quark and kv_cache.py; Nunchaku;
/// ComfyUI; Hugging Face transformers and PEFT, whose modules have these parameters.
std::span<const ModulePart> module_parts();

/// The row for a name below a module. There are three cases:
/// - a part beside the weight, found by the whole name: "pre_quant_scale"
/// - a buffer below a quantizer, found by the name of the buffer: "input_quantizer._pre_quant_scale". Some
///   names are found only there.
/// - a term of a quantizer without the quantizer's name: "_pre_quant_scale"
const ModulePart& find_module_part(std::string_view below);

/// A tensor's name, split into a module and a part of the list. The module need not exist.
struct PartName {
  std::string_view module;
  const ModulePart* part;
};
/// Parses the name of a tensor that belongs to a module X, such as "X.pre_quant_scale", "X_pre_quant_scale",
/// "X.input_quantizer._pre_quant_scale", "X._pre_quant_scale" or "X.lora_A.default.weight". If nothing
/// precedes a term, as in "comfy_quant", the module is "". Empty if the tensor's name does not end in a name
/// on the list.
std::optional<PartName> parse_part_name(std::string_view tensor);

/// A text for messages: the tensor has a scale for each matrix of a fused linear, such as qkv_proj. Empty for
/// other tensors.
std::string text_of_fused_scales(const TensorInfo& scales);

}  // namespace twofour
