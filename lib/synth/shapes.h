#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace twofour {

/// What a tensor is, which decides how it is stored and drawn.
enum class SynthRole {
  kQuantized,  ///< NVFP4 with a global scale of its own
  kGate,       ///< NVFP4; shares its global scale with the kUp behind it
  kUp,
  kLinear,       ///< BF16 and listed among the modules that are not quantized
  kConvolution,  ///< as kLinear, [N, 1, K]
  kEmbedding,    ///< BF16; quantizers do not look at it
  kVector,       ///< BF16 [N] around one, such as a norm; its name is the whole name of the tensor
};
enum class SynthScope { kModel, kLayer, kExpert };
/// Of hybrid models every fourth layer has full attention, beginning with layer 3.
enum class SynthLayers { kAll, kFullAttention, kLinearAttention };

/// One module of a model, or as many as there are layers or experts.
struct SynthRule {
  SynthScope scope;
  const char* name;  ///< below the model, the layer or the expert
  int64_t n, k;      ///< kVocab and kExperts are replaced by the options' values
  SynthRole role;
  SynthLayers layers = SynthLayers::kAll;
};
inline constexpr int64_t kVocab = -1, kExperts = -2;

/// A model that synth can write checkpoints of. Sources: the config.json of each model on the Hugging Face
/// hub; for the tensors' names and shapes its implementation in transformers, for DeepSeek-V4 the reference
/// inference code.
struct SynthShape {
  const char* name;
  const char* layer_prefix;   ///< what precedes layer numbers
  const char* expert_prefix;  ///< below the layer, what precedes expert numbers
  const char* experts_key;    ///< in config.json; nullptr: a dense model
  int64_t layers, experts, top_k;
  std::span<const SynthRule> rules;  ///< each kGate is followed by its kUp
  const char* config;                ///< JSON; counts and quantization_config are added
};

/// A shape with the counts that the options say.
struct SynthModel {
  const SynthShape* shape;
  int64_t layers, experts, vocab;
};

/// One module of a model.
struct SynthModule {
  std::string name;
  SynthRole role;
  int64_t n, k;
  bool is_nvfp4() const {
    return role == SynthRole::kQuantized || role == SynthRole::kGate || role == SynthRole::kUp;
  }
};

std::span<const SynthShape> synth_shape_table();

/// Calls `f` for every module of the model: gate and up together, the others alone.
void for_each_module(const SynthModel& model, const std::function<void(std::span<const SynthModule>)>& f);

/// The linears of the model that stay BF16, as globs: "lm_head", "*.mlp.gate". Each matches something, none
/// anything else.
std::vector<std::string> unquantized_modules(const SynthModel& model);

}  // namespace twofour
