#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "formats/families/traits.h"

// The tensors that the keys of a config.json imply, as data: one row for each family of models. Checks
// compare config and tensors by these rows, and models are built from them.

namespace twofour {

/// How a parameter is stored in floats. Rows use the same name in snake case: row_stack.
enum class ParameterKind : uint8_t {
  kLinear,       ///< NAME.weight [N, K], applied to inputs of K; quantizers take it
  kRouter,       ///< the same; loaders never treat it as quantized
  kEmbedding,    ///< NAME.weight [N, K], looked up by rows
  kNorm,         ///< NAME.weight [N]
  kConvolution,  ///< NAME.weight [N, 1, K]
  kPatches,      ///< NAME.weight [N, 3, K, K], of images
  kTwoPatches,   ///< NAME.weight [N, 3, 2, K, K], of images, two at a time
  // For the kinds below, the name is the whole name of the tensor.
  kVector,       ///< [N]
  kMatrix,       ///< [N, K]
  kNumbers,      ///< [N, K], integers: the experts of each token
  kGrid,         ///< [N, N, K]
  kRowStack,     ///< [E, N, K], one linear for each expert; quantizers take it
  kColumnStack,  ///< [E, K, N], one linear for each expert; quantizers take it
  kStackVector,  ///< [E, N]
  kAny,          ///< its shape is not given here
};

inline constexpr const char* kUnsaidSize = "?";

/// Parameters of a model, one on each line:
///   NAME  KIND [N, K]  TERM... bias
/// NAME   in the files, with # for the layer's number and, after it, the expert's: model.embed_tokens. A name
///        that begins with a dot is in a layer, model.layers.#: .mlp.gate. {a,b} stands for several names, in
///        this order; names after ~ have N and K swapped: .mlp.{gate,up,~down}_proj.
/// N, K   sums of products and quotients of numbers and keys, such as 2*num_key_value_heads*head_dim;
///        vision_config.depth is a key of an object; kUnsaidSize: not given here.
/// TERM   layers, or models, have the parameter if all its terms hold. A term is
///          KEY      true, or a number that is not 0        KEY=TEXT  this text or number
///          KEY:N    a list has the layer's number plus N   @CLASS    the layer is of that class
///          @draft   the layer predicts further tokens      may       it may be missing
///          alias    another name for a parameter, which some writers take
///        and, with ! before it, the opposite.
/// bias   there is NAME.bias [N], too; bias=TERM: if that holds.
/// Lines of other forms apply to all lines after them:
///   . = NAME      the module of names that begin with a dot, if not model.layers.#
///   Name = SIZE   a name for a size
///   if TERM...    before the terms of each line
///   // ...        a remark
struct FamilyBlock {
  const char* text = "";
  std::array<const char*, 3> words = {};  ///< texts for $1, $2 and $3; nullptr: nothing
  bool empty() const { return *text == '\0'; }
};

class FamilySizes;

/// The class of each layer: "sparse", "full_attention".
struct LayerClasses {
  std::string_view (*of)(const FamilySizes& sizes, int64_t layer) = nullptr;  ///< nullptr: all are alike
  const char* keys = "";  ///< the keys that decide it, for messages
};

/// The routed experts of a model.
struct FamilyExperts {
  const char* count = "";                   ///< the key that counts them; "": there are none
  const char* per_token = "";               ///< the key for the number of experts chosen for a token
  std::optional<ExpertStacks> stacks = {};  ///< empty: not known, or no experts with gates
};

/// Parameters that checks do not compare with a config: those of a draft with names of its own, those of a
/// tower, and those that a row leaves open.
struct FamilyPart {
  FamilyBlock parameters;
  /// The prefix of its layers' names, "mtp.layers.#."; "": its layers are the model's.
  const char* layers = "";
  /// The number of its layers, an expression like a size; if the layers are the model's, the number of parts
  /// in each.
  const char* count = "";
  const char* first = "0";            ///< the number of the first layer
  bool repeats_layers = false;        ///< a draft with the parameters of a model's layer, under its own names
  const char *mlp = "", *mixer = "";  ///< the classes of a draft's layers
  bool is_tower = false;              ///< beside the language model: reads images
  bool is_table = false;              ///< its parts are one table
};

/// A family of models that share one row. Sources: Hugging Face transformers 5.17,
/// src/transformers/models/*/{configuration,modeling}_*.py and conversion_mapping.py.
struct FamilyShapes {
  std::array<const char*, 6> model_types;  ///< as config.json has them; nullptr: none
  std::array<FamilyBlock, 13> parameters;
  /// Defaults of keys that a config lacks, as "KEY=VALUE KEY=VALUE". A value is a number, true, false or a
  /// size.
  const char* defaults;
  FamilyExperts experts = {};
  LayerClasses mlp = {};    ///< "dense", "sparse" or, if tables choose experts, "hash"
  LayerClasses mixer = {};  ///< "full_attention", "linear_attention", "conv", "mamba"
  /// The key for the number of layers, behind the others, that predict further tokens; "": none.
  const char* drafts = "";
  /// True if the model has more parameters than the row: other names are no mistake.
  bool is_open = false;
  const char* outer_type = nullptr;         ///< the model_type of a model that also reads images
  std::optional<FamilyRouter> router = {};  ///< empty: not known, or no experts
  std::optional<FamilyTraits> traits = {};  ///< empty: the decoder does not run it
  std::array<FamilyPart, 3> parts = {};     ///< parameters that checks leave out
  bool norms_add_one = false;               ///< norms multiply by 1 + w
  bool clamps_gates = false;                ///< gpt-oss: sigmoid(1.702 gate), up + 1, both clamped
};

/// Every row. A row without parameters describes the behaviour of models that checks do not know.
std::span<const FamilyShapes> family_shapes();
/// The row with the parameters of a model_type; nullptr: none.
const FamilyShapes* find_family_shapes(std::string_view model_type);

/// The stacks of a model_type; a model that also reads images is found by either of its two. nullptr: not
/// known.
const ExpertStacks* find_expert_stacks(std::string_view model_type);
/// The same for routers.
const FamilyRouter* find_family_router(std::string_view model_type);
/// True if the row of the model_type clamps gates.
bool clamps_gates(std::string_view model_type);

/// The traits of a model_type; nullptr: it cannot be run.
const FamilyTraits* find_family_traits(std::string_view model_type);
/// The model_types that can be run: "llama, mistral, ...".
std::string decoder_families();

// The rows of each file.
std::span<const FamilyShapes> dense_families();
std::span<const FamilyShapes> sparse_families();
std::span<const FamilyShapes> latent_families();
std::span<const FamilyShapes> hybrid_families();
std::span<const FamilyShapes> delta_families();
std::span<const FamilyShapes> windowed_families();
std::span<const FamilyShapes> stacked_families();

}  // namespace twofour
