#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/family.h"
#include "formats/json.h"
#include "lib/synth/formats.h"

namespace twofour {

/// Returns true if layer `layer` of a model with `layers` layers has something. A null pointer stands for all
/// layers.
using SynthWhere = bool (*)(int64_t layer, int64_t layers);
/// The argument `layer` for a draft. It is larger than the number of any layer.
inline constexpr int64_t kDraftLayer = 1000;

/// A parameter that is optional in the row of the family ("may") and that a shape has. A head that is not the
/// embedding needs no such entry.
struct SynthOption {
  const char* parameters;  ///< glob, with # for numbers
  SynthWhere where = nullptr;
};

/// A row that gives modules of a publication their format. The first row that matches a module decides.
struct SynthFormatRule {
  const char* modules;        ///< glob
  const SynthFormat* format;  ///< null for floats
  SynthWhere where = nullptr;
};

struct SynthListing;

/// A publication of a model, with the format of each module and the texts of the configs. Known published
/// texts are copied word for word, including contradictions.
struct SynthPublication {
  const char* dialect;
  std::span<const SynthFormatRule> rules;
  const char* quantization;  ///< JSON of quantization_config
  const char* hf_quant;      ///< JSON of hf_quant_config.json; null without that file
  /// Adds the parts of the configs that depend on the modules. Null if no part does.
  void (*fill)(const SynthListing& listing, Json& quantization, Json& hf_quant);
  const char* place = nullptr;      ///< the key under which quantization_config is nested
  const char* kv_scales = nullptr;  ///< glob of modules that have a k_scale or v_scale
  DType floats = DType::kBF16;      ///< type of unquantized tensors
  const char* config = nullptr;     ///< members of config.json that differ from the shape's
};

/// A JSON object in several texts. Members of later texts replace members of earlier texts.
struct SynthJson {
  constexpr SynthJson(const char* first, const char* second = nullptr, const char* third = nullptr)
      : texts{first, second, third} {}
  std::array<const char*, 3> texts;
};

/// A model for which synth can write checkpoints. The tensors follow from its config, by the row of its
/// family in formats/families. Sources: the config.json of each model on the Hugging Face hub.
struct SynthShape {
  const char* name;
  SynthJson config;                                ///< vocab_size and quantization_config are added
  SynthJson small;                                 ///< changes for --small: counts, and sizes that fit blocks
  std::span<const SynthPublication> publications;  ///< the default first
  const char* text = nullptr;  ///< the key under which the language model's config is nested
  void (*finish)(Json& text, int64_t layers) = nullptr;  ///< sets the values of each layer
  int64_t least_layers = 1;
  /// The replacement for "model." in names, if it ends in "model.". Otherwise it is a prefix of all names.
  /// Null if names stay unchanged.
  const char* language_model = nullptr;
  const char* f32 = "";  ///< parameters that are stored in F32, as globs with blanks between
  std::span<const SynthOption> options = {};
};

/// A user's choices for a shape.
struct SynthChoice {
  std::string shape, dialect;              ///< the shape's default dialect if empty
  std::optional<int64_t> layers, experts;  ///< nullopt: the model's own
  int64_t vocab = 1024;
  bool small = false;
};

/// One module of a model. A gate shares its global scale with the `up` that follows it.
struct SynthModule {
  SynthMatrix matrix;  ///< the name without .weight, if loaders add that
  ParameterKind kind;
  size_t parameter = 0;  ///< the parameter's number, which rises in a row's order
  bool is_f32 = false;   ///< stored in F32, whatever the other types are
  bool is_one = false;   ///< a vector around one, such as a norm; otherwise around zero
  bool has_kv_scale = false;
  const SynthFormat* format = nullptr;  ///< null for floats or whole numbers
  const std::string& name() const { return matrix.name; }
  bool has_weight() const {
    return kind <= ParameterKind::kTwoPatches && kind != ParameterKind::kNorm && !is_f32;
  }
  /// True if loaders of the model may take the module for a linear.
  bool is_linear() const { return has_weight() && kind != ParameterKind::kEmbedding; }
  bool is_gate() const { return is_one_of(".gate_proj", ".w1"); }
  bool is_up() const { return is_one_of(".up_proj", ".w3"); }

 private:
  bool is_one_of(std::string_view a, std::string_view b) const {
    return kind == ParameterKind::kLinear && (name().ends_with(a) || name().ends_with(b));
  }
};

/// A shape with its sizes and its config.json.
struct SynthModel {
  const SynthShape* shape;
  const SynthPublication* publication;
  const FamilyShapes* family;
  Json config;
  int64_t layers, experts, vocab;
  const Json& text() const { return shape->text != nullptr ? config.at(shape->text) : config; }
};

/// The modules of a model, for the lists of its configs.
struct SynthListing {
  const SynthModel& model;
  std::vector<SynthModule> modules;  ///< by name, in natural order
};

std::span<const SynthShape> synth_shape_table();
/// These functions each return the rows of one source file.
std::span<const SynthShape> single_format_shapes();
std::span<const SynthShape> qwen_shapes();
std::span<const SynthShape> latent_attention_shapes();
std::span<const SynthShape> nemotron_shapes();
std::span<const SynthShape> released_shapes();

/// Throws Error on unknown names, and on impossible counts and combinations.
SynthModel make_synth_model(const SynthChoice& choice);

/// Calls `f` for all modules of the model. Modules that share a scale come in one call, and each other module
/// in its own.
void for_each_module(const SynthModel& model, const std::function<void(std::span<const SynthModule>)>& f);

/// The linears of the model that no single-format publication quantizes. They are globs such as "lm_head" and
/// "*.mlp.gate", or names for linears that engines fuse. Each glob matches at least one of these linears and
/// nothing else.
std::vector<std::string> unquantized_modules(const SynthModel& model);

}  // namespace twofour
