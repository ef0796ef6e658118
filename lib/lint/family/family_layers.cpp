#include <fmt/format.h>

#include <set>

#include "lib/lint/family/family_checks.h"

namespace twofour {
namespace {

class LayerLint : public FamilyLint {
 public:
  using FamilyLint::FamilyLint;

  void run() {
    check_count();
    if (model_.family->mlp.of != nullptr) check_classes(true);
    if (model_.family->mixer.of != nullptr) check_classes(false);
  }

 private:
  void check_count() {
    if (there_.layers().empty()) return;
    const auto configured = sizes_.number("num_hidden_layers");
    const int64_t last = there_.layers().back();
    const auto is_draft = [&](int64_t layer) {
      for (size_t i = 0; i < there_.rows().size(); ++i) {
        if (has_term(there_.rows()[i].when, "@draft") && there_.count(i, layer) > 0) return true;
      }
      return false;
    };
    // If numbers begin at 1, another rule reports it.
    int64_t end = last + (there_.layers().front() == 1 && configured && last >= *configured ? 0 : 1);
    while (end > 0 && is_draft(end - 1)) --end;
    const std::string found = configured ? fmt::format("{}", *configured) : "none";
    if (sizes_.stated("num_hidden_layers") == nullptr) {
      if (configured == end) return;
      reporter_.add("odd-setting", {"config.json", "num_hidden_layers"},
                    "expected the count of layers, {}, found none", end);
    } else if (configured && end > *configured) {
      reporter_.add("layers-extra", {"config.json", "num_hidden_layers"},
                    fmt::format("expected {} (tensors of layer {}), found {}", end, end - 1, found),
                    LintFacts{.value = fmt::format("{}", end)});
    } else {
      return;
    }
    sizes_.set("num_hidden_layers", end);
  }

  /// Returns the class whose own tensors are most numerous in a layer. A class's own tensors are those that
  /// no other class of `classes` has.
  std::string class_found(int64_t layer, const std::set<std::string>& classes, size_t& first) const {
    std::string found;
    size_t most = 0;
    for (const std::string& name : classes) {
      size_t rows = 0, tensor = 0;
      for (size_t i = 0; i < there_.rows().size(); ++i) {
        if (!has_term(there_.rows()[i].when, "@" + name) || there_.count(i, layer) == 0) continue;
        if (rows++ == 0) tensor = there_.first(i, layer);
      }
      if (rows <= most) continue;
      most = rows;
      found = name;
      first = tensor;
    }
    return found;
  }
  void check_classes(bool is_mlp) {
    std::set<std::string> classes;
    for (const FamilyRow& row : there_.rows()) {
      for_each_term(row.when, [&](std::string_view term) {
        if (!term.starts_with('@') || term == "@draft") return;
        const bool of_mlp = term == "@dense" || term == "@sparse" || term == "@hash";
        if (of_mlp == is_mlp) classes.emplace(term.substr(1));
      });
    }
    if (classes.size() < 2) return;
    size_t differ = 0;
    std::string message;
    for (const int64_t layer : there_.layers()) {
      if (!is_mlp && layer >= sizes_.number("num_hidden_layers").value_or(0))
        continue;  // a draft has its own kind of mixer
      const std::string wanted(is_mlp ? sizes_.mlp(layer) : sizes_.mixer(layer));
      size_t first = 0;
      const std::string found = class_found(layer, classes, first);
      if (found.empty() || found == wanted || (!classes.contains(wanted) && wanted.empty())) continue;
      sizes_.set_class(layer, is_mlp, found);
      if (differ++ == 0) {
        message = fmt::format("expected {} for layer {}, which has {}, found {}", found, layer,
                              s_.tensors[first].name, wanted);
      }
    }
    if (differ == 0) return;
    if (differ > 1) message += fmt::format("; {} layers differ", differ);
    reporter_.add("layer-kind", {"config.json", (is_mlp ? model_.family->mlp : model_.family->mixer).keys},
                  std::move(message));
  }
};

}  // namespace

void lint_family_layers(FamilySubject& subject, LintReporter& reporter) {
  LayerLint(subject, reporter).run();
}

}  // namespace twofour
