#include "formats/module_parts.h"

#include <algorithm>

namespace twofour {
namespace {

using enum PartKind;
constexpr const char* kSubtracted = "which is subtracted from codes";
constexpr const char* kReordered = "which gives inputs to groups in another order";
constexpr const char* kLowRank = "which adds a low-rank matrix";
constexpr const char* kSparse = "which belongs to a sparse form that is not read";

constexpr ModulePart kParts[] = {
    // Weights and what goes with the module.
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
    // Inputs, outputs and the cache of keys and values.
    {"input_scale", kPart, true},
    {"input_global_scale", kPart, true},
    {"input_zero_point", kPart, true},
    {"output_scale", kPart},
    {"prob_output_scale", kPart},
    {"q_scale", kPart},
    {"k_scale", kPart},
    {"v_scale", kPart},
    {"kv_scale", kPart},
    {"k_bias", kPart},
    {"v_bias", kPart},
    // Routers.
    {"e_score_correction_bias", kPart},
    {"expert_bias", kPart},
    {"bias_vl", kPart},
    {"tid2eid", kPart},
    // What changes the meaning of weights.
    {"pre_quant_scale", kTerm, false, Harmless::kNever, "which scales the inputs"},
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
    {"compressed", kTerm, false, Harmless::kNever, kSparse},
};

/// Below a quantizer alone: ModelOpt's buffers before an export names them anew.
constexpr ModulePart kQuantizerState[] = {
    {"amax", kState},
    {"global_amax", kState},
    {"double_scale", kState},
};

/// PEFT's adapters: "X.lora_A.weight", "X.lora_B.default.weight", "X.lora_magnitude_vector".
constexpr std::string_view kLoraPrefix = "lora_";
constexpr ModulePart kLora = {kLoraPrefix, kTerm, false, Harmless::kNever, "an adapter that was not merged"};
constexpr ModulePart kUnknownPart = {"", kUnknown, false, Harmless::kNever, "which no reader of codes knows"};

const ModulePart* find_in(std::span<const ModulePart> list, std::string_view name) {
  const auto at = std::find_if(list.begin(), list.end(), [&](const ModulePart& p) { return p.name == name; });
  return at == list.end() ? nullptr : &*at;
}

/// "_amax" of "weight_quantizer._amax"; empty where no quantizer is above the name.
std::string_view below_quantizer(std::string_view below) {
  constexpr std::string_view kQuantizer = "_quantizer.";
  const size_t at = below.rfind(kQuantizer);
  return at == below.npos ? std::string_view() : below.substr(at + kQuantizer.size());
}

}  // namespace

std::span<const ModulePart> module_parts() { return kParts; }

const ModulePart& find_module_part(std::string_view below) {
  if (const ModulePart* part = find_in(kParts, below)) return *part;
  if (below.starts_with(kLoraPrefix)) return kLora;
  std::string_view buffer = below_quantizer(below);
  if (buffer.empty()) return kUnknownPart;
  if (buffer.starts_with('_')) buffer.remove_prefix(1);
  if (const ModulePart* state = find_in(kQuantizerState, buffer)) return *state;
  const ModulePart* part = find_in(kParts, buffer);
  return part != nullptr && part->kind == kTerm ? *part : kUnknownPart;
}

std::optional<PartName> parse_part_name(std::string_view tensor) {
  constexpr std::string_view kLoraAnywhere = ".lora_";
  if (const size_t at = tensor.rfind(kLoraAnywhere); at != tensor.npos)
    return PartName{tensor.substr(0, at), &kLora};
  const ModulePart* longest = nullptr;
  for (const ModulePart& part : kParts) {
    if (!tensor.ends_with(part.name) || tensor.size() < part.name.size() + 2) continue;
    const char before = tensor[tensor.size() - part.name.size() - 1];
    if (before != '.' && before != '_') continue;
    if (longest == nullptr || part.name.size() > longest->name.size()) longest = &part;
  }
  if (longest == nullptr) return std::nullopt;
  return PartName{tensor.substr(0, tensor.size() - longest->name.size() - 1), longest};
}

}  // namespace twofour
