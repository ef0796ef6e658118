#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "formats/families/family_rows.h"
#include "formats/families/sizes.h"
#include "formats/naming.h"
#include "kernels/device/check.h"
#include "lib/base/names/pattern.h"
#include "lib/synth/shapes.h"

// The modules of a model, from the row of its family and its config.

namespace twofour {
namespace {

using enum ParameterKind;

/// A parameter of a shape.
struct Parameter {
  FamilyRow row;       ///< its name has # for numbers
  SynthModule module;  ///< template for layers: # in its name, no sizes
};

std::vector<NamePattern> globs_of(std::string_view text) {
  std::vector<NamePattern> globs;
  for_each_term(text, [&](std::string_view glob) { globs.emplace_back(std::string(glob)); });
  return globs;
}

/// A layer whose modules are generated.
struct Layer {
  int64_t number;  ///< its number in names
  int64_t place;   ///< index in lists of the config; -1 outside of layers
  int64_t asked;   ///< the argument of SynthWhere
  int64_t parts;   ///< number of experts, or of parts of a table
  bool is_table = false;
};

/// Calls a function for each module, layer by layer and in the order of the family's row.
class Walk {
 public:
  Walk(const SynthModel& model, const std::function<void(std::span<const SynthModule>)>& f)
      : model_(model),
        sizes_(*model.family, model.text(), &model.config),
        f_(f),
        f32_(globs_of(model.shape->f32)) {
    for (const SynthFormatRule& rule : model.publication->rules) patterns_.emplace_back(rule.modules);
    if (model.publication->kv_scales != nullptr) kv_scales_.emplace_back(model.publication->kv_scales);
    for (const SynthOption& option : model.shape->options) options_.emplace_back(option.parameters);
  }

  void run() {
    const std::vector<FamilyRow>& rows = sizes_.rows();
    const std::vector<Parameter> own = parameters_of(rows, false);
    const int64_t layers = model_.layers;
    emit(own, {-1, -1, -1, 0});
    for (int64_t i = 0; i < layers; ++i) emit(own, {i, i, i, model_.experts});
    const std::string_view drafts = model_.family->drafts;
    for (int64_t i = 0; !drafts.empty() && i < sizes_.number(drafts).value_or(0); ++i) {
      set_classes(layers + i, "sparse", "full_attention");
      emit(own, {layers + i, layers + i, kDraftLayer, model_.experts});
    }
    for (const FamilyPart& part : model_.family->parts) {
      if (!part.parameters.empty()) run_part(part, rows);
    }
  }

 private:
  void run_part(const FamilyPart& part, std::vector<FamilyRow> rows) {
    const std::vector<Parameter> parameters =
        parameters_of(family_rows({&part.parameters, 1}), part.is_tower);
    const int64_t count = *part.count != '\0' ? sizes_.size(part.count).value_or(0) : 0;
    if (*part.layers == '\0') {
      for (int64_t i = 0; i < model_.layers; ++i) emit(parameters, {i, i, i, count, part.is_table});
      return;
    }
    if (count == 0) return;
    emit(parameters, {-1, -1, -1, 0});
    std::erase_if(rows, [&](const FamilyRow& row) { return !part.repeats_layers || !row.has_layer; });
    for (FamilyRow& row : rows) row.name.replace(0, row.name.find("#.") + 2, part.layers);
    const std::vector<Parameter> repeated = parameters_of(rows, part.is_tower);
    const int64_t first = size(part.first, -1);
    for (int64_t i = first; i < first + count; ++i) {
      Layer layer{i, i, i, model_.experts};
      if (!part.is_tower) {
        layer.place = model_.layers + i;
        layer.asked = kDraftLayer;
        set_classes(layer.place, part.mlp, part.mixer);
      }
      emit(repeated, layer);
      emit(parameters, layer);
    }
  }

  void set_classes(int64_t layer, std::string_view mlp, std::string_view mixer) {
    sizes_.set_class(layer, true, mlp);
    sizes_.set_class(layer, false, mixer);
  }
  int64_t size(std::string_view expression, int64_t layer) const {
    if (expression.empty()) return 0;
    const auto value = sizes_.size(expression, layer);
    check(value.has_value(), "a size of the shape's config");
    return *value;
  }

  std::vector<Parameter> parameters_of(const std::vector<FamilyRow>& rows, bool is_tower) {
    std::vector<Parameter> parameters;
    for (const FamilyRow& row : rows) {
      if (row.is_alias || row.kind == kAny) continue;
      const bool is_vector = row.kind == kNorm || row.kind == kVector;
      SynthModule m{{is_tower ? row.name : name_in_files(row.name), 0, 0, 0}, row.kind, ++count_};
      m.is_f32 =
          row.kind == kMatrix || ((is_vector || row.kind == kConvolution) && any_matches(f32_, row.name));
      m.is_one = is_vector && !m.is_f32 && !row.is_bias && !row.name.ends_with(".sinks");
      if (m.has_weight()) m.matrix.name.resize(m.name().rfind('.'));
      parameters.push_back({row, std::move(m)});
    }
    return parameters;
  }
  std::string name_in_files(const std::string& name) const {
    constexpr std::string_view kModel = "model.";
    if (model_.shape->language_model == nullptr) return name;
    const std::string_view called = model_.shape->language_model;
    if (!called.starts_with(kModel)) return std::string(called).append(name);
    return name.starts_with(kModel) ? std::string(called).append(name, kModel.size()) : name;
  }

