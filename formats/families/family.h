#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "formats/families/traits.h"

// The tensors that the keys of a config.json imply, described as data. Each family of models has one row.
// Checks compare config and tensors by these rows, and models are built from them.

namespace twofour {

/// The form of a parameter that is stored in floats. The rows use the names of these forms in snake case,
/// such as row_stack.
enum class ParameterKind : uint8_t {
  kLinear,       ///< NAME.weight [N, K], multiplies inputs of size K; quantizers quantize it
  kRouter,       ///< like kLinear, but loaders never treat it as quantized
  kEmbedding,    ///< NAME.weight [N, K], whose rows are looked up
  kNorm,         ///< NAME.weight [N]
  kConvolution,  ///< NAME.weight [N, 1, K]
  kPatches,      ///< NAME.weight [N, 3, K, K], for patches of images
  kTwoPatches,   ///< NAME.weight [N, 3, 2, K, K], for patches of two images at a time
  // For the following kinds, NAME is the whole name of the tensor.
  kVector,       ///< [N]
  kMatrix,       ///< [N, K]
  kNumbers,      ///< [N, K] integers, the experts of each token
  kGrid,         ///< [N, N, K]
  kRowStack,     ///< [E, N, K], one linear for each expert; quantizers quantize it
  kColumnStack,  ///< [E, K, N], one linear for each expert; quantizers quantize it
  kStackVector,  ///< [E, N]
  kAny,          ///< a parameter without a given shape
};

inline constexpr const char* kUnconfiguredSize = "?";

/// The parameters of a model, one on each line:
///   NAME  KIND [N, K]  TERM... bias
/// NAME   The name in the files. # stands for the layer's number, and a second # for the expert's. A
///        name that begins with a dot belongs to a layer: .mlp.gate is model.layers.#.mlp.gate. Other names
///        are complete, such as model.embed_tokens. {a,b} stands for several names, in this order. N and K
///        are swapped for names after ~, as in .mlp.{gate,up,~down}_proj.
/// N, K   Sums of products and quotients of numbers and keys, such as 2*num_key_value_heads*head_dim.
///        vision_config.depth is a key of an object. kUnconfiguredSize is a size that is not given.
/// TERM   Layers, or models, have the parameter if all its terms hold. The terms are:
///          KEY      true, or a number that is not 0        KEY=TEXT  equals this text or number
///          KEY:N    a list has the layer's number plus N   @CLASS    the layer is of this class
///          @draft   the layer predicts further tokens      may       the parameter may be missing
///          alias    the name is an alternative that some writers use
///        ! before a term negates it.
/// bias   NAME.bias [N] exists, too. bias=TERM: it exists if the term holds.
/// Lines of other forms apply to all lines after them:
///   . = NAME      the module of names that begin with a dot, if it is not model.layers.#
///   Name = SIZE   a name for a size
///   if TERM...    terms that are put before the terms of each line
///   // ...        a remark
struct FamilyBlock {
  const char* text = "";
  std::array<const char*, 3> words = {};  ///< texts for $1, $2 and $3; nullptr for an empty text
  bool empty() const { return *text == '\0'; }
};

class FamilySizes;

/// The class of each layer, such as "sparse" or "full_attention".
struct LayerClasses {
  std::string_view (*of)(const FamilySizes& sizes, int64_t layer) = nullptr;  ///< nullptr: all are alike
  const char* keys = "";  ///< the keys that decide the class, for messages
};

/// The routed experts of a model.
struct FamilyExperts {
  const char* count = "";                   ///< the key for the number of experts; "" if there are none
  const char* per_token = "";               ///< the key for the number of experts chosen for a token
  std::optional<ExpertStacks> stacks = {};  ///< empty if not known, or if experts have no gates
};

/// Parameters that checks do not compare with a config: the parameters of a draft that has its own names,
/// those of a tower, and those that a row leaves open.
struct FamilyPart {
  FamilyBlock parameters;
  /// The prefix of the names of the part's layers, such as "mtp.layers.#.". If it is "", the part's layers
  /// are the model's.
  const char* layers = "";
  /// The number of the part's layers, an expression like a size. If the part's layers are the model's, this
  /// is the number of parts in each layer.
  const char* count = "";
  const char* first = "0";      ///< the number of the first layer
  bool repeats_layers = false;  ///< true for a draft with a model layer's parameters under its own names
  const char *mlp = "", *mixer = "";  ///< the classes of a draft's layers
  bool is_tower = false;              ///< true for a tower that reads images, next to the language model
  bool is_table = false;              ///< true if the pieces of the part are one table
};

/// A family of models that share one row. Sources: Hugging Face transformers 5.17,
/// src/transformers/models/*/{configuration,modeling}_*.py and conversion_mapping.py.
struct FamilyShapes {
  std::array<const char*, 6> model_types;  ///< as in config.json; unused entries are nullptr
  std::array<FamilyBlock, 13> parameters;
  /// Defaults for keys that a config lacks, as "KEY=VALUE KEY=VALUE". A value is a number, true, false or a
  /// size.
  const char* defaults;
  FamilyExperts experts = {};
  LayerClasses mlp = {};    ///< "dense", "sparse" or, if tables choose experts, "hash"
  LayerClasses mixer = {};  ///< "full_attention", "linear_attention", "conv" or "mamba"
  /// The key for the number of layers that predict further tokens. They follow the other layers. "" if there
  /// are none.
  const char* drafts = "";
  /// True if the model has more parameters than the row. Tensors with other names are then no errors.
  bool is_open = false;
  const char* outer_type = nullptr;         ///< the model_type of a model that also reads images
  std::optional<FamilyRouter> router = {};  ///< empty if not known, or if there are no experts
  std::optional<FamilyTraits> traits = {};  ///< empty if the decoder does not run the family
  std::array<FamilyPart, 3> parts = {};     ///< parts that checks leave out
  bool norms_add_one = false;               ///< true if norms multiply by 1 + w
  bool clamps_gates = false;                ///< as in gpt-oss: sigmoid(1.702 gate) and up + 1, both clamped
  FamilyActivations activations = FamilyActivations::kAny;
  /// The beginnings of the names of the classes of model_types in snake case; nullptr: as the model_type.
  std::array<const char*, 6> class_names = {};
  bool shares_draft_ends = false;  ///< true if drafts have the model's embedding and head
  bool router_is_float = false;    ///< true if engines build the router without the quantization config
  bool adjusts_width = false;      ///< true if block_auto_adjust_ff_dim changes intermediate_size
  bool lists_ends = false;         ///< true if the class compares entries of lists with the ends of names
};

/// All rows. A row without parameters describes only the behaviour of its models; checks do not know the
/// models.
std::span<const FamilyShapes> family_shapes();
/// The row with the parameters of a model_type. nullptr if there is none.
const FamilyShapes* find_family_shapes(std::string_view model_type);

/// The stacks of a model_type. nullptr if they are not known. A model that also reads images is found by
/// either of its two model_types.
const ExpertStacks* find_expert_stacks(std::string_view model_type);
/// The router of a model_type. nullptr if it is not known. A model that also reads images is found by either
/// of its two model_types.
const FamilyRouter* find_family_router(std::string_view model_type);
/// True if the row of a model_type clamps gates.
bool clamps_gates(std::string_view model_type);

/// The traits of a model_type. nullptr if the decoder cannot run it.
const FamilyTraits* find_family_traits(std::string_view model_type);
/// The names of all model_types that can be run: "llama, mistral, ...".
std::string decoder_families();

// The rows of each source file.
std::span<const FamilyShapes> dense_families();
std::span<const FamilyShapes> sparse_families();
std::span<const FamilyShapes> latent_families();
std::span<const FamilyShapes> hybrid_families();
std::span<const FamilyShapes> delta_families();
std::span<const FamilyShapes> windowed_families();
std::span<const FamilyShapes> stacked_families();

}  // namespace twofour
