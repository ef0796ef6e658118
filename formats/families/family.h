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

/// How a parameter is stored in floats; its word in rows is the same: row_stack.
enum class ParameterKind : uint8_t {
  kLinear,       ///< NAME.weight [N, K], applied to inputs of K; quantizers take it
  kRouter,       ///< the same; loaders never take it for quantized
  kEmbedding,    ///< NAME.weight [N, K], looked up by rows
  kNorm,         ///< NAME.weight [N]
  kConvolution,  ///< NAME.weight [N, 1, K]
  kPatches,      ///< NAME.weight [N, 3, K, K], of images
  kTwoPatches,   ///< NAME.weight [N, 3, 2, K, K], of images, two at a time
  // The name of these is the whole name of the tensor.
  kVector,       ///< [N]
  kMatrix,       ///< [N, K]
  kNumbers,      ///< [N, K], whole numbers: experts of tokens
  kGrid,         ///< [N, N, K]
  kRowStack,     ///< [E, N, K], a linear an expert; quantizers take it
  kColumnStack,  ///< [E, K, N], a linear an expert; quantizers take it
  kStackVector,  ///< [E, N]
  kAny,          ///< of a shape that is not said here
};

inline constexpr const char* kUnsaidSize = "?";

/// Parameters of a model, a line each:
///   NAME  KIND [N, K]  TERM... bias
/// NAME   in the files, with # for the number of the layer and, behind it, of the expert: model.embed_tokens.
///        What begins with a dot is in a layer, model.layers.#: .mlp.gate. {a,b} are as many names, in this
///        order; those behind ~ have N and K the other way round: .mlp.{gate,up,~down}_proj.
/// N, K   sums of products and quotients of numbers and keys, as 2*num_key_value_heads*head_dim, where
///        vision_config.depth is a key of an object; kUnsaidSize: not said here.
/// TERM   which layers, or models, have it, if all hold. A term is
///          KEY      true, or a number that is not 0        KEY=TEXT  this text or number
///          KEY:N    a list has the layer's number plus N   @CLASS    the layer is of that class
///          @draft   the layer predicts further tokens      may       it may be missing
///          alias    another name for a parameter, which some writers take
///        and with ! before it the contrary.
/// bias   there is NAME.bias [N], too; bias=TERM: if that holds.
/// Lines of other forms are for all that are behind them:
///   . = NAME      what names that begin with a dot are in, if not in model.layers.#
///   Name = SIZE   a name for a size
///   if TERM...    before the terms of each line
///   // ...        a remark
struct FamilyBlock {
  const char* text = "";
  std::array<const char*, 3> words = {};  ///< in place of $1, $2 and $3; nullptr: nothing
  bool empty() const { return *text == '\0'; }
};

class FamilySizes;

/// What each layer is: "sparse", "full_attention".
struct LayerClasses {
  std::string_view (*of)(const FamilySizes& sizes, int64_t layer) = nullptr;  ///< nullptr: all are alike
  const char* keys = "";  ///< the keys that decide it, for messages
};

/// The experts among which a model chooses.
struct FamilyExperts {
  const char* count = "";                   ///< the key that counts them; "": there are none
  const char* per_token = "";               ///< the key that counts those of a token
  std::optional<ExpertStacks> stacks = {};  ///< nothing: not known, or no experts with gates
};

/// Parameters beside those that checks hold against a config: of a draft with names of its own, of a tower,
/// and what a row leaves open.
struct FamilyPart {
  FamilyBlock parameters;
  /// What its layers' names begin with, "mtp.layers.#."; "": the layers are those of the model.
  const char* layers = "";
  /// How many there are, as sizes are; of the model's layers how many parts each has.
  const char* count = "";
  const char* first = "0";            ///< the number of the first
  bool repeats_layers = false;        ///< a draft: under its names it has what layers of the model have
  const char *mlp = "", *mixer = "";  ///< the classes of a draft's layers
  bool is_tower = false;              ///< beside the language model: reads images
  bool is_table = false;              ///< its parts are one table
};

/// A family of models: all that share one row. Sources: Hugging Face transformers 5.17,
/// src/transformers/models/*/{configuration,modeling}_*.py and conversion_mapping.py.
struct FamilyShapes {
  std::array<const char*, 6> model_types;  ///< as config.json has them; nullptr: none
  std::array<FamilyBlock, 13> parameters;
  /// What keys are that a config lacks, as "KEY=VALUE KEY=VALUE": numbers, true or false, or the size that is
  /// taken instead.
  const char* defaults;
  FamilyExperts experts = {};
  LayerClasses mlp = {};    ///< "dense", "sparse" or, where tables choose experts, "hash"
  LayerClasses mixer = {};  ///< "full_attention", "linear_attention", "conv", "mamba"
  /// The key that counts layers behind the others which predict further tokens; "": there are none.
  const char* drafts = "";
  /// Whether there are more parameters than the row has: other names are no mistake.
  bool is_open = false;
  const char* outer_type = nullptr;         ///< the model_type of a model that also reads images
  std::optional<FamilyRouter> router = {};  ///< nothing: not known, or no experts
  std::optional<FamilyTraits> traits = {};  ///< nothing: the decoder does not run it
  std::array<FamilyPart, 3> parts = {};     ///< what checks leave out
  bool norms_add_one = false;               ///< norms multiply by 1 + w
  bool clamps_gates = false;                ///< sigmoid(1.702 gate), up + 1, both clamped: gpt-oss
};

/// Every row. One without parameters says how models behave that checks do not know.
std::span<const FamilyShapes> family_shapes();
/// The row of a model_type, of what it says of parameters; nullptr: none.
const FamilyShapes* find_family_shapes(std::string_view model_type);

/// Of a model that also reads images either model_type will do. nullptr: it is not known.
const ExpertStacks* find_expert_stacks(std::string_view model_type);
/// The same of routers.
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
std::span<const FamilyShapes> delta_families();
std::span<const FamilyShapes> windowed_families();
std::span<const FamilyShapes> stacked_families();

}  // namespace twofour
