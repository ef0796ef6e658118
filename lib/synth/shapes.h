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

/// The layers, of `layers`, that have something; null: all.
using SynthWhere = bool (*)(int64_t layer, int64_t layers);
/// The argument for a draft: beyond all layers of a model.
inline constexpr int64_t kDraftLayer = 1000;

/// A parameter that is optional in the row of the family ("may"), and that a shape has. Heads that are not
/// the embedding need no such entry.
struct SynthOption {
  const char* parameters;  ///< glob, with # for numbers
  SynthWhere where = nullptr;
};

/// The format of modules in a publication: the first matching row decides.
struct SynthFormatRule {
  const char* modules;        ///< glob
  const SynthFormat* format;  ///< nullptr: floats
  SynthWhere where = nullptr;
};

struct SynthListing;

/// The publication of a model: the format of each module and the texts of its configs. Known published texts
/// are copied word for word, including contradictions.
struct SynthPublication {
  const char* dialect;
  std::span<const SynthFormatRule> rules;
  const char* quantization;  ///< quantization_config, JSON
  const char* hf_quant;      ///< hf_quant_config.json; nullptr: there is no such file
  /// Adds the parts that depend on the modules; nullptr: there are none.
  void (*fill)(const SynthListing& listing, Json& quantization, Json& hf_quant);
  const char* place = nullptr;      ///< the key under which quantization_config is nested
  const char* kv_scales = nullptr;  ///< glob of modules that have a k_scale or v_scale
  DType floats = DType::kBF16;      ///< type of unquantized tensors
  const char* config = nullptr;     ///< members of config.json that differ from the shape's
};

/// A JSON object in several texts: members of later texts replace those of earlier ones.
struct SynthJson {
  constexpr SynthJson(const char* first, const char* second = nullptr, const char* third = nullptr)
      : texts{first, second, third} {}
  std::array<const char*, 3> texts;
};

/// A model for which synth can write checkpoints: its config, from which the row of its family in
/// formats/families defines the tensors. Sources: the config.json of each model on the Hugging Face hub.
struct SynthShape {
  const char* name;
  SynthJson config;  ///< vocab_size and quantization_config are added
  SynthJson small;   ///< changes for --small: sizes that blocks fit into, counts
  std::span<const SynthPublication> publications;  ///< the default first
  const char* text = nullptr;  ///< the key under which the language model's config is nested
  void (*finish)(Json& text, int64_t layers) = nullptr;  ///< sets the values of each layer
  int64_t least_layers = 1;
  /// The replacement of "model." if it ends in that, otherwise a prefix of all names; nullptr: nothing.
  const char* language_model = nullptr;
  const char* f32 = "";  ///< globs, with blanks between them: parameters that are stored in F32
  std::span<const SynthOption> options = {};
};

/// A user's choices for a shape.
struct SynthChoice {
  std::string shape, dialect;              ///< an empty dialect: the shape's default
  std::optional<int64_t> layers, experts;  ///< by default the model's own
  int64_t vocab = 1024;
  bool small = false;
};

/// One module of a model. A gate shares its global scale with the `up` that follows it.
struct SynthModule {
  SynthMatrix matrix;  ///< the name without .weight, if loaders add that
  ParameterKind kind;
  size_t parameter = 0;  ///< a number for all modules of one parameter, rising in a row's order
  bool is_f32 = false;   ///< stored in F32, whatever the type of the others
  bool is_one = false;   ///< a vector drawn around one, such as a norm, others around zero
  bool has_kv_scale = false;
  const SynthFormat* format = nullptr;  ///< nullptr: floats, or whole numbers
  const std::string& name() const { return matrix.name; }
  bool has_weight() const {
    return kind <= ParameterKind::kTwoPatches && kind != ParameterKind::kNorm && !is_f32;
  }
  /// True if loaders of the model may take it for a linear.
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
/// The rows of one file each.
std::span<const SynthShape> single_format_shapes();
std::span<const SynthShape> qwen_shapes();
std::span<const SynthShape> latent_attention_shapes();
std::span<const SynthShape> nemotron_shapes();
std::span<const SynthShape> released_shapes();

/// Throws Error on unknown names, and on impossible counts and combinations.
SynthModel make_synth_model(const SynthChoice& choice);

/// Calls `f` for every module of the model: for modules that share a scale together, for others alone.
void for_each_module(const SynthModel& model, const std::function<void(std::span<const SynthModule>)>& f);

/// The linears of the model that no publication of one format quantizes, as globs: "lm_head", "*.mlp.gate";
/// fused linears by their names. Each glob matches something; none matches anything else.
std::vector<std::string> unquantized_modules(const SynthModel& model);

}  // namespace twofour
