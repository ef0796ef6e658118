#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "lib/base/findings/and_more.h"
#include "lib/lint/family/family_checks.h"
#include "lib/lint/family/size_votes.h"
#include "lib/source/config/model_config.h"
#include "lib/source/linears/expert_stacks.h"

namespace twofour {
namespace {

class SizeLint : public FamilyLint {
 public:
  using FamilyLint::FamilyLint;

  void run() {
    depends_on_layer_.resize(there_.rows().size());
    for (size_t i = 0; i < there_.rows().size(); ++i)
      depends_on_layer_[i] = depends_on_layer(there_.rows()[i]);
    SizeVotes votes;
    std::map<std::pair<int32_t, int32_t>, int64_t> most_experts;
    for (const FamilyTensor& t : there_.tensors()) {
      const FamilyRow& row = there_.row_of(t);
      if (row.has_expert) {
        int64_t& most = most_experts[{t.row, t.layer}];
        most = std::max<int64_t>(most, t.expert + 1);
      }
      if (!t.shape || depends_on_layer_[static_cast<size_t>(t.row)]) continue;
      const bool either = row.is_stack() && has_term(row.when, "may");
      if (either && agrees(row, *t.shape, expected_shape(x_, row, t.layer))) continue;
      if (t.shape->e >= 0 && *model_.family->experts.count != '\0')
        votes.add(model_.family->experts.count, t.shape->e, t.tensor);
      votes.add(row.n, t.shape->n, t.tensor);
      if (!row.k.empty()) votes.add(row.k, t.shape->k, t.tensor);
    }
    if (!s_.is_part && !s_.lacks_files && *model_.family->experts.count != '\0') {
      for (const auto& [place, count] : most_experts) {
        const auto row = static_cast<size_t>(place.first);
        // Another rule reports gaps in the numbers.
        if (static_cast<int64_t>(there_.count(row, place.second)) < count) continue;
        votes.add(model_.family->experts.count, count, there_.first(row, place.second));
      }
    }
    for (const WrongKey& w : find_wrong_keys(votes, sizes_)) report_key(w);
    report_odd_tensors();
  }

 private:
  bool depends_on_layer(const FamilyRow& row) const {
    bool depends = false;
    for (const std::string_view expression : {row.n, row.k}) {
      if (expression.empty()) continue;
      for (const std::string& key : sizes_.keys(expression)) depends = depends || sizes_.is_list(key);
    }
    return depends;
  }

  /// True if a stored shape agrees with the expected shape.
  static bool agrees(const FamilyRow& row, const LogicalShape& s, const ExpectedShape& x) {
    const auto same = [](std::optional<int64_t> a, int64_t b) { return !a || *a == b; };
    if (!same(x.e, s.e)) return false;
    if (same(x.n, s.n) && same(x.k, s.k)) return true;
    // A quantizer may store a stack as [E, N, K] or as [E, K, N].
    return row.is_stack() && has_term(row.when, "may") && same(x.n, s.k) && same(x.k, s.n);
  }

  void report_key(const WrongKey& w) {
    if (!x_.blamed.insert(w.key).second) return;
    const Json* configured = sizes_.stated(w.key);
    // The model has lost what the key counts, and only its draft has it.
    if (x_.is_draft && w.configured.value_or(0) == 0) return;
    std::string found = configured != nullptr ? quoted_setting(*configured)
                        : w.configured
                            ? fmt::format("none, while {} has {}", model_.model_type, *w.configured)
                            : "none";
    const TensorInfo& first = s_.tensors[w.first];
    std::string more = and_more(w.tensors, " and {} more");
    // The expression is shown if it has other factors than the key.
    const std::string by = w.expression == w.key ? "" : fmt::format(" ({})", w.expression);
    const bool is_vocab = w.key == "vocab_size";
    if (is_vocab && w.configured && w.found > *w.configured && w.found % 64 == 0 &&
        w.found - *w.configured < 1024) {
      reporter_.add("padded-vocabulary", {"config.json", w.key},
                    fmt::format("expected {} as {}{} has {}, found {}", w.found, first.name, more,
                                describe(first), found),
                    LintFacts{.value = fmt::format("{}", w.found)});
      return;
    }
    std::string others;
    for (const auto& [key, value] : w.others) others += fmt::format(", or {} of {}", key, value);
    reporter_.add("config-shape", {"config.json", w.key},
                  fmt::format("expected {}{} as {}{} has {}{}, found {}", w.found, others, first.name, more,
                              describe(first), by, found),
                  LintFacts{.value = others.empty() ? fmt::format("{}", w.found) : ""});
  }

  /// True if another rule reports the fault: an expert differs from its siblings, a weight is stored twice,
  /// or a stack can be read in two ways.
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