  /// True if a layer has a parameter.
  bool has(const Parameter& p, const Layer& layer) const {
    if (!sizes_.holds(p.row.when, layer.place)) return false;
    if (!has_term(p.row.when, "may")) return true;
    if (!p.row.has_layer) return sizes_.number("tie_word_embeddings").value_or(0) == 0;
    for (size_t i = 0; i < options_.size(); ++i) {
      const SynthWhere where = model_.shape->options[i].where;
      if (options_[i].matches(p.row.name)) return where == nullptr || where(layer.asked, model_.layers);
    }
    return false;
  }

  /// Adds the modules of a layer, or the modules outside of layers.
  void emit(const std::vector<Parameter>& parameters, const Layer& layer) {
    std::vector<std::pair<const Parameter*, SynthModule>> parts;
    for (const Parameter& p : parameters) {
      if (p.row.has_layer != (layer.place >= 0) || !has(p, layer)) continue;
      const bool stack = p.row.is_stack() || p.row.kind == kStackVector;
      SynthModule m = p.module;
      m.matrix = {numbered(m.name(), layer.number), stack ? model_.experts : 0, size(p.row.n, layer.place),
                  size(p.row.k, layer.place)};
      if (p.row.has_expert) {
        parts.emplace_back(&p, std::move(m));
      } else {
        add(std::move(m), layer);
      }
    }
    for (int64_t part = 0; part < layer.parts && !parts.empty(); ++part) {
      for (const auto& [p, of] : parts) {
        SynthModule m = of;
        m.matrix.name = numbered(of.matrix.name, part);
        add(std::move(m), layer);
      }
    }
    if (!together_.empty()) f_(together_);
    together_.clear();
  }
  static std::string numbered(const std::string& name, int64_t number) {
    const size_t at = name.find('#');
    return at == name.npos ? name : fmt::format("{}{}{}", name.substr(0, at), number, name.substr(at + 1));
  }

  /// Calls `f_` for a module, or stores the module until all modules that share its scale have been added.
  void add(SynthModule m, const Layer& layer) {
    set_format(m, layer);
    if (layer.is_table) {
      together_.push_back(std::move(m));
      return;
    }
    if (m.is_gate()) {
      gate_.assign(1, std::move(m));
      return;
    }
    if (!m.is_up()) return f_({&m, 1});
    gate_.push_back(std::move(m));
    f_(gate_);
    gate_.clear();
  }
  void set_format(SynthModule& m, const Layer& layer) const {
    if (!m.has_weight() && m.kind != kRowStack && m.kind != kColumnStack) return;
    const SynthPublication& p = *model_.publication;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (!patterns_[i].matches(m.name())) continue;
      if (p.rules[i].where != nullptr && !p.rules[i].where(layer.asked, model_.layers)) continue;
      m.format = p.rules[i].format;
      break;
    }
    m.has_kv_scale = any_matches(kv_scales_, m.name());
  }

  const SynthModel& model_;
  FamilySizes sizes_;
  const std::function<void(std::span<const SynthModule>)>& f_;
  const std::vector<NamePattern> f32_;
  std::vector<NamePattern> patterns_, kv_scales_, options_;
  std::vector<SynthModule> gate_, together_;
  size_t count_ = 0;
};

/// The glob for a module: "*.mlp.gate" for "model.layers.3.mlp.gate", and "lm_head" for "lm_head".
std::string glob_of(const std::string& module) {
  FoldedName folded;
  folded.fold(module);
  const size_t at = folded.text.find("#.");
  return at == folded.text.npos ? module : "*." + folded.text.substr(at + 2);
}

}  // namespace

void for_each_module(const SynthModel& model, const std::function<void(std::span<const SynthModule>)>& f) {
  Walk(model, f).run();
}

std::vector<std::string> unquantized_modules(const SynthModel& model) {
  std::map<size_t, std::vector<std::string>> of_parameters;
  for_each_module(model, [&](std::span<const SynthModule> modules) {
    for (const SynthModule& m : modules) {
      const bool is_plain = m.is_linear() && m.kind != kPatches && m.kind != kTwoPatches;
      if (m.format != nullptr || !is_plain || m.is_gate() || m.is_up()) continue;
      std::vector<std::string>& names = of_parameters[m.parameter];
      // vLLM compares globs with the name of the fused linear, "qkv_proj", and plain names with the names of
      // its parts.
      if (fused_group(m.name()))
        names.push_back(m.name());
      else if (names.empty())
        names.push_back(glob_of(m.name()));
    }
  });
  std::vector<std::string> all;
  for (const bool in_layers : {false, true}) {
    for (const auto& [parameter, names] : of_parameters) {
      const bool is_in_layer = names.size() > 1 || names[0].starts_with('*') || fused_group(names[0]);
      if (is_in_layer == in_layers) all.insert(all.end(), names.begin(), names.end());
    }
  }
  return all;
}

}  // namespace twofour
