#include "lib/plan/method.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "formats/error.h"
#include "formats/naming.h"
#include "lib/checkpoint/model_config.h"
#include "lib/checkpoint/quantization_config.h"
#include "lib/names/natural.h"
#include "lib/plan/output_files.h"

namespace twofour {

Planner::Planner(const Checkpoint& from, const Manifest* by, const MemoryLimits& most, bool single,
                 Findings& notes, Problems& wrong)
    : source(from),
      written(by),
      limits(most),
      is_single(single),
      findings(notes),
      problems(wrong),
      taken_(from.tensors().size()),
      described_(from.tensors().size()),
      kept_(from.tensors().size()),
      layers_(model_layers(from.config())) {
  written_.source = &from;
}

const std::vector<Linear>& Planner::linears() {
  if (!linears_) linears_ = find_weight_modules(source, problems);
  return *linears_;
}

void Planner::set_dialect(const OutputDialect& to) {
  if (dialect_ != nullptr && dialect_ != &to) {
    throw Error(
        fmt::format("dialect: expected one for the whole output, found {} and {}", dialect_->name, to.name));
  }
  if (to.name == "deepseek-v4" && source_dialect(source) != &to) {
    throw Error(fmt::format("{}: expected a source in that form, found another: {}",
                            spelled(keys::kDialect, to.name, author), source.path().string()));
  }
  dialect_ = &to;
}

void Planner::write(std::string module, size_t weight, const Scheme& scheme) {
  const bool is_float = !scheme.format->coded;
  write(std::move(module), weight, scheme,
        is_float || dialect_ == nullptr ? Json(nullptr) : dialect_->entry(scheme));
}

void Planner::write_kept(const Linear& m) {
  const Scheme scheme = scheme_of(source, m);
  const bool quantized = m.format->coded;
  // Groups say of activations what tensors do not.
  if (quantized && dialect_ != nullptr && source_dialect(source) == dialect_ &&
      dialect_->name == "compressed-tensors") {
    if (!groups_) groups_.emplace(source_quantization(source));
    if (Json entry = groups_->find(m.name); entry.is_object())
      return write(m.name, m.weight, scheme, std::move(entry));
  }
  write(m.name, m.weight, scheme);
}

void Planner::write(std::string module, size_t weight, const Scheme& scheme, Json entry) {
  described_[weight] = true;
  WrittenModule one{std::move(module)};
  if (scheme.format->coded) {
    if (entry.is_null()) {
      problems.add(
          fmt::format("{}: expected a format that {} can name{}, found {}", source.where(weight),
                      dialect_ == nullptr ? "a configuration in the source's words"
                                          : fmt::format("the {} dialect", dialect_->name),
                      shows_layouts_ ? " beside layouts, or a run before this one that converts it" : "",
                      describe(scheme)));
    }
    const auto at = std::find(written_.entries.begin(), written_.entries.end(), entry);
    one.entry = static_cast<size_t>(at - written_.entries.begin());
    if (at == written_.entries.end()) {
      written_.entries.push_back(std::move(entry));
      schemes_.push_back(scheme);
    }
  }
  written_.modules.push_back(std::move(one));
}

ConfigEntries Planner::written_entries() {
  note_odd_scale_types();
  refuse_odd_drafts();
  ConfigEntries entries = quantization_entries();
  if (dialect_ != nullptr && dialect_->settings != nullptr && problems.empty())
    entries.settings = dialect_->settings(written_);
  return entries;
}

std::vector<Scheme> Planner::expert_schemes() {
  const auto is_routed = [&](const std::string& name) {
    return module_role(name, layers_) == ModuleRole::kRoutedExperts;
  };
  std::vector<Scheme> all;
  for (const WrittenModule& m : written_.modules) {
    if (m.entry && is_routed(m.name)) all.push_back(schemes_[*m.entry]);
  }
  for (const Linear& m : linears()) {
    if (m.format->coded && !is_written(m.weight) && is_routed(m.name)) all.push_back(scheme_of(source, m));
  }
  return all;
}

std::optional<DType> Planner::fp8_scale_type() {
  if (!one_scale_type_) {
    const bool one = dialect_ != nullptr && dialect_->fp8_scale_type != nullptr;
    one_scale_type_ = one ? dialect_->fp8_scale_type(expert_schemes()) : std::nullopt;
  }
  return *one_scale_type_;
}

void Planner::note_odd_scale_types() {
  const auto wanted = fp8_scale_type();
  const auto odd = std::find_if(schemes_.begin(), schemes_.end(), [&](const Scheme& s) {
    return wanted && s.format->tiles && (s.scale_type == DType::kF32) != (wanted == DType::kF32);
  });
  if (odd == schemes_.end()) return;
  findings.push_back(
      {Severity::kWarning, "unlike-scale-types", source.path().string(),
       fmt::format("FP8 scales in {} are written beside experts for which loaders of {} read {} "
                   "everywhere; leave out scale_dtype",
                   dtype_name(odd->scale_type), dialect_->name, dtype_name(*wanted))});
}

void Planner::refuse_odd_drafts() {
  if (shows_layouts_ || dialect_ == nullptr || dialect_->fp8_scale_type == nullptr) return;
  const std::vector<Scheme> experts = expert_schemes();
  if (experts.empty()) return;
  const bool fp8 = experts[0].format->tiles;
  for (const WrittenModule& m : written_.modules) {
    if (!m.entry || !is_draft_expert(m.name, layers_)) continue;
    const Scheme& own = schemes_[*m.entry];
    if (own.format->tiles == fp8) continue;
    problems.add(fmt::format(
        "{}: expected the draft's experts in {}, as the model's are, since loaders of {} take both "
        "for one format, found {}; {} converts them, too",
        m.name, describe(experts[0]), dialect_->name, describe(own),
        spelled(keys::kDraftExperts, "cast", author)));
    return;
  }
}

ConfigEntries Planner::quantization_entries() {
  std::stable_sort(
      written_.modules.begin(), written_.modules.end(),
      [](const WrittenModule& a, const WrittenModule& b) { return natural_less(a.name, b.name); });
  if (written_.entries.empty()) return {};
  if (suggested_ && problems.empty() && find_lookup_conflicts(written_, *suggested_).empty())
    return std::move(*suggested_);
  written_.unquantized = unquantized_linears(written_, *dialect_);
  std::move(left_.begin(), left_.end(), std::back_inserter(written_.unquantized));
  if (!written_.unquantized.empty()) {
    findings.push_back({Severity::kNote, "unquantized", source.path().string(),
                        fmt::format("{} linears or blocks of experts are left unquantized, the first {}",
                                    written_.unquantized.size(), written_.unquantized[0])});
  }
  if (dialect_->kv_scale_type) written_.fp8_kv_cache = has_fp8_kv_cache(source);
  if (!problems.empty()) return {};  // entries may be none
  for (const std::string& split : find_split_layers(written_)) problems.add(split);
  // Formats that are only kept have the source's own words.
  const bool has_words = !dialect_->entry(schemes_[0]).is_null();
  if (written_.entries.size() == 1 && dialect_->config != nullptr && has_words) {
    QuantizedConfig config = {dialect_->patterns(written_.unquantized), written_.fp8_kv_cache};
    for (const WrittenModule& m : written_.modules) {
      if (m.entry && is_head(m.name)) config.heads.push_back(m.name);
    }
    return checked(dialect_->config(config, schemes_[0]));
  }
  if (dialect_->mixed_config == nullptr) {
    throw Error(fmt::format("{}: expected one format, which is all that it describes, found {} and {}",
                            spelled(keys::kDialect, dialect_->name, author), describe(schemes_[0]),
                            describe(schemes_.back())));
  }
  ConfigEntries entries = dialect_->mixed_config(written_);
  return problems.empty() ? checked(std::move(entries)) : entries;
}

ConfigEntries Planner::checked(ConfigEntries entries) {
  if (dialect_->settings != nullptr) entries.settings = dialect_->settings(written_);
  for (const std::string& conflict : find_lookup_conflicts(written_, entries)) {
    // No engine is asked for the source of layouts, whose draft may be in a format of its own.
    const bool odd_draft =
        shows_layouts_ && is_draft_expert(conflict.substr(0, conflict.find(": ")), layers_);
    if (!odd_draft) problems.add(conflict);
  }
  return entries;
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
      problems.add(
          fmt::format("{}: expected one rule for all tensors of {}, found another rule that takes this",
                      source.where(*taken), transformation.name(source)));
    }
    return false;
  }
  for (const size_t i : sources) taken_[i] = true;
  if (const std::string& label = label_of(sources); !label.empty()) transformation.set_rule(label);
  return true;
}

