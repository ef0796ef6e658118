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

/// Which of `layers` layers have something; null: all.
using SynthWhere = bool (*)(int64_t layer, int64_t layers);
/// What it is asked of a draft: beyond all layers of a model.
inline constexpr int64_t kDraftLayer = 1000;

/// A parameter that the row of the family leaves to each model ("may"), and that a shape has. Heads that are
/// not the embedding need none.
struct SynthOption {
  const char* parameters;  ///< glob, with # for numbers
  SynthWhere where = nullptr;
};

/// Which modules of a publication have which format: the first row that fits.
struct SynthFormatRule {
  const char* modules;        ///< glob
  const SynthFormat* format;  ///< nullptr: floats
  SynthWhere where = nullptr;
};

struct SynthListing;

/// How a model was published: the format of each module and what its configs say. The published texts are
/// followed word for word where they are known, contradictions included.
struct SynthPublication {
  const char* dialect;
  std::span<const SynthFormatRule> rules;
  const char* quantization;  ///< quantization_config, JSON
  const char* hf_quant;      ///< hf_quant_config.json; nullptr: there is no such file
  /// Adds what depends on the modules; nullptr: nothing does.
  void (*fill)(const SynthListing& listing, Json& quantization, Json& hf_quant);
  const char* place = nullptr;      ///< the key that quantization_config is nested under
  const char* kv_scales = nullptr;  ///< glob of modules that have a k_scale or v_scale
  DType floats = DType::kBF16;      ///< type of what is not quantized
  const char* config = nullptr;     ///< members of config.json that differ from the shape's
};

/// A JSON object in several texts: members of later ones replace those of earlier ones.
struct SynthJson {
  constexpr SynthJson(const char* first, const char* second = nullptr, const char* third = nullptr)
      : texts{first, second, third} {}
  std::array<const char*, 3> texts;
};

/// A model that synth can write checkpoints of: its config, from which the row of its family in
/// formats/families makes tensors. Sources: the config.json of each model on the Hugging Face hub.
struct SynthShape {
  const char* name;
  SynthJson config;  ///< vocab_size and quantization_config are added
  SynthJson small;   ///< what --small changes: sizes that blocks fit into, counts
  std::span<const SynthPublication> publications;  ///< the default first
  const char* text = nullptr;  ///< the key that the language model's config is nested under
  void (*finish)(Json& text, int64_t layers) = nullptr;  ///< sets what config.json says of each layer
  int64_t least_layers = 1;
  /// What "model." is called, if that ends in it, or else what is before all names; nullptr: nothing.
  const char* language_model = nullptr;
  const char* f32 = "";  ///< globs, with blanks between them: parameters that are stored in F32
  std::span<const SynthOption> options = {};
};

/// What a user may choose of a shape.
struct SynthChoice {
  std::string shape, dialect;              ///< an empty dialect: the shape's default
  std::optional<int64_t> layers, experts;  ///< the model's own where not given
  int64_t vocab = 1024;
  bool small = false;
};

/// One module of a model. A gate shares its global scale with the `up` behind it.
struct SynthModule {
  SynthMatrix matrix;  ///< the name without .weight, if loaders add that
  ParameterKind kind;
  size_t parameter = 0;  ///< a number for all modules of one parameter, rising in a row's order
  bool is_f32 = false;   ///< stored in F32, whatever the others' type is
  bool is_one = false;   ///< a vector drawn around one, such as a norm, others around zero
  bool has_kv_scale = false;
  const SynthFormat* format = nullptr;  ///< nullptr: floats, or whole numbers
  const std::string& name() const { return matrix.name; }
  bool has_weight() const {
    return kind <= ParameterKind::kTwoPatches && kind != ParameterKind::kNorm && !is_f32;
  }
  /// Whether loaders of the model may take it for a linear.
  bool is_linear() const { return has_weight() && kind != ParameterKind::kEmbedding; }
  bool is_gate() const { return is_one_of(".gate_proj", ".w1"); }
  bool is_up() const { return is_one_of(".up_proj", ".w3"); }

 private:
  bool is_one_of(std::string_view a, std::string_view b) const {
    return kind == ParameterKind::kLinear && (name().ends_with(a) || name().ends_with(b));
  }
};

/// A shape with its sizes: what config.json says.
struct SynthModel {
  const SynthShape* shape;
  const SynthPublication* publication;
  const FamilyShapes* family;
  Json config;
  int64_t layers, experts, vocab;
  const Json& text() const { return shape->text != nullptr ? config.at(shape->text) : config; }
};

/// The modules of a model, for what its configs list.
struct SynthListing {
  const SynthModel& model;
  std::vector<SynthModule> modules;  ///< by name, in natural order
};

std::span<const SynthShape> synth_shape_table();
/// The rows of a file each.
std::span<const SynthShape> single_format_shapes();
std::span<const SynthShape> qwen_shapes();
std::span<const SynthShape> latent_attention_shapes();
std::span<const SynthShape> nemotron_shapes();
std::span<const SynthShape> released_shapes();

/// Throws Error on names, counts and combinations that there are not.
SynthModel make_synth_model(const SynthChoice& choice);

/// Calls `f` for every module of the model: those that share a scale together, the others alone.
void for_each_module(const SynthModel& model, const std::function<void(std::span<const SynthModule>)>& f);

/// The linears of the model that no publication of one format quantizes, as globs: "lm_head", "*.mlp.gate";
/// what engines fuse by its names. Each matches something, none anything else.
std::vector<std::string> unquantized_modules(const SynthModel& model);

}  // namespace twofour
