#include <fmt/format.h>

#include <algorithm>

#include "formats/json/access.h"
#include "formats/module_names.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/names/natural.h"
#include "lib/lint/family/family_checks.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

/// True if a config states enough about its model for a comparison with the tensors. Most hand-written
/// configs state next to nothing.
bool describes_model(const Json& config) {
  int configured = 0;
  for (const char* key : {"hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"})
    configured += config.contains(key) && !config[key].is_null();
  return configured >= 2;
}

/// Reports tensors that are missing, and tensors that the family does not have.
class PresenceLint : public FamilyLint {
 public:
  using FamilyLint::FamilyLint;

  void run() {
    check_missing();
    check_unexpected();
  }

  void check_missing() {
    for (size_t i = 0; i < there_.rows().size(); ++i) {
      const FamilyRow& row = there_.rows()[i];
      if (has_term(row.when, "may") || row.is_alias || row.kind == ParameterKind::kAny ||
          !states_sizes(row) || there_.is_second_name(i))
        continue;
      // An artifact stores the parts of linears under other names.
      if (!s_.layout.empty() && (row.kind == ParameterKind::kLinear || row.is_expert_form())) continue;
      size_t missing = 0, wanted = 0;
      std::string first;
      for (const int64_t layer : there_.layers_of(row)) {
        if (!sizes_.holds(row.when, layer) || there_.is_replaced(i, layer)) continue;
        ++wanted;
        if (there_.count(i, layer) > 0 || has_scale_alone(row, layer)) continue;
        if (missing++ == 0) first = there_.name_in_layer(row, layer);
      }
      if (missing == 0) continue;
      x_.facts.embedding_reported = x_.facts.embedding_reported || row.kind == ParameterKind::kEmbedding;
      std::string more =
          row.has_layer && wanted > 1 ? fmt::format(", in {} of {} layers", missing, wanted) : "";
      reporter_.add("tensor-missing", {"", first},
                    fmt::format("expected {}as every model of {} has, found {}{}", shape_phrase(row),
                                model_.model_type, fused_with(first), more),
                    facts_of(row));
    }
  }
  /// Returns "none", or the linear that holds rows of a tensor together with those of others.
  std::string fused_with(const std::string& tensor) const {
    const std::string_view module = module_of(tensor), leaf = leaf_of(module);
    const bool of_qkv = leaf == "q_proj" || leaf == "k_proj" || leaf == "v_proj";
    const bool of_pair = leaf == "gate_proj" || leaf == "up_proj";
    for (const char* fused : {"qkv_proj", "qkv", "query_key_value", "W_pack", "gate_up_proj"}) {
      if (!(std::string_view(fused) == "gate_up_proj" ? of_pair : of_qkv)) continue;
      const std::string name = fmt::format("{}.{}", parent_of(module), fused);
      const auto at = std::ranges::lower_bound(s_.tensors, name + ".", {}, &TensorInfo::name);
      if (at != s_.tensors.end() && at->name.starts_with(name + "."))
        return fmt::format("it in {}, which loaders of {} do not split", name, model_.model_type);
    }
    return "none";
  }
  /// Returns the key that decides whether a layer has a row. If the key contradicts another, that is the
  /// cause.
  LintFacts facts_of(const FamilyRow& row) const {
    LintFacts facts;
    for_each_term(row.when, [&](std::string_view term) {
      if (!term.starts_with('@') && !term.starts_with("!@")) return;
      const bool of_mlp = term.ends_with("dense") || term.ends_with("sparse") || term.ends_with("hash");
      std::string_view keys = (of_mlp ? model_.family->mlp : model_.family->mixer).keys;
      while (!keys.empty()) {
        const size_t end = std::min(keys.find(", "), keys.size());
        const std::string_view key = keys.substr(0, end);
        if (sizes_.stated(key) != nullptr) facts = {std::string(key), row.name, "impossible-setting"};
        keys.remove_prefix(std::min(end + 2, keys.size()));
      }
    });
    return facts;
  }

 private:
  /// True if only a global scale is there and the codes are missing. That is reported with the module.
  bool has_scale_alone(const FamilyRow& row, int64_t layer) const {
    if (row.kind > ParameterKind::kEmbedding || row.has_expert) return false;
    const std::string name = there_.name_in_layer(row, layer);
    const std::string module(module_of(name));
    return std::any_of(nvfp4_dialects().begin(), nvfp4_dialects().end(),
                       [&](const Nvfp4Dialect& d) { return s_.find(module + d.global_scale).has_value(); });
  }
  /// True if the config states all sizes of a row by itself. If not, a missing row is no fault.
  bool states_sizes(const FamilyRow& row) const {
    bool all = true;
    for (const std::string_view expression : {row.n, row.k}) {
      if (expression.empty()) continue;
      for (const std::string& key : sizes_.keys(expression)) all = all && sizes_.stated(key) != nullptr;
    }
    return all;
  }
  std::string shape_phrase(const FamilyRow& row) const {
    const ExpectedShape x = expected_shape(x_, row, there_.layers().empty() ? 0 : there_.layers().front());
    return x.is_known(row) ? x.text(row) + " " : "";
  }

