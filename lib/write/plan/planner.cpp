#include "lib/write/plan/planner.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/naming.h"
#include "lib/source/config/model_config.h"

namespace twofour {

Planner::Planner(const Input& in)
    : source(in.source),
      written(in.written),
      limits(in.limits),
      is_single(in.is_single),
      findings(in.findings),
      problems(in.problems),
      config(in.source, in.author, in.reader, in.findings, in.problems),
      taken_(in.source.tensors().size()),
      kept_(in.source.tensors().size()),
      layers_(model_layers(in.source.config())) {}

const std::vector<Linear>& Planner::linears() {
  if (!linears_) linears_ = find_weight_modules(source, problems);
  return *linears_;
}

bool Planner::is_understood(size_t tensor) const {
  const DType type = source.tensors()[tensor].dtype;
  const bool is_coded = !is_float(type) && type != DType::kF64;
  return is_planned(tensor) || (is_coded && config.is_rewritten() && config.has(tensor));
}

std::optional<DType> Planner::fp8_scale_type(const OutputDialect& dialect) {
  if (dialect.fp8_scale_type == nullptr) return std::nullopt;
  std::vector<Scheme> all = config.expert_schemes();
  for (const Linear& m : linears()) {
    if (m.format->coded && !config.has(m.weight) &&
        module_role(m.name, layers_) == ModuleRole::kRoutedExperts)
      all.push_back(scheme_of(source, m));
  }
  return dialect.fp8_scale_type(all);
}

const std::string& Planner::label_of(const std::vector<size_t>& sources) const {
  static const std::string none;
  if (!labels_.empty() && !labels_.back().empty()) return labels_.back();
  const size_t kept = sources.empty() ? 0 : kept_[sources[0]];
  return kept == 0 ? none : labels_[kept - 1];
}

bool Planner::takes(Transformation& transformation) {
  const std::vector<size_t> sources = transformation.sources();
  const auto taken = std::find_if(sources.begin(), sources.end(), [&](size_t i) { return taken_[i]; });
  if (taken != sources.end()) {
    if (!std::all_of(sources.begin(), sources.end(), [&](size_t i) { return taken_[i]; })) {
      problems.add(fmt::format(
          "{}: expected one rule for all tensors of {}, found another rule that matches this tensor",
          source.where(*taken), transformation.name(source)));
    }
    return false;
  }
  for (const size_t i : sources) taken_[i] = true;
  if (const std::string& label = label_of(sources); !label.empty()) transformation.set_rule(label);
  return true;
}

void Planner::watch_experts(const ExpertsLeft& which) {
  if (!watched_) watched_.emplace();
  watched_->nvfp4 = watched_->nvfp4 || which.nvfp4;
  watched_->drafts = watched_->drafts || which.drafts;
  watched_->stacks = watched_->stacks || which.stacks;
}

PlannedRules Planner::end_rules() {
  if (watched_ && !config.is_for_layouts()) {
    warn_of_experts_left(
        source, [&](size_t i) { return is_taken(i); }, *watched_, findings);
  }
  begin_rule("");
  const bool one = config.is_rewritten() && config.dialect() != nullptr && !config.is_for_layouts();
  return {*this, one ? fp8_scale_type(*config.dialect()) : std::nullopt};
}

std::span<const Linear> PlannedRules::known_linears() const {
  return rest.linears_ ? std::span<const Linear>(*rest.linears_) : std::span<const Linear>();
}

void PlannedRules::drop(size_t tensor) {
  if (rest.taken_[tensor]) return;
  rest.taken_[tensor] =
      std::any_of(rest.made_.begin(), rest.made_.end(), [&](auto& one) { return one->drop(tensor); });
}

}  // namespace twofour
