#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/checkpoint/gate_up_order.h"
#include "lib/checkpoint/model_config.h"
#include "lib/lint/config/blame.h"
#include "lib/lint/config/checks.h"
#include "lib/lint/config/family_tensors.h"

namespace twofour {
namespace {

/// Whether a config says enough of a model to be held against its tensors: most configs that people write
/// by hand say next to nothing.
bool describes_model(const Json& config) {
  int said = 0;
  for (const char* key : {"hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"})
    said += config.contains(key) && !config[key].is_null();
  return said >= 2;
}

/// "[N, K]" of sizes, with the expressions that give them: "num_experts x hidden_size".
std::string shape_text(const LogicalShape& s) {
  std::vector<std::string> parts;
  for (const int64_t size : {s.e, s.n, s.k}) {
    if (size >= 0) parts.push_back(fmt::format("{}", size));
  }
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

class FamilyLint {
 public:
  FamilyLint(const LintInput& s, const LanguageModel& model, LintReporter& reporter)
      : s_(s), model_(model), sizes_(*model.family, *model.config), reporter_(reporter) {
    all_ = find_family_tensors(s, model);
    is_own_class_ = is_class_of_family(s.config, model) && has_own_names();
  }

  ModelFacts run() {
    count();
    if (!s_.is_part) {
      check_layer_count();
      check_classes();
      check_switches();
    }
    check_sizes();
    if (!s_.is_part && is_own_class_) {
      check_missing();
      check_unexpected();
    }
    facts_.experts = experts();
    if (const auto tied = sizes_.number("tie_word_embeddings")) facts_.tied = *tied != 0;
    return std::move(facts_);
  }

 private:
  /// Whether layers have the names of an open row: producers may write those of a class in their place.
  bool has_own_names() const {
    if (!model_.family->is_open) return true;
    return std::any_of(all_.tensors.begin(), all_.tensors.end(),
                       [&](const FamilyTensor& t) { return row_of(t).has_layer && !row_of(t).has_expert; });
  }
  const FamilyRow& row_of(const FamilyTensor& t) const { return all_.rows[static_cast<size_t>(t.row)]; }
  int64_t layers() const { return sizes_.number("num_hidden_layers").value_or(0); }
  std::optional<int64_t> experts() const {
    if (*model_.family->experts == '\0') return std::nullopt;
    return sizes_.number(model_.family->experts);
  }
  /// The layers of the model, and of its drafts, that have any tensor.
  std::vector<int64_t> layers_of(const FamilyRow& row) const {
    if (!row.has_layer) return {-1};
    return all_.layers;
  }
  size_t count_in(size_t row, int64_t layer) const {
    const auto at = counts_[row].find(layer);
    return at == counts_[row].end() ? 0 : at->second;
  }

  void count() {
    for (const FamilyRow& row : all_.rows) forms_.push_back(form_of(row));
    counts_.resize(all_.rows.size());
    firsts_.resize(all_.rows.size());
    for (const FamilyTensor& t : all_.tensors) {
      const auto row = static_cast<size_t>(t.row);
      if (++counts_[row][t.layer] == 1) firsts_[row].emplace(t.layer, t.tensor);
    }
  }

  // Layers

  void check_layer_count() {
    if (all_.layers.empty()) return;
    const auto said = sizes_.number("num_hidden_layers");
    const int64_t last = all_.layers.back();
    const auto is_draft = [&](int64_t layer) {
      for (size_t i = 0; i < all_.rows.size(); ++i) {
        if (has_term(all_.rows[i].when, "@draft") && count_in(i, layer) > 0) return true;
      }
      return false;
    };
    int64_t end = last + 1;
    while (end > 0 && is_draft(end - 1)) --end;
    const std::string found = said ? fmt::format("{}", *said) : "none";
    if (sizes_.stated("num_hidden_layers") == nullptr) {
      if (said == end) return;
      reporter_.add("odd-setting", "config.json", "num_hidden_layers",
                    fmt::format("expected the count of layers, {}, found none", end));
    } else if (said && end > *said) {
      reporter_.add("layers-extra", "config.json", "num_hidden_layers",
                    fmt::format("expected {} as tensors of layer {} say, found {}", end, end - 1, found));
    } else {
      return;
    }
    sizes_.set("num_hidden_layers", end);
  }

  /// Which class of `classes` has the most tensors in a layer, of its own alone.
  std::string class_found(int64_t layer, const std::set<std::string>& classes, size_t& first) const {
    std::string found;
    size_t most = 0;
    for (const std::string& name : classes) {
      size_t rows = 0, tensor = 0;
      for (size_t i = 0; i < all_.rows.size(); ++i) {
        if (!has_term(all_.rows[i].when, "@" + name) || count_in(i, layer) == 0) continue;
        if (rows++ == 0) tensor = firsts_[i].at(layer);
      }
      if (rows <= most) continue;
      most = rows;
      found = name;
      first = tensor;
    }
    return found;
  }
  void check_classes() {
    if (model_.family->mlp != nullptr) check_classes_of(true);
    if (model_.family->mixer != nullptr) check_classes_of(false);
  }
  void check_classes_of(bool is_mlp) {
    std::set<std::string> classes;
    for (const FamilyRow& row : all_.rows) {
      for_each_term(row.when, [&](std::string_view term) {
        if (!term.starts_with('@') || term == "@draft") return;
        const bool of_mlp = term == "@dense" || term == "@sparse";
        if (of_mlp == is_mlp) classes.emplace(term.substr(1));
      });
    }
    if (classes.size() < 2) return;
    size_t differ = 0;
    std::string message;
    for (const int64_t layer : all_.layers) {
      if (!is_mlp && layer >= layers()) continue;  // drafts have a mixer of their own
      const std::string wanted(is_mlp ? sizes_.mlp(layer) : sizes_.mixer(layer));
      size_t first = 0;
      const std::string found = class_found(layer, classes, first);
      if (found.empty() || found == wanted || (!classes.contains(wanted) && wanted.empty())) continue;
      sizes_.set_class(layer, is_mlp, found);
      if (differ++ == 0) {
        message = fmt::format("expected to say {} of layer {}, which has {}, found {}", found, layer,
                              s_.tensors[first].name, wanted);
      }
    }
    if (differ == 0) return;
    if (differ > 1) message += fmt::format("; {} layers differ", differ);
    reporter_.add("layer-kind", "config.json", is_mlp ? model_.family->mlp_keys : model_.family->mixer_keys,
                  std::move(message));
  }

  // Switches: keys on which it depends whether a tensor is there at all

  void check_switches() {
    std::set<std::string> keys;
    for (const FamilyRow& row : all_.rows) {
      for_each_term(row.when, [&](std::string_view term) {
        if (term.starts_with('!')) term = term.substr(1);
        if (!term.starts_with('@') && term != "may" && term.find('=') == term.npos) keys.emplace(term);
      });
    }
    for (const std::string& key : keys) check_switch(key);
  }
  void check_switch(const std::string& key) {
    if (sizes_.is_list(key)) return;
    const bool on = sizes_.number(key).value_or(0) != 0;
    size_t there = 0, lacking = 0;
    std::optional<size_t> first;
    std::string lacks;
    for (size_t i = 0; i < all_.rows.size(); ++i) {
      const FamilyRow& row = all_.rows[i];
      if (!has_term(row.when, key) || has_term(row.when, "may") ||
          (row.kind == ParameterKind::kLinear && !s_.layout.empty()))
        continue;
      std::string others;
      for_each_term(row.when, [&](std::string_view term) {
        if (term != key) others += (others.empty() ? "" : " ") + std::string(term);
      });
      for (const int64_t layer : layers_of(row)) {
        if (!sizes_.holds(others, layer) || is_replaced(i, layer)) continue;
        if (count_in(i, layer) == 0) {
          if (lacking++ == 0) lacks = name_of(row, layer);
        } else if (there++ == 0) {
          first = firsts_[i].at(layer);
        }
      }
    }
    if (on ? there > 0 || lacking == 0 : there == 0 || lacking > there) return;
    const Json* said = sizes_.stated(key);
    const std::string found =
        said == nullptr ? fmt::format("none, which says {}", on ? "yes" : "no") : quoted_setting(*said);
    sizes_.set(key, on ? 0 : 1);
    if (!is_own_class_) return;
    blamed_.insert(key);
    const bool is_count =
        sizes_.stated(key) != nullptr ? !sizes_.stated(key)->is_boolean() : !is_yes_or_no(key);
    reporter_.add("config-switch", "config.json", key,
                  on ? fmt::format("expected {} as there is no {}, found {}",
                                   is_count ? "0 or null" : "false", lacks, found)
                     : fmt::format("expected {} as there is {}, found {}", is_count ? "a count" : "true",
                                   s_.tensors[*first].name, found));
  }
  static bool is_yes_or_no(const std::string& key) {
    return key.find("bias") != key.npos || key.starts_with("use_") || key.starts_with("enable_");
  }

  /// How the files of a layer hold what can be held in several ways: experts in stacks, apart under one set
  /// of names or another; a router under one name or another. Empty for what has one way.
  static std::string form_of(const FamilyRow& row) {
    if (row.kind == ParameterKind::kRouter) return "router " + std::string(row.n);
    if (row.name.ends_with("e_score_correction_bias")) return "router bias";
    if (!row.is_expert_form()) return {};
    if (!row.has_expert) return "stacks";
    const std::string path = row.name.substr(0, row.name.rfind('#'));
    return path + (row.name[path.size() + 2] == 'w' ? "w" : "proj");
  }
  /// Whether a row is not missing, as the layer has the same in another way.
  bool is_replaced(size_t row, int64_t layer) const {
    const std::string& form = forms_[row];
    const bool of_router = form.starts_with("router ");
    if (form.empty() || count_in(row, layer) > 0) return false;
    std::string first;  // the way that the family's files have
    for (size_t i = 0; i < all_.rows.size(); ++i) {
      const std::string& other = forms_[i];
      if (other.empty() || (other.starts_with("router ") || of_router) != (other == form)) continue;
      if (first.empty() && !has_term(all_.rows[i].when, "may")) first = other;
      if (i == row || count_in(i, layer) == 0) continue;
      if (of_router || other != form) return !any_in(form, row, layer);
    }
    return !of_router && !any_in(form, row, layer) && form != first;
  }
  /// Whether a layer has something in a form; of routers every row is a way of its own.
  bool any_in(const std::string& form, size_t row, int64_t layer) const {
    if (form.starts_with("router ")) return count_in(row, layer) > 0;
    for (size_t i = 0; i < all_.rows.size(); ++i) {
      if (forms_[i] == form && count_in(i, layer) > 0) return true;
    }
    return false;
  }

  // Sizes

  struct Expected {
    std::optional<int64_t> e, n, k;
  };
  Expected expected(const FamilyRow& row, int64_t layer) const {
    Expected x;
    if (row.kind >= ParameterKind::kRowStack && row.kind != ParameterKind::kAny) x.e = experts();
    x.n = sizes_.size(row.n, layer);
    if (!row.k.empty()) x.k = sizes_.size(row.k, layer);
    return x;
  }
  bool depends_on_layer(const FamilyRow& row) const {
    bool depends = false;
    for (const std::string_view expression : {row.n, row.k}) {
      if (expression.empty()) continue;
      for (const std::string& key : sizes_.keys(expression)) depends = depends || sizes_.is_list(key);
    }
    return depends;
  }

  /// A class of models that nobody has heard of may have other parameters than its model_type's.
  static bool agrees(const FamilyRow& row, const LogicalShape& s, const Expected& x) {
    const auto same = [](std::optional<int64_t> a, int64_t b) { return !a || *a == b; };
    if (!same(x.e, s.e)) return false;
    if (same(x.n, s.n) && same(x.k, s.k)) return true;
    // Stacks that a quantizer made may lie in either way.
    return row.is_stack() && has_term(row.when, "may") && same(x.n, s.k) && same(x.k, s.n);
  }

  void check_sizes() {
    depends_on_layer_.resize(all_.rows.size());
    for (size_t i = 0; i < all_.rows.size(); ++i) depends_on_layer_[i] = depends_on_layer(all_.rows[i]);
    SizeVotes votes;
    std::map<std::pair<int32_t, int32_t>, int64_t> most_experts;
    for (const FamilyTensor& t : all_.tensors) {
      const FamilyRow& row = row_of(t);
      if (row.has_expert) {
        int64_t& most = most_experts[{t.row, t.layer}];
        most = std::max<int64_t>(most, t.expert + 1);
      }
      if (!t.shape || depends_on_layer_[static_cast<size_t>(t.row)]) continue;
      const bool either = row.is_stack() && has_term(row.when, "may");
      if (either && agrees(row, *t.shape, expected(row, t.layer))) continue;
      if (t.shape->e >= 0 && *model_.family->experts != '\0')
        votes.add(model_.family->experts, t.shape->e, t.tensor);
      votes.add(row.n, t.shape->n, t.tensor);
      if (!row.k.empty()) votes.add(row.k, t.shape->k, t.tensor);
    }
    if (!s_.is_part && !s_.lacks_files && *model_.family->experts != '\0') {
      for (const auto& [place, count] : most_experts) {
        const auto row = static_cast<size_t>(place.first);
        votes.add(model_.family->experts, count, firsts_[row].at(place.second));
      }
    }
    for (const WrongKey& w : find_wrong_keys(votes, sizes_)) report_key(w);
    report_odd_tensors();
  }

  void report_key(const WrongKey& w) {
    if (!blamed_.insert(w.key).second) return;
    const Json* said = sizes_.stated(w.key);
    std::string found = said != nullptr ? quoted_setting(*said)
                        : w.said        ? fmt::format("none, for which {} has {}", model_.model_type, *w.said)
                                        : "none";
    const TensorInfo& first = s_.tensors[w.first];
    std::string more = w.tensors > 1 ? fmt::format(" and {} more", w.tensors - 1) : "";
    // What is not this key alone: the rest of the product.
    const std::string by = w.expression == w.key ? "" : fmt::format(" ({})", w.expression);
    const bool is_vocab = w.key == "vocab_size";
    if (is_vocab && w.said && w.found > *w.said && w.found % 64 == 0 && w.found - *w.said < 1024) {
      reporter_.add("padded-vocabulary", "config.json", w.key,
                    fmt::format("expected {} as {}{} has {}, found {}", w.found, first.name, more,
                                describe(first.dtype, first.shape), found));
      return;
    }
    reporter_.add("config-shape", "config.json", w.key,
                  fmt::format("expected {} as {}{} has {}{}, found {}", w.found, first.name, more,
                              describe(first.dtype, first.shape), by, found));
  }

  /// Whether another rule says what is wrong: an expert differs from its siblings, a weight is stored twice,
  /// a stack may be read in two ways.
  bool is_reported_elsewhere(const FamilyTensor& t, const FamilyRow& row) {
    const std::string& name = s_.tensors[t.tensor].name;
    constexpr std::string_view kPacked = "_packed";
    if (name.ends_with(kPacked) && s_.find(name.substr(0, name.size() - kPacked.size()))) return true;
    if (row.is_stack() || row.kind == ParameterKind::kStackVector) {
      if (!uncertain_) {
        uncertain_.emplace();
        for (const UncertainStack& stack : find_uncertain_stacks(s_.config, s_.tensors))
          uncertain_->insert(stack.tensor);
      }
      return uncertain_->contains(t.tensor);
    }
    if (!row.has_expert) return false;
    const auto& [all, agree] = alike_[{t.row, t.layer}];
    return agree > 0 && agree < all;
  }

  /// Tensors that do not agree with what most others say.
  void report_odd_tensors() {
    struct Odd {
      size_t first, count = 0;
      std::string expected;
    };
    std::map<std::tuple<int32_t, int64_t, int64_t, int64_t, int32_t>, Odd> odd;
    std::vector<std::optional<Expected>> cache(all_.rows.size());
    for (const FamilyTensor& t : all_.tensors) {
      const FamilyRow& row = row_of(t);
      if (!row.has_expert) continue;
      auto& cached = cache[static_cast<size_t>(t.row)];
      if (!cached || depends_on_layer_[static_cast<size_t>(t.row)]) cached = expected(row, t.layer);
      auto& [all, agree] = alike_[{t.row, t.layer}];
      ++all;
      agree += t.shape && agrees(row, *t.shape, *cached) ? 1 : 0;
    }
    for (const FamilyTensor& t : all_.tensors) {
      const FamilyRow& row = row_of(t);
      if (!t.shape) {
        report_rank(t, row);
        continue;
      }
      auto& cached = cache[static_cast<size_t>(t.row)];
      const bool by_layer = depends_on_layer_[static_cast<size_t>(t.row)];
      if (!cached || by_layer) cached = expected(row, t.layer);
      if (agrees(row, *t.shape, *cached) || is_reported_elsewhere(t, row)) continue;
      facts_.reported.insert(t.tensor);
      auto& o = odd[{t.row, t.shape->e, t.shape->n, t.shape->k, row.has_expert ? -1 : t.layer}];
      if (o.count++ > 0) continue;
      o.first = t.tensor;
      const LogicalShape wanted{cached->e.value_or(t.shape->e), cached->n.value_or(t.shape->n),
                                row.k.empty() ? -1 : cached->k.value_or(t.shape->k)};
      o.expected = fmt::format("{} ({}{}{} of config.json), found {}", shape_text(wanted), row.n,
                               row.k.empty() ? "" : " x ", row.k, shape_text(*t.shape));
    }
    for (const auto& [key, o] : odd) {
      reporter_.add("config-shape", s_.file_of(o.first), s_.tensors[o.first].name,
                    fmt::format("expected {}{}", o.expected,
                                o.count > 1 ? fmt::format(", and in {} more", o.count - 1) : ""));
    }
  }
  void report_rank(const FamilyTensor& t, const FamilyRow& row) {
    const TensorInfo& info = s_.tensors[t.tensor];
    if (row.kind == ParameterKind::kAny || is_reported_elsewhere(t, row) || !s_.layout.empty() ||
        info.name.ends_with(".qweight"))
      return;
    const Expected x = expected(row, t.layer);
    if (!x.n || (!row.k.empty() && !x.k)) return;
    facts_.reported.insert(t.tensor);
    const LogicalShape wanted{x.e.value_or(-1), *x.n, row.k.empty() ? -1 : *x.k};
    reporter_.add("config-shape", s_.file_of(t.tensor), info.name,
                  fmt::format("expected {} ({}{}{} of config.json), found {}", shape_text(wanted), row.n,
                              row.k.empty() ? "" : " x ", row.k, describe(info.dtype, info.shape)));
  }

  // Tensors that are missing or too many

  std::string name_of(const FamilyRow& row, int64_t layer) const {
    std::string name = row.name;
    if (const size_t at = name.find('#'); at != name.npos && layer >= 0)
      name.replace(at, 1, fmt::format("{}", layer));
    return name;
  }

  void check_missing() {
    for (size_t i = 0; i < all_.rows.size(); ++i) {
      const FamilyRow& row = all_.rows[i];
      if (has_term(row.when, "may") || row.kind == ParameterKind::kAny || !states_sizes(row)) continue;
      // An artifact has linears in parts of its own.
      if (!s_.layout.empty() && (row.kind == ParameterKind::kLinear || row.is_expert_form())) continue;
      size_t missing = 0, wanted = 0;
      std::string first;
      for (const int64_t layer : layers_of(row)) {
        if (!sizes_.holds(row.when, layer) || is_replaced(i, layer)) continue;
        ++wanted;
        if (count_in(i, layer) > 0 || has_scale_alone(row, layer)) continue;
        if (missing++ == 0) first = name_of(row, layer);
      }
      if (missing == 0) continue;
      facts_.embedding_reported = facts_.embedding_reported || row.kind == ParameterKind::kEmbedding;
      std::string more =
          row.has_layer && wanted > 1 ? fmt::format(", in {} of {} layers", missing, wanted) : "";
      reporter_.add("tensor-missing", "", first,
                    fmt::format("expected {}as every model of {} has, found none{}", shape_phrase(row),
                                model_.model_type, more));
    }
  }
  /// Whether codes are missing beside a global scale, which is reported with the module.
  bool has_scale_alone(const FamilyRow& row, int64_t layer) const {
    if (row.kind > ParameterKind::kEmbedding || row.has_expert) return false;
    const std::string name = name_of(row, layer), module = name.substr(0, name.rfind('.'));
    return std::any_of(nvfp4_dialects().begin(), nvfp4_dialects().end(),
                       [&](const Nvfp4Dialect& d) { return s_.find(module + d.global_scale).has_value(); });
  }
  /// Whether the config itself has all sizes of a row: what it says nothing of, it does not demand.
  bool states_sizes(const FamilyRow& row) const {
    bool all = true;
    for (const std::string_view expression : {row.n, row.k}) {
      if (expression.empty()) continue;
      for (const std::string& key : sizes_.keys(expression)) all = all && sizes_.stated(key) != nullptr;
    }
    return all;
  }
  std::string shape_phrase(const FamilyRow& row) const {
    const Expected x = expected(row, all_.layers.empty() ? 0 : all_.layers.front());
    if (!x.n || (!row.k.empty() && !x.k)) return "";
    return shape_text({x.e.value_or(-1), *x.n, row.k.empty() ? -1 : *x.k}) + " ";
  }

  void check_unexpected() {
    for (size_t i = 0; i < all_.rows.size(); ++i) {
      const FamilyRow& row = all_.rows[i];
      size_t count = 0, first = 0;
      int64_t layer = -1;
      for (const auto& [at, tensors] : counts_[i]) {
        if (sizes_.holds(row.when, at)) continue;
        if (count == 0) {
          first = firsts_[i].at(at);
          layer = at;
        }
        count += tensors;
      }
      if (count == 0) continue;
      reporter_.add("tensor-unknown", s_.file_of(first), s_.tensors[first].name,
                    fmt::format("expected none{}{} by config.json ({}), found {}",
                                layer >= 0 ? fmt::format(" in layer {}", layer) : "",
                                count > 1 ? fmt::format(", nor {} more", count - 1) : "", row.when,
                                describe(s_.tensors[first].dtype, s_.tensors[first].shape)));
    }
    if (model_.family->is_open || model_.is_nested) return check_unknown_in_layers();
    for (const UnknownTensors& u : all_.unknown) report_unknown(u);
  }
  /// Of models with further parts, what is beside known modules of a layer.
  void check_unknown_in_layers() {
    if (model_.family->is_open) return;
    for (const UnknownTensors& u : all_.unknown) {
      if (u.name.starts_with("model.layers.#.")) report_unknown(u);
    }
  }
  void report_unknown(const UnknownTensors& u) {
    const TensorInfo& t = s_.tensors[u.first];
    if (t.name.ends_with("_proj_bias")) return;  // reported with its stack
    reporter_.add("tensor-unknown", s_.file_of(u.first), t.name,
                  fmt::format("expected a name that models of {} have, found {}{}", model_.model_type,
                              describe(t.dtype, t.shape),
                              u.count > 1 ? fmt::format(", and {} more like it", u.count - 1) : ""));
  }

  const LintInput& s_;
  const LanguageModel& model_;
  FamilySizes sizes_;
  LintReporter& reporter_;
  FamilyTensors all_;
  bool is_own_class_ = true;
  std::vector<std::map<int64_t, size_t>> counts_, firsts_;  ///< of each row by layer: tensors, the first
  std::vector<std::string> forms_;                          ///< of each row
  std::vector<bool> depends_on_layer_;  ///< of each row: sizes that the config lists layer by layer
  std::set<std::string> blamed_;
  std::optional<std::set<size_t>>
      uncertain_;  ///< stacks of rows of gate and up in an order that is not known
  std::map<std::pair<int32_t, int32_t>, std::pair<size_t, size_t>> alike_;  ///< experts, those that agree
  ModelFacts facts_;
};

}  // namespace

ModelFacts lint_family(const LintInput& s, LintReporter& reporter) {
  if (!s.is_directory || !s.config.is_object() || s.tensors.empty()) return {};
  const auto model = find_language_model(s.config);
  if (!model || !describes_model(*model->config)) return {};
  ModelFacts facts = FamilyLint(s, *model, reporter).run();
  facts.family = model->family;
  facts.is_held = !model->family->is_open && is_class_of_family(s.config, *model);
  return facts;
}

}  // namespace twofour
