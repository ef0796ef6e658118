#include <fmt/format.h>

#include <algorithm>

#include "formats/families/family_rows.h"
#include "formats/module_names.h"
#include "lib/base/findings/and_more.h"
#include "lib/lint/family/family.h"
#include "lib/source/config/model_config.h"

// One part too many in the names of all tensors: that of a wrapper, or "model." twice.

namespace twofour {
namespace {

/// Modules that wrap others. Sources: torch.compile, torch.distributed.fsdp, activation checkpointing,
/// DataParallel, and peft.
constexpr std::string_view kWrappers[] = {
    "_orig_mod",       "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
    "_forward_module", "base_model",           "module"};

bool is_wrapper(std::string_view part) { return std::ranges::find(kWrappers, part) != std::end(kWrappers); }

}  // namespace

std::string unwrapped(std::string_view name) {
  std::string own;
  const std::vector<std::string_view> parts = name_parts(name);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (is_wrapper(parts[i])) {
      // peft's wrapper has the model in a module of its own.
      if (parts[i] == "base_model" && i + 1 < parts.size() && parts[i + 1] == "model") ++i;
      continue;
    }
    if (!own.empty()) own += '.';
    own += parts[i];
  }
  return own;
}

namespace {

class PrefixLint {
 public:
  PrefixLint(const LintInput& s, const LanguageModel* model) : s_(s) {
    if (model == nullptr) return;
    rows_ = family_rows(model->family->parameters);
    names_.emplace(rows_);
  }

  void run(LintReporter& reporter) {
    size_t wrapped = 0, first = 0;
    for (size_t i = 0; i < s_.tensors.size(); ++i) {
      if (any_part(s_.tensors[i].name, is_wrapper) && wrapped++ == 0) first = i;
    }
    if (wrapped > 0 && 2 * wrapped > s_.tensors.size()) {
      const std::string& name = s_.tensors[first].name;
      const std::string right = unwrapped(name);
      // A model whose own names have such a part has no better name without it.
      if (!names_ || (known_share(unwrapped) > 0.5 && known_share(unwrapped) > known_share(as_is)))
        return report(first, right, reporter);
    }
    if (!names_ || known_share(as_is) > 0.1) return;
    for (size_t parts = 1; parts < 4; ++parts) {
      const auto cut = [parts](std::string_view name) {
        for (size_t i = 0; i < parts && name.find('.') != name.npos; ++i)
          name.remove_prefix(name.find('.') + 1);
        return std::string(name);
      };
      if (known_share(cut) < 0.6) continue;
      const auto at =
          std::ranges::find_if(s_.tensors, [&](const TensorInfo& t) { return is_known(cut(t.name)); });
      return report(static_cast<size_t>(at - s_.tensors.begin()), cut(at->name), reporter);
    }
  }

 private:
  static std::string as_is(std::string_view name) { return std::string(name); }

  bool is_known(const std::string& name) const {
    const std::string own = text_model_name(name);
    if (own.starts_with("model.model.") && own == name) return false;
    FoldedName folded;
    folded.fold(own);
    return folded.numbers[0] >= 0 && !names_->find(folded.text).empty();
  }
  /// Returns the share of tensors in layers that a row of the family has under the changed name.
  double known_share(const auto& change) const {
    constexpr size_t kMost = 4096;
    size_t all = 0, known = 0;
    const size_t step = 1 + s_.tensors.size() / kMost;
    for (size_t i = 0; i < s_.tensors.size(); i += step) {
      const std::string& name = s_.tensors[i].name;
      if (!any_part(name, is_number_part) || leaf_of(name).find("scale") != std::string_view::npos) continue;
      ++all;
      known += is_known(change(name)) ? 1 : 0;
    }
    return all == 0 ? 0 : static_cast<double>(known) / static_cast<double>(all);
  }
  void report(size_t tensor, const std::string& right, LintReporter& reporter) const {
    reporter.add("name-prefix", s_.at(tensor),
                 fmt::format("expected {}, found a name that loaders do not know{}", right,
                             and_more(s_.tensors.size(), ", as all {} others")),
                 LintFacts{.value = right});
  }

  const LintInput& s_;
  std::vector<FamilyRow> rows_;
  std::optional<FamilyNames> names_;
};

}  // namespace

void lint_name_prefix(const LintInput& s, LintReporter& reporter) {
  if (!s.is_directory || !s.config.is_object() || s.tensors.empty() || !s.layout.empty()) return;
  const auto model = find_language_model(s.config);
  PrefixLint(s, model ? &*model : nullptr).run(reporter);
}

}  // namespace twofour