void Planner::drop(size_t tensor) {
  if (taken_[tensor]) return;
  taken_[tensor] = std::any_of(made_.begin(), made_.end(), [&](auto& one) { return one->drop(tensor); });
}

void Planner::add_layout(LayoutGroup group) {
  const auto same = std::find_if(layouts_.begin(), layouts_.end(), [&](const LayoutGroup& g) {
    return g.layout == group.layout && g.pattern == group.pattern;
  });
  if (same == layouts_.end()) {
    layouts_.push_back(std::move(group));
    return;
  }
  std::move(group.modules.begin(), group.modules.end(), std::back_inserter(same->modules));
}

void Planner::watch_experts(const ExpertsLeft& which) {
  if (!watched_) watched_.emplace();
  watched_->nvfp4 = watched_->nvfp4 || which.nvfp4;
  watched_->drafts = watched_->drafts || which.drafts;
  watched_->stacks = watched_->stacks || which.stacks;
}

void Planner::warn_of_left_experts() {
  if (!watched_) return;
  warn_of_experts_left(
      source, [&](size_t i) { return is_taken(i); }, *watched_, findings);
}

void Planner::set_texts(std::map<std::string, std::string> texts) {
  if (texts_) {
    throw Error(
        fmt::format("{}: expected one rule that changes number formats, found two: one configuration "
                    "cannot describe what both write",
                    source.path().string()));
  }
  texts_ = std::move(texts);
}

