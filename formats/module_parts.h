#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "formats/weight_dialect.h"

namespace twofour {

/// The kind of a tensor under the name of a module with codes or scales.
enum class PartKind {
  kPart,   ///< of its format, or about its inputs and outputs: it changes no weight
  kScale,  ///< of its format: multiplies codes, so a module has only the scales of one dialect
  kTerm,   ///< changes what the weights mean; refused unless a decoder accounts for it
  kState,  ///< a quantizer's state: it changes nothing, and engines do not know the name
  kUnknown,
};

/// Values of a term that change nothing.
enum class Harmless { kNever, kZeros, kInOrder };

/// One name behind a module's: "pre_quant_scale" of "X.pre_quant_scale" and of a stack's "X_pre_quant_scale".
struct ModulePart {
  std::string_view name;
  PartKind kind;
  /// True if the tensor implies codes: without them the module is incomplete.
  bool needs_codes = false;
  // For terms only.
  Harmless harmless = Harmless::kNever;
  const char* effect = "";
  /// The format whose decoder accounts for the term, and the suffix of its codes; beside other codes the term
  /// is refused.
  std::optional<WeightFormat> decoder{};
  std::string_view codes{};
};

/// The complete list of such names, which every command uses. Any other name is kUnknown. Sources:
/// compressed-tensors, compressors; NVIDIA/Model-Optimizer, export/quant_utils.py and
/// nn/modules/tensor_quantizer.py; AutoGPTQ; AutoAWQ; vLLM, quantization/quark and kv_cache.py; Nunchaku;
/// ComfyUI; Hugging Face transformers and PEFT, whose modules have these parameters.
std::span<const ModulePart> module_parts();

/// The row for a name after a module's, "input_quantizer._pre_quant_scale" for example. A quantizer's buffer
/// is found by its own name; names that only quantizers have are found only below one. Terms are found as
/// buffers without a quantizer, too: "_pre_quant_scale".
const ModulePart& find_module_part(std::string_view below);

/// A tensor's name as a module, which need not exist, and a part on the list.
struct PartName {
  std::string_view module;
  const ModulePart* part;
};
/// "X.pre_quant_scale", "X_pre_quant_scale", "X.input_quantizer._pre_quant_scale", "X._pre_quant_scale" or
/// "X.lora_A.default.weight" of X. A term with nothing before it, "comfy_quant", is of the module "". Empty
/// if the tensor's name ends in no name on the list.
std::optional<PartName> parse_part_name(std::string_view tensor);

}  // namespace twofour
