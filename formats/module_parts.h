#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "formats/weight_dialect.h"

namespace twofour {

/// What a tensor is that lies under the name of a module with codes or scales.
enum class PartKind {
  kPart,   ///< of its format, or of what reads its inputs and outputs: it changes no weight
  kScale,  ///< of its format: multiplies codes, so a module has those of one row of the dialects alone
  kTerm,   ///< changes what the weights mean; refused unless a decoder accounts for it
  kState,  ///< what a quantizer counted: it changes nothing, and engines do not know the name
  kUnknown,
};

/// Which values of a term change nothing.
enum class Harmless { kNever, kZeros, kInOrder };

/// One name behind a module's: "pre_quant_scale" of "X.pre_quant_scale" and, of a stack, "X_pre_quant_scale".
struct ModulePart {
  std::string_view name;
  PartKind kind;
  /// Whether the tensor says that there are codes: without any the module is incomplete.
  bool needs_codes = false;
  // Of terms.
  Harmless harmless = Harmless::kNever;
  const char* effect = "";
  /// The format with a decoder that accounts for the term, and the suffix of its codes; beside others the
  /// term is refused.
  std::optional<WeightFormat> decoder{};
  std::string_view codes{};
};

/// The closed list of such names, which every command goes by. A name that is not on it is kUnknown.
/// Sources: compressed-tensors, compressors; NVIDIA/Model-Optimizer, export/quant_utils.py and
/// nn/modules/tensor_quantizer.py; AutoGPTQ; AutoAWQ; vLLM, quantization/quark and kv_cache.py; Nunchaku;
/// ComfyUI; Hugging Face transformers and PEFT, whose modules have them as parameters.
std::span<const ModulePart> module_parts();

/// What the list says of a name behind a module's, "input_quantizer._pre_quant_scale" for example: a
/// quantizer's buffer is looked up by its own name, and what only a quantizer has counts below one alone.
/// Terms count as buffers without a quantizer, too: "_pre_quant_scale".
const ModulePart& find_module_part(std::string_view below);

/// A tensor's name as that of a part on the list: the module, which need not exist, and the part.
struct PartName {
  std::string_view module;
  const ModulePart* part;
};
/// "X.pre_quant_scale", "X_pre_quant_scale", "X.input_quantizer._pre_quant_scale", "X._pre_quant_scale" or
/// "X.lora_A.default.weight" of X; a term with nothing before it, "comfy_quant", is of the module "". Empty
/// where no name on the list ends the tensor's.
std::optional<PartName> parse_part_name(std::string_view tensor);

}  // namespace twofour