  /// Reports tensors whose sizes disagree with those of most others.
  void report_odd_tensors() {
    struct Odd {
      size_t first, count = 0;
      std::string expected{};
      int64_t numbers = 0;  ///< expected numbers in a tensor
    };
    std::map<std::tuple<int32_t, int64_t, int64_t, int64_t, int32_t>, Odd> odd;
    std::vector<std::optional<ExpectedShape>> cache(there_.rows().size());
    for (const FamilyTensor& t : there_.tensors()) {
      const FamilyRow& row = there_.row_of(t);
      if (!row.has_expert) continue;
      auto& cached = cache[static_cast<size_t>(t.row)];
      if (!cached || depends_on_layer_[static_cast<size_t>(t.row)]) cached = expected_shape(x_, row, t.layer);
      auto& [all, agree] = alike_[{t.row, t.layer}];
      ++all;
      agree += t.shape && agrees(row, *t.shape, *cached) ? 1 : 0;
    }
    for (const FamilyTensor& t : there_.tensors()) {
      const FamilyRow& row = there_.row_of(t);
      if (!t.shape) {
        report_rank(t, row);
        continue;
      }
      auto& cached = cache[static_cast<size_t>(t.row)];
      const bool by_layer = depends_on_layer_[static_cast<size_t>(t.row)];
      if (!cached || by_layer) cached = expected_shape(x_, row, t.layer);
      if (agrees(row, *t.shape, *cached) || is_reported_elsewhere(t, row)) continue;
      x_.facts.reported.insert(t.tensor);
      auto& o = odd[{t.row, t.shape->e, t.shape->n, t.shape->k, row.has_expert ? -1 : t.layer}];
      if (o.count++ > 0) continue;
      o.first = t.tensor;
      const LogicalShape wanted{cached->e.value_or(t.shape->e), cached->n.value_or(t.shape->n),
                                row.k.empty() ? -1 : cached->k.value_or(t.shape->k)};
      o.numbers = std::abs(wanted.e * wanted.n * wanted.k);
      o.expected = fmt::format("{} ({}{}{} of config.json), found {}", shape_text(wanted), row.n,
                               row.k.empty() ? "" : " x ", row.k, shape_text(*t.shape));
    }
    for (const auto& [key, o] : odd) {
      if (is_bf16_called_f32(o.first, o.numbers)) {
        reporter_.add("tensor-type", s_.at(o.first), "expected BF16, with which its shape is {}{}",
                      o.expected, and_more(o.count, ", and in {} more"));
        continue;
      }
      reporter_.add("config-shape", s_.at(o.first), "expected {}{}", o.expected,
                    and_more(o.count, ", and in {} more"));
    }
  }
  /// True if a header states F32 for a tensor with as many bytes as its numbers by config.json have in
  /// BF16.
  bool is_bf16_called_f32(size_t tensor, int64_t numbers) const {
    const TensorInfo& t = s_.tensors[tensor];
    return t.dtype == DType::kF32 && static_cast<int64_t>(t.bytes()) == 2 * numbers;
  }
  void report_rank(const FamilyTensor& t, const FamilyRow& row) {
    const TensorInfo& info = s_.tensors[t.tensor];
    if (row.kind == ParameterKind::kAny || is_reported_elsewhere(t, row) || !s_.layout.empty() ||
        info.name.ends_with(".qweight"))
      return;
    const ExpectedShape x = expected_shape(x_, row, t.layer);
    if (!x.is_known(row)) return;
    x_.facts.reported.insert(t.tensor);
    reporter_.add("config-shape", s_.at(t.tensor), "expected {} ({}{}{} of config.json), found {}",
                  x.text(row), row.n, row.k.empty() ? "" : " x ", row.k, describe(info));
  }

  /// For each row: true if the config has a list with its size in each layer.
  std::vector<bool> depends_on_layer_;
  std::optional<std::set<size_t>>
      uncertain_;  ///< stacks of gate and up for which the order of rows is unknown
  /// Number of experts, and number of those that agree.
  std::map<std::pair<int32_t, int32_t>, std::pair<size_t, size_t>> alike_;
};

}  // namespace

std::string shape_text(const LogicalShape& s) {
  std::vector<std::string> parts;
  for (const int64_t size : {s.e, s.n, s.k}) {
    if (size >= 0) parts.push_back(fmt::format("{}", size));
  }
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

std::string ExpectedShape::text(const FamilyRow& row) const {
  switch (row.kind) {
    case ParameterKind::kPatches:
      return fmt::format("[{}, 3, {}, {}]", *n, *k, *k);
    case ParameterKind::kTwoPatches:
      return fmt::format("[{}, 3, 2, {}, {}]", *n, *k, *k);
    case ParameterKind::kGrid:
      return fmt::format("[{}, {}, {}]", *n, *n, *k);
    case ParameterKind::kConvolution:
      return fmt::format("[{}, 1, {}]", *n, *k);
    default:
      return shape_text({e.value_or(-1), *n, row.k.empty() ? -1 : *k});
  }
}

ExpectedShape expected_shape(const FamilySubject& subject, const FamilyRow& row, int64_t layer) {
  ExpectedShape x;
  if (row.kind >= ParameterKind::kRowStack && row.kind != ParameterKind::kAny) x.e = subject.experts();
  x.n = subject.sizes.size(row.n, layer);
  if (!row.k.empty()) x.k = subject.sizes.size(row.k, layer);
  return x;
}

void lint_family_sizes(FamilySubject& subject, LintReporter& reporter) { SizeLint(subject, reporter).run(); }

}  // namespace twofour