  void check_unexpected() {
    for (size_t i = 0; i < there_.rows().size(); ++i) {
      const FamilyRow& row = there_.rows()[i];
      size_t count = 0, first = 0;
      int64_t layer = -1;
      if (is_of_quantizers(row) && !there_.counts(i).empty()) {
        const auto& [at, tensors] = *there_.counts(i).begin();
        const TensorInfo& t = s_.tensors[there_.first(i, at)];
        reporter_.add(
            "tensor-unknown", s_.at(there_.first(i, at)),
            "expected a name that loaders of {} read in floats, found {}, which only quantizers write",
            model_.model_type, describe(t));
        continue;
      }
      for (const auto& [at, tensors] : there_.counts(i)) {
        if (sizes_.holds(row.when, at) || is_zero_bias(s_, there_.first(i, at))) continue;
        if (count == 0) {
          first = there_.first(i, at);
          layer = at;
        }
        count += tensors;
      }
      if (count == 0) continue;
      reporter_.add("tensor-unknown", s_.at(first),
                    fmt::format("expected none{}{} (config.json: {}), found {}",
                                layer >= 0 ? fmt::format(" in layer {}", layer) : "",
                                and_more(count, ", nor {} more"), row.when, describe(s_.tensors[first])),
                    facts_of(row));
    }
    if (model_.family->is_open || model_.is_nested) return check_unknown_in_layers();
    for (const UnknownTensors& u : there_.unknown()) report_unknown(u);
  }
  /// True for names of experts that quantizers give to linears which are stored otherwise in floats.
  bool is_of_quantizers(const FamilyRow& row) const {
    return row.is_alias && row.has_expert && !model_.family->is_open && s_.quantization.is_null() &&
           s_.layout.empty();
  }
  /// Reports unknown tensors beside known modules of a layer. This is for models that have further parts
  /// elsewhere.
  void check_unknown_in_layers() {
    if (model_.family->is_open) return;
    for (const UnknownTensors& u : there_.unknown()) {
      if (u.name.starts_with("model.layers.#.")) report_unknown(u);
    }
  }
  /// True if all biases of one name are zero.
  bool are_zero_biases(size_t first) const {
    const std::string name = split_numbers(s_.tensors[first].name).name_template;
    for (size_t i = first; i < s_.tensors.size(); ++i) {
      if (s_.tensors[i].name.ends_with(".bias") && split_numbers(s_.tensors[i].name).name_template == name &&
          !is_zero_bias(s_, i))
        return false;
    }
    return true;
  }
  void report_unknown(const UnknownTensors& u) {
    const TensorInfo& t = s_.tensors[u.first];
    if (t.name.ends_with("_proj_bias")) return;  // it is reported with its stack
    if (is_zero_bias(s_, u.first) && are_zero_biases(u.first)) return;
    reporter_.add("tensor-unknown", s_.at(u.first), "expected a name that models of {} have, found {}{}",
                  model_.model_type, describe(t), and_more(u.count, ", and {} more like it"));
  }
};

/// Reports names of a multimodal model if the config is that of a text-only model.
void check_prefix(const LintInput& s, const LanguageModel& model, LintReporter& reporter) {
  const std::vector<std::string> classes = strings_of(s.config, "architectures");
  const bool text_alone = std::any_of(classes.begin(), classes.end(),
                                      [](const std::string& name) { return name.ends_with("ForCausalLM"); });
  if (model.is_nested || !text_alone) return;
  const auto odd = std::find_if(s.tensors.begin(), s.tensors.end(), [](const TensorInfo& t) {
    return t.name.starts_with("language_model.") || t.name.starts_with("model.language_model.");
  });
  if (odd == s.tensors.end()) return;
  const auto tensor = static_cast<size_t>(odd - s.tensors.begin());
  reporter.add("tensor-unknown", s.at(tensor, odd->name),
               "expected a name without language_model. (as in {}), found one of a multimodal model",
               classes[0]);
}

}  // namespace

std::optional<int64_t> FamilySubject::experts() const {
  if (*model.family->experts.count == '\0') return std::nullopt;
  return sizes.number(model.family->experts.count);
}

void lint_missing_tensors(FamilySubject& subject, LintReporter& reporter) {
  PresenceLint(subject, reporter).check_missing();
}

ModelFacts lint_family(const LintInput& s, LintReporter& reporter) {
  if (!s.is_directory || !s.config.is_object() || s.tensors.empty()) return {};
  const auto model = find_language_model(s.config);
  if (!model || !describes_model(*model->config)) return {};
  const FamilyPresence there(find_family_tensors(s, *model), *model);
  FamilySubject x{.input = s,
                  .model = *model,
                  .there = there,
                  .is_own_class = is_class_of_family(s.config, *model) && there.has_own_names(),
                  .sizes = FamilySizes(*model->family, *model->config)};
  if (!s.is_part) {
    lint_family_layers(x, reporter);
    lint_family_switches(x, reporter);
  }
  lint_family_sizes(x, reporter);
  if (!s.is_part && x.is_own_class) PresenceLint(x, reporter).run();
  if (!s.is_part) check_prefix(s, *model, reporter);
  lint_family_parts(x, reporter);
  x.facts.experts = x.experts();
  if (const auto tied = x.sizes.number("tie_word_embeddings")) x.facts.tied = *tied != 0;
  x.facts.family = model->family;
  x.facts.is_held = !model->family->is_open && is_class_of_family(s.config, *model);
  return std::move(x.facts);
}

}  // namespace twofour
