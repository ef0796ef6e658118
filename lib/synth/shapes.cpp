#include "lib/synth/shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "formats/error.h"
#include "kernels/device/check.h"
#include "lib/synth/synth.h"

namespace twofour {
namespace {

const SynthShape& find_shape(const std::string& name) {
  const auto shapes = synth_shape_table();
  const auto same = [&](const SynthShape& s) { return s.name == name; };
  const auto shape = std::find_if(shapes.begin(), shapes.end(), same);
  if (shape != shapes.end()) return *shape;
  throw Error(
      fmt::format("synth: expected a shape of {}, found '{}'", fmt::join(synth_shapes(), ", "), name));
}

/// Finds the row and the publication of a choice. A shape may have several rows, which have different
/// modules.
std::pair<const SynthShape*, const SynthPublication*> find_publication(const SynthChoice& choice) {
  const SynthShape& first = find_shape(choice.shape);
  for (const SynthShape& shape : synth_shape_table()) {
    if (std::string_view(shape.name) != first.name) continue;
    for (const SynthPublication& p : shape.publications) {
      if (choice.dialect.empty() || choice.dialect == p.dialect) return {&shape, &p};
    }
  }
  throw Error(fmt::format("synth: expected a dialect of {}, found '{}'",
                          fmt::join(synth_dialects(choice.shape), ", "), choice.dialect));
}

/// Replaces members of `base`. Nested objects are patched recursively.
void patch(Json& base, const Json& changes) {
  for (const auto& [key, value] : changes.items()) {
    if (value.is_object()) {
      patch(base[key], value);
    } else {
      base[key] = value;
    }
  }
}

void patch(Json& base, const SynthJson& changes) {
  for (const char* text : changes.texts) {
    if (text != nullptr) patch(base, parse_json("config.json", text));
  }
}

/// The count under a key of the config. 0 if the key is absent.
int64_t count(const Json& config, std::string_view key) {
  return config.contains(key) ? config.at(key).get<int64_t>() : 0;
}

/// The model of a row, before the user's choices.
SynthModel published_model(const SynthShape& shape, const SynthPublication& publication, bool small) {
  SynthModel model{&shape, &publication, nullptr, Json::object(), 0, 0, 0};
  patch(model.config, shape.config);
  if (small) patch(model.config, shape.small);
  if (publication.config != nullptr) patch(model.config, SynthJson(publication.config));
  const Json& text = model.text();
  model.family = find_family_shapes(
      (text.contains("model_type") ? text : model.config).at("model_type").get_ref<const std::string&>());
  check(model.family != nullptr, "a family of the shape's model_type");
  model.layers = count(text, "num_hidden_layers");
  model.experts = count(text, model.family->experts.count);
  return model;
}

void check_range(const char* what, int64_t found, int64_t least, int64_t most) {
  if (found >= least && found <= most) return;
  throw Error(fmt::format("synth: {}: expected {} to {}, found {}", what, least, most, found));
}

}  // namespace

std::span<const SynthShape> synth_shape_table() {
  static const std::vector<SynthShape> all = [] {
    std::vector<SynthShape> rows;
    for (const auto shapes : {single_format_shapes(), qwen_shapes(), latent_attention_shapes(),
                              nemotron_shapes(), released_shapes()})
      rows.insert(rows.end(), shapes.begin(), shapes.end());
    return rows;
  }();
  return all;
}

SynthModel make_synth_model(const SynthChoice& choice) {
  const auto [shape, publication] = find_publication(choice);
  SynthModel model = published_model(*shape, *publication, choice.small);
  if (model.experts == 0 && choice.experts) {
    throw Error(fmt::format("synth: experts: expected none, as {} is a dense model, found {}", shape->name,
                            *choice.experts));
  }
  Json& text = shape->text != nullptr ? model.config[shape->text] : model.config;
  model.layers = choice.layers.value_or(model.layers);
  model.vocab = choice.vocab;
  check_range("layers", model.layers, shape->least_layers, 1000);
  check_range("vocab", model.vocab, 1, 10'000'000);
  text["num_hidden_layers"] = model.layers;
  if (model.experts > 0) {
    model.experts = choice.experts.value_or(model.experts);
    const int64_t top_k = count(text, model.family->experts.per_token);
    if (model.experts < top_k || model.experts > kSynthMostExperts) {
      throw Error(
          fmt::format("synth: experts: expected {} to {}, as the router of {} picks {} a token, found {}",
                      top_k, kSynthMostExperts, shape->name, top_k, model.experts));
    }
    text[model.family->experts.count] = model.experts;
  }
  text["vocab_size"] = model.vocab;
  if (shape->finish != nullptr) shape->finish(text, model.layers);
  return model;
}

int64_t synth_least_experts(const std::string& shape) {
  const SynthShape& row = find_shape(shape);
  const SynthModel model = published_model(row, row.publications[0], false);
  return count(model.text(), model.family->experts.per_token);
}

std::vector<std::string> synth_shapes() {
  std::vector<std::string> names;
  for (const SynthShape& shape : synth_shape_table()) {
    if (std::find(names.begin(), names.end(), shape.name) == names.end()) names.emplace_back(shape.name);
  }
  return names;
}

namespace {

/// The dialects of the shapes that `wanted` accepts, each once.
template <class F>
std::vector<std::string> dialects_of(F wanted) {
  std::vector<std::string> names;
  for (const SynthShape& shape : synth_shape_table()) {
    for (const SynthPublication& p : shape.publications) {
      if (wanted(shape) && std::find(names.begin(), names.end(), p.dialect) == names.end())
        names.emplace_back(p.dialect);
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> synth_dialects() {
  return dialects_of([](const SynthShape&) { return true; });
}

std::vector<std::string> synth_dialects(const std::string& shape) {
  return dialects_of([&](const SynthShape& s) { return s.name == shape; });
}

}  // namespace twofour
