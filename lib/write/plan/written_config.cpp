#include "lib/write/plan/written_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "formats/error.h"
#include "formats/naming.h"
#include "lib/base/names/natural.h"
#include "lib/source/config/model_config.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/loader_lookup.h"
#include "lib/write/plan/config_texts.h"

namespace twofour {

WrittenConfig::WrittenConfig(const Checkpoint& source, Author author, ReadBy reader, Findings& findings,
                             Problems& problems)
    : source_(source),
      author_(author),
      reader_(reader),
      findings_(findings),
      problems_(problems),
      layers_(model_layers(source.config())),
      described_(source.tensors().size()) {
  model_.source = &source;
}

void WrittenConfig::set_dialect(const OutputDialect& to) {
  if (dialect_ != nullptr && dialect_ != &to) {
    throw Error(
        fmt::format("dialect: expected one for the whole output, found {} and {}", dialect_->name, to.name));
  }
  if (to.name == "deepseek-v4" && source_dialect(source_) != &to) {
    throw Error(fmt::format("{}: expected a source in this dialect, found another: {}",
                            spelled(keys::kDialect, to.name, author_), source_.path().string()));
  }
  dialect_ = &to;
}

void WrittenConfig::add(std::string module, size_t weight, const Scheme& scheme) {
  const bool is_float = !scheme.format->coded;
  add(std::move(module), weight, scheme,
      is_float || dialect_ == nullptr ? Json(nullptr) : dialect_->entry(scheme));
}

void WrittenConfig::add(std::string module, size_t weight, const Scheme& scheme, Json entry) {
  described_[weight] = true;
  if (!scheme.format->coded) return model_.add(std::move(module));
  if (entry.is_null()) {
    problems_.add(fmt::format("{}: expected a format that {} can name{}, found {}", source_.where(weight),
                              dialect_ == nullptr ? "a configuration in the source's dialect"
                                                  : fmt::format("the {} dialect", dialect_->name),
                              is_for_layouts() ? " beside layouts, or an earlier run that converts it" : "",
                              describe(scheme)));
  }
  model_.add(std::move(module), scheme, std::move(entry));
}

void WrittenConfig::add_kept(const Linear& m) {
  const Scheme scheme = scheme_of(source_, m);
  const bool quantized = m.format->coded;
  // Only groups of the source describe activations, not tensors.
  if (quantized && dialect_ != nullptr && source_dialect(source_) == dialect_ &&
      dialect_->name == "compressed-tensors") {
    if (!groups_) groups_.emplace(source_quantization(source_));
    if (Json entry = groups_->find(m.name); entry.is_object())
      return add(m.name, m.weight, scheme, std::move(entry));
  }
  add(m.name, m.weight, scheme);
}

std::vector<Scheme> WrittenConfig::expert_schemes() const {
  std::vector<Scheme> all;
  for (const WrittenModule& m : model_.modules) {
    if (m.entry && module_role(m.name, layers_) == ModuleRole::kRoutedExperts)
      all.push_back(model_.schemes[*m.entry]);
  }
  return all;
}

void WrittenConfig::note_odd_scale_types(std::optional<DType> wanted) {
  const auto odd = std::find_if(model_.schemes.begin(), model_.schemes.end(), [&](const Scheme& s) {
    return wanted && s.format->tiles && (s.scale_type == DType::kF32) != (wanted == DType::kF32);
  });
  if (odd == model_.schemes.end()) return;
  findings_.push_back(
      {Severity::kWarning, "unlike-scale-types", source_.path().string(),
       fmt::format("FP8 scales in {} are written beside experts for which loaders of {} read {} "
                   "everywhere; leave out scale_dtype",
                   dtype_name(odd->scale_type), dialect_->name, dtype_name(*wanted))});
}

void WrittenConfig::refuse_odd_drafts() {
  if (is_for_layouts() || dialect_ == nullptr || dialect_->fp8_scale_type == nullptr) return;
  const std::vector<Scheme> experts = expert_schemes();
  if (experts.empty()) return;
  const bool fp8 = experts[0].format->tiles;
  for (const WrittenModule& m : model_.modules) {
    if (!m.entry || !is_draft_expert(m.name, layers_)) continue;
    const Scheme& own = model_.schemes[*m.entry];
    if (own.format->tiles == fp8) continue;
    problems_.add(
        fmt::format("{}: expected the draft's experts in {} (as the model's), because loaders of {} read "
                    "both in one format, found {}; {} converts them, too",
                    m.name, describe(experts[0]), dialect_->name, describe(own),
                    spelled(keys::kDraftExperts, "cast", author_)));
    return;
  }
}

ConfigEntries WrittenConfig::entries() {
  std::stable_sort(
      model_.modules.begin(), model_.modules.end(),
      [](const WrittenModule& a, const WrittenModule& b) { return natural_less(a.name, b.name); });
  if (model_.entries.empty()) return {};
  if (suggested_ && problems_.empty() && find_lookup_conflicts(model_, *suggested_).empty())
    return std::move(*suggested_);
  model_.unquantized = unquantized_linears(model_, *dialect_);
  std::move(left_.begin(), left_.end(), std::back_inserter(model_.unquantized));
  if (!model_.unquantized.empty()) {
    findings_.push_back(
        {Severity::kNote, "unquantized", source_.path().string(),
         fmt::format("{} left unquantized, the first {}",
                     model_.unquantized.size() == 1
                         ? "1 linear or block of experts is"
                         : fmt::format("{} linears or blocks of experts are", model_.unquantized.size()),
                     model_.unquantized[0])});
  }
  if (dialect_->kv_scale_type) model_.fp8_kv_cache = has_fp8_kv_cache(source_);
  if (!problems_.empty()) return {};  // the list of entries may be empty
  for (const std::string& split : find_split_layers(model_)) problems_.add(split);
  // If formats only stay, the source's own entries are used.
  const bool has_words = !dialect_->entry(model_.schemes[0]).is_null();
  if (model_.entries.size() == 1 && dialect_->config != nullptr && has_words) {
    return checked(dialect_->config(
        {dialect_->patterns(model_.unquantized), model_.fp8_kv_cache, model_.heads()}, model_.schemes[0]));
  }
  if (dialect_->mixed_config == nullptr) {
    throw Error(fmt::format("{}: expected one format, because it describes only one, found {} and {}",
                            spelled(keys::kDialect, dialect_->name, author_), describe(model_.schemes[0]),
                            describe(model_.schemes.back())));
  }
  ConfigEntries entries = dialect_->mixed_config(model_);
  return problems_.empty() ? checked(std::move(entries)) : entries;
}

ConfigEntries WrittenConfig::checked(ConfigEntries entries) {
  if (dialect_->settings != nullptr) entries.settings = dialect_->settings(model_);
  for (const std::string& conflict : find_lookup_conflicts(model_, entries)) {
    // No engine reads the source of layouts, so its draft may have a different format.
    const bool odd_draft =
        is_for_layouts() && is_draft_expert(conflict.substr(0, conflict.find(": ")), layers_);
    if (!odd_draft) problems_.add(conflict);
  }
  return entries;
}

void WrittenConfig::add_layout(LayoutGroup group) {
  const auto same = std::find_if(layouts_.begin(), layouts_.end(), [&](const LayoutGroup& g) {
    return g.layout == group.layout && g.pattern == group.pattern;
  });
  if (same == layouts_.end()) {
    layouts_.push_back(std::move(group));
    return;
  }
  std::move(group.modules.begin(), group.modules.end(), std::back_inserter(same->modules));
}

void WrittenConfig::set_texts(std::map<std::string, std::string> texts) {
  if (texts_) {
    throw Error(
        fmt::format("{}: expected one rule that changes number formats, found two: one configuration cannot "
                    "describe both outputs",
                    source_.path().string()));
  }
  texts_ = std::move(texts);
}

ConfigFiles WrittenConfig::files(std::optional<DType> fp8_scale_type) {
  ConfigFiles files;
  files.layouts = std::move(layouts_);
  files.keeps_source = is_kept_ && files.layouts.empty() && !is_rewritten_;
  if (is_rewritten_) {
    note_odd_scale_types(fp8_scale_type);
    refuse_odd_drafts();
    ConfigEntries made = entries();
    if (dialect_ != nullptr && dialect_->settings != nullptr && problems_.empty())
      made.settings = dialect_->settings(model_);
    if (files.layouts.empty()) {
      files.texts = config_texts(source_, std::move(made));
    } else {
      files.texts["config.json"] =
          layout_config_text(source_, files.layouts, names_import_, &made.quantization_config);
      files.shown_hf_quant_config = std::move(made.hf_quant_config);
    }
  } else if (files.layouts.empty()) {
    if (texts_) files.texts = std::move(*texts_);
  } else if (texts_) {
    throw Error(
        fmt::format("{}: expected only layouts or one rule that changes number formats, found both: one "
                    "configuration cannot describe both outputs",
                    source_.path().string()));
  } else {
    files.texts["config.json"] = layout_config_text(source_, files.layouts, names_import_);
  }
  return files;
}

}  // namespace twofour