std::map<std::string, std::string> Planner::texts() {
  if (rewrites_formats()) {
    ConfigEntries entries = written_entries();
    if (layouts_.empty()) return config_texts(source, std::move(entries));
    shown_hf_quant_config_ = entries.hf_quant_config;
    return {{"config.json", layout_config_text(source, layouts_, &entries.quantization_config)}};
  }
  if (!layouts_.empty() + texts_.has_value() > 1) {
    throw Error(
        fmt::format("{}: expected layouts alone or one rule that changes number formats, found both: "
                    "one configuration cannot describe what they write",
                    source.path().string()));
  }
  if (layouts_.empty()) return texts_.value_or(std::map<std::string, std::string>{});
  return {{"config.json", layout_config_text(source, layouts_)}};
}

const MethodRow* find_method(std::string_view name) {
  const auto& all = methods();
  const auto at = std::find_if(all.begin(), all.end(), [&](const MethodRow& m) { return m.name == name; });
  return at == all.end() ? nullptr : &*at;
}

namespace {

const MethodRow& row_of(const Rule& rule) {
  if (const MethodRow* row = find_method(rule.to)) return *row;
  std::vector<std::string_view> names;
  for (const MethodRow& m : methods()) names.push_back(m.name);
  throw Error(fmt::format("{}: expected one of {}, found '{}'", rule.name(keys::kTo), fmt::join(names, ", "),
                          rule.to));
}

}  // namespace

void check_taken(const Rule& rule, const RuleWord& word, std::string_view value) {
  const auto takes = [&](const MethodRow& row) { return (row.kind & word.asked.methods) != 0; };
  if (word.asked.methods == kEveryMethod || takes(row_of(rule))) return;
  std::vector<std::string_view> taking;
  for (const MethodRow& m : methods()) {
    if (takes(m)) taking.push_back(m.name);
  }
  throw Error(fmt::format("{}: expected with {} only, found with {}",
                          word.asked.is_named_with_value ? rule.name(word.key, value) : rule.name(word.key),
                          rule.name(keys::kTo, either(taking)), rule.name(keys::kTo, rule.to)));
}

std::unique_ptr<Method> make_method(Rule& rule) {
  const MethodRow& row = row_of(rule);
  for (const RuleWord& word : rule_words()) {
    const std::string value = word.is_asked() ? word.given(rule) : "";
    if (!value.empty()) check_taken(rule, word, value);
  }
  return row.make(rule);
}

}  // namespace twofour
