#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "formats/families/traits.h"

// What the keys of a config.json mean in tensors, as data: one row a family of models, which checks read that
// hold the two against each other, and whatever builds a model.

namespace twofour {

/// How a parameter is stored in floats.
enum class ParameterKind : uint8_t {
  kLinear,       ///< NAME.weight [N, K], applied to inputs of K; quantizers take it
  kRouter,       ///< the same; loaders never take it for quantized
  kEmbedding,    ///< NAME.weight [N, K], looked up by rows
  kNorm,         ///< NAME.weight [N]
  kConvolution,  ///< NAME.weight [N, 1, K]
  // The name of these is the whole name of the tensor.
  kVector,       ///< [N]
  kMatrix,       ///< [N, K]
  kRowStack,     ///< [E, N, K], a linear an expert; quantizers take it
  kColumnStack,  ///< [E, K, N], a linear an expert; quantizers take it
  kStackVector,  ///< [E, N]
  kAny,          ///< of a shape that is not said here
};

inline constexpr const char* kUnsaidSize = "?";

/// A parameter of a model, or as many as there are layers and experts.
struct FamilyParameter {
  ParameterKind kind;
  /// In the files, with # for the number of the layer and, behind it, of the expert:
  /// "model.layers.#.mlp.gate".
  const char* name;
  /// Sizes: sums of products and quotients of numbers and keys, as "2*num_key_value_heads*head_dim";
  /// kUnsaidSize: not said here.
  const char *n, *k = "";
  /// Which layers, or models, have it: terms that all hold, with blanks between them; "" all. A term is
  ///   KEY      true, or a number that is not 0        KEY=TEXT  this text
  ///   @CLASS   the layer is of that class             may       it may be missing
  ///   @draft   the layer predicts further tokens
  /// and with ! before it the contrary.
  const char* when = "";
  const char* bias = nullptr;  ///< the same of NAME.bias [N]; nullptr: it never has one
};

class FamilySizes;

/// What a layer is: "sparse", "full_attention".
using LayerClass = std::string_view (*)(const FamilySizes& sizes, int64_t layer);

/// A family of models: all that share one row. Sources: Hugging Face transformers 5.17,
/// src/transformers/models/*/{configuration,modeling}_*.py and conversion_mapping.py.
struct FamilyShapes {
  std::array<const char*, 6> model_types;  ///< as config.json has them; nullptr: none
  std::array<std::span<const FamilyParameter>, 6> parameters;
  /// What keys are that a config lacks, a JSON object: numbers, yes or no, or the size that is taken instead.
  const char* defaults;
  const char* experts = "";  ///< the key that counts routed experts
  const char* top_k = "";    ///< the key that counts those of a token
  /// "dense", "sparse" or, where tables choose experts, "hash"; nullptr: all layers are alike.
  LayerClass mlp = nullptr;
  LayerClass mixer = nullptr;  ///< "full_attention", "linear_attention", "conv", "mamba"
  const char* mlp_keys = "";   ///< the keys that decide it, for messages
  const char* mixer_keys = "";
  /// The key that counts layers behind the others which predict further tokens; "": there are none.
  const char* drafts = "";
  /// Whether there are more parameters than the row has: other names are no mistake.
  bool is_open = false;
  const char* outer_type = nullptr;         ///< the model_type of a model that also reads images
  std::optional<ExpertStacks> stacks = {};  ///< nothing: not known, or no experts with gates
  std::optional<FamilyRouter> router = {};  ///< nothing: not known, or no experts
  std::optional<FamilyTraits> traits = {};  ///< nothing: the decoder does not run it
  bool norms_add_one = false;               ///< norms multiply by 1 + w
  bool clamps_gates = false;                ///< sigmoid(1.702 gate), up + 1, both clamped: gpt-oss
};

/// Every row. One without parameters says how models behave that checks do not know.
std::span<const FamilyShapes> family_shapes();
/// The row of a model_type, of what it says of parameters; nullptr: none.
const FamilyShapes* find_family_shapes(std::string_view model_type);

// Of models that also read images the outer model_type will do for these.
/// nullptr: it is not known.
const ExpertStacks* find_expert_stacks(std::string_view model_type);
/// nullptr: it is not known.
const FamilyRouter* find_family_router(std::string_view model_type);
/// Whether gates are clamped, as the row of the model_type says.
bool clamps_gates(std::string_view model_type);

/// nullptr: it cannot be run.
const FamilyTraits* find_family_traits(std::string_view model_type);
/// The model_types that can be run: "llama, mistral, ...".
std::string decoder_families();

// The rows of a file each.
std::span<const FamilyShapes> dense_families();
std::span<const FamilyShapes> sparse_families();
std::span<const FamilyShapes> latent_families();
std::span<const FamilyShapes> hybrid_families();
std::span<const FamilyShapes> layer_norm_families();
std::span<const FamilyShapes> mamba_families();
std::span<const FamilyShapes> stacked_families();

}  // namespace twofour
