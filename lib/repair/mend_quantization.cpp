#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "formats/json/access.h"
#include "lib/base/findings/problems.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/base/names/quantization_methods.h"
#include "lib/repair/repair.h"
#include "lib/source/config/config_terms.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/config/contradictions.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/dialect_rows.h"
#include "lib/source/dialects/loader_lookup.h"
#include "lib/source/dialects/scheme.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

constexpr const char* kHfQuant = "hf_quant_config.json";

bool has_cache_scales(const Checkpoint& c) {
  return std::any_of(c.tensors().begin(), c.tensors().end(), [](const TensorInfo& t) {
    return t.name.ends_with(".k_scale") || t.name.ends_with(".v_scale");
  });
}

/// The dialect of a checkpoint's tensors: of its NVFP4 modules or, without any, of its config. Null: neither
/// tells it.
const OutputDialect* dialect_of(const Checkpoint& c) {
  for (const Nvfp4Linear& m : c.nvfp4_modules()) {
    for (const OutputDialect& dialect : output_dialects()) {
      if (dialect.nvfp4 != nullptr && std::string_view(dialect.nvfp4->name) == m.dialect->name)
        return &dialect;
    }
  }
  return source_dialect(c);
}

/// Makes the quantization entries of a checkpoint from its tensors. Throws Error if no config can describe
/// them.
class ConfigWriter {
 public:
  explicit ConfigWriter(const Checkpoint& c) : ConfigWriter(c, dialect_of(c)) {}
  ConfigWriter(const Checkpoint& c, const OutputDialect* dialect) : c_(c), dialect_(dialect) {
    if (dialect_ == nullptr)
      throw Error("quantization_config: expected tensors of a dialect that twofour writes, found another");
    model_.source = &c;
    if (dialect_->kv_scale_type) model_.fp8_kv_cache = has_cache_scales(c) || says_fp8_cache();
  }

  ConfigEntries write() {
    Problems problems;
    for (const Linear& m : find_weight_modules(c_, problems)) add(m);
    problems.refuse();
    if (model_.entries.empty()) return {nullptr};
    model_.unquantized = unquantized_linears(model_, *dialect_);
    for (const std::string& split : find_split_layers(model_)) problems.add(split);
    problems.refuse();
    ConfigEntries entries = written();
    if (dialect_->settings != nullptr) entries.settings = dialect_->settings(model_);
    for (const std::string& conflict : find_lookup_conflicts(model_, entries)) problems.add(conflict);
    problems.refuse();
    return entries;
  }

 private:
  bool says_fp8_cache() const {
    try {
      return has_fp8_kv_cache(c_);
    } catch (const ReadError&) {
      throw;
    } catch (const Error&) {
      return false;
    }
  }

  void add(const Linear& m) {
    if (!m.format->coded) return model_.add(m.name);
    const Scheme scheme = scheme_of(c_, m);
    Json entry = dialect_->entry(scheme);
    if (entry.is_null()) {
      throw Error("quantization_config: expected formats that " + std::string(dialect_->name) +
                  " can name, found " + describe(scheme) + " at " + m.name);
    }
    model_.add(m.name, scheme, std::move(entry));
  }

  ConfigEntries written() const {
    if (model_.entries.size() == 1 && dialect_->config != nullptr) {
      ConfigEntries entries = dialect_->config(
          {dialect_->patterns(model_.unquantized), model_.fp8_kv_cache, model_.heads()}, model_.schemes[0]);
      if (!entries.quantization_config.is_null()) return entries;
    }
    if (dialect_->mixed_config == nullptr) {
      throw Error("quantization_config: expected one format, which is all that " +
                  std::string(dialect_->name) + " describes, found several");
    }
    return dialect_->mixed_config(model_);
  }

  const Checkpoint& c_;
  const OutputDialect* dialect_;
  WrittenModel model_;
};

/// `now` in the order of `before`: keys of objects, and texts of lists. With `keeps`, members that only
/// `before` has stay.
Json in_old_order(const Json& before, const Json& now, bool keeps) {
  if (before.is_object() && now.is_object()) {
    Json merged = Json::object();
    for (const auto& [key, value] : before.items()) {
      const auto at = now.find(key);
      if (at != now.end()) {
        merged[key] = in_old_order(value, *at, keeps);
      } else if (keeps) {
        merged[key] = value;
      }
    }
    for (const auto& [key, value] : now.items()) {
      if (!before.contains(key)) merged[key] = value;
    }
    return merged;
  }
  const auto are_texts = [](const Json& list) {
    return list.is_array() && std::all_of(list.begin(), list.end(), [](auto& j) { return j.is_string(); });
  };
  if (!are_texts(before) || !are_texts(now)) return now;  // the order of numbers has a meaning
  Json merged = Json::array();
  const auto has = [](const Json& list, const Json& value) {
    return std::any_of(list.begin(), list.end(), [&](const Json& other) { return other == value; });
  };
  for (const Json& value : before) {
    if (has(now, value) && !has(merged, value)) merged.push_back(value);
  }
  for (const Json& value : now) {
    if (!has(before, value)) merged.push_back(value);
  }
  return merged;
}

/// Puts entries into the configs of the state.
void take(Repair& r, ConfigEntries entries, bool writes_hf_quant) {
  Edited& edited = r.edited;
  if (edited.config.is_object()) {
    edited.config = with_quantization(std::move(edited.config), std::move(entries.quantization_config));
    for (const auto& [key, value] : entries.settings.items()) {
      if (value.is_null()) {
        edited.config.erase(key);
      } else {
        edited.config[key] = value;
      }
    }
  }
  if (writes_hf_quant) edited.hf_quant = std::move(entries.hf_quant_config);
}

}  // namespace

namespace {

/// True if a dialect gives the tensors of all quantized modules the names, types and shapes that they have.
bool spells_all(const Checkpoint& c, const OutputDialect& dialect) {
  Problems ignored;
  for (const Linear& m : find_weight_modules(c, ignored)) {
    if (!m.format->coded) continue;
    if (m.stacked || !m.scale) return false;
    const Scheme scheme = scheme_of(c, m);
    if (dialect.entry(scheme).is_null()) return false;
    const auto spelling = dialect.spelling(scheme, m.n, m.k);
    if (!spelling) {  // the entry of a format without tiles
      if (m.format->tiles) return false;
      continue;
    }
    const TensorInfo& scale = c.tensors()[*m.scale];
    if (c.tensors()[m.weight].name != m.name + spelling->weight || scale.name != m.name + spelling->scale)
      return false;
    if (spelling->scale_type && scale.dtype != *spelling->scale_type) return false;
    const bool is_scalar = scheme.granularity == Granularity::kTensor && scheme.format->tiles;
    if (is_scalar && scale.shape.size() != dialect.scalar_rank) return false;
    if (!is_scalar && scale.shape != spelling->scale_shape) return false;
    if (spelling->needs_input_scale && !m.input_scale) return false;
  }
  return true;
}

/// The entry of gpt-oss, whose experts alone are quantized; null if the tensors are not as in its files.
/// Source: config.json of openai/gpt-oss-20b.
Json gpt_oss_entry(const Checkpoint& c) {
  Problems ignored;
  for (const Linear& m : find_weight_modules(c, ignored)) {
    const bool is_expert = m.stacked && c.tensors()[m.weight].name.ends_with("_proj_blocks");
    if (m.format->coded && (!is_expert || m.format != WeightFormat::kMxfp4)) return nullptr;
  }
  return {{"modules_to_not_convert",
           {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}},
          {"quant_method", "mxfp4"}};
}

/// The scheme and the name of the first quantized module of a checkpoint.
std::string first_coded(const Checkpoint& c) {
  Problems ignored;
  for (const Linear& m : find_weight_modules(c, ignored)) {
    if (m.format->coded) return describe(scheme_of(c, m)) + " at " + m.name;
  }
  return "none";
}

/// The entries of the first dialect that fits the tensors where no config names one. Where several fit, they
/// say the same of every weight, and the one that more engines read comes first.
ConfigEntries entries_by_tensors(Repair& r) {
  if (text_of(r.edited.config, "model_type") == "gpt_oss") {
    if (Json entry = gpt_oss_entry(r.view()); !entry.is_null()) return {std::move(entry)};
  }
  std::string why = "expected tensors that only one config can mean, found " + first_coded(r.view());
  for (const char* name : {"deepseek", "compressed-tensors", "modelopt"}) {
    const OutputDialect& dialect = output_dialect(name, false);
    if (!spells_all(r.view(), dialect)) continue;
    try {
      return ConfigWriter(r.view(), &dialect).write();
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      why = e.what();
    }
  }
  throw Error(why);
}

/// The entries for the tensors of the state. Where the present config hides how modules are stored, they are
/// found without it.
ConfigEntries entries_for(Repair& r) {
  const bool has_config = r.edited.config.is_object() && quantization_entry(r.edited.config);
  if (!has_config && dialect_of(r.view()) == nullptr) return entries_by_tensors(r);
  try {
    return ConfigWriter(r.view()).write();
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    Edited bare = r.edited;
    if (bare.config.is_object()) bare.config = with_quantization(std::move(bare.config), nullptr);
    bare.hf_quant = nullptr;
    const Checkpoint view = outline(r.source, r.donor, bare);
    return ConfigWriter(view, dialect_of(r.view())).write();
  }
}

}  // namespace

namespace {

/// Returns what the configs state about the codes and a config written from the tensors would lose. Empty:
/// nothing. The tensors alone do not show whether the statement or the codes are wrong.
std::string statement_to_lose(Repair& r) {
  const Json &config = r.edited.config, &hf_quant = r.edited.hf_quant;
  for (const ConfigTerm& term : find_config_terms(config, hf_quant, r.view().tensors())) {
    const std::string_view rule = term.rule;
    if (rule == "weight-term" || rule == "incomplete-module")
      return fmt::format("{}: {}: {}", term.file, term.key, term.problem);
  }
  const Json entry = source_quantization(r.view());
  if (!entry.is_object()) return "";
  Problems ignored;
  std::vector<Linear> modules = find_weight_modules(r.view(), ignored);
  std::erase_if(modules, [](const Linear& m) { return !m.format->coded; });
  const bool has_integers =
      std::any_of(modules.begin(), modules.end(), [](const Linear& m) { return m.format->integers; });
  // A method whose codes have other names and types is that of another model.
  if (!has_integers && has_own_codes(quantization_method(entry))) return "";
  SourceGroups configured(entry);
  for (const Linear& m : modules) {
    const std::string found = contradiction_of(configured.configured(), m.name, m.format);
    if (!found.empty())
      return fmt::format("{} ({})", quantization_place(r.view(), found), r.view().where(m.weight));
  }
  return "";
}

}  // namespace

bool mend_quantization(Repair& r, MendRecord& record) {
  auto findings = r.found({"no-quantization-config", "config-disagrees", "config-dtype", "config-format",
                           "config-inputs", "config-cache", "engine-lookup", "config-group-size",
                           "unquantized-not-ignored", "unused-pattern", "unreadable-pattern"});
  // If no linear has an input scale, the config becomes one of weights alone.
  const auto& modules = r.view().nvfp4_modules();
  if (std::none_of(modules.begin(), modules.end(), [](auto& m) { return m.input_scale.has_value(); })) {
    const auto missing = r.found({"missing-input-scale"});
    findings.insert(findings.end(), missing.begin(), missing.end());
  }
  const bool is_unreadable = r.wants("bad-config") && r.loose.unreadable.contains(kHfQuant);
  if (findings.empty() && !is_unreadable) return false;
  for (const LintFinding* f : findings) record.rules.insert(lint_rules()[f->rule].id);
  if (is_unreadable) record.rules.insert("bad-config");
  const std::string where = findings.empty() ? kHfQuant : findings[0]->where();
  const std::string rule = *record.rules.begin();
  if (const std::string lost = statement_to_lose(r); !lost.empty()) {
    r.leave(rule, where, "a config written from the tensors would lose what the present one says: " + lost);
    return false;
  }
  const Json config = r.edited.config, hf_quant = r.edited.hf_quant;
  const auto entry_of = [](const Json& of) {
    const auto entry = of.is_object() ? quantization_entry(of) : std::nullopt;
    return entry ? entry->value : Json(nullptr);
  };
  // A file that is not there is added only if nothing else can hold the entry.
  const bool writes_hf_quant = !hf_quant.is_null() || is_unreadable || !config.is_object();
  try {
    ConfigEntries entries = entries_for(r);
    ConfigEntries merged = entries, ordered = entries;
    for (const auto& [to, keeps] : {std::pair{&merged, true}, {&ordered, false}}) {
      to->quantization_config = in_old_order(entry_of(config), entries.quantization_config, keeps);
      to->hf_quant_config = in_old_order(hf_quant, entries.hf_quant_config, keeps);
    }
    const auto try_entries = [&](const ConfigEntries& tried) {
      return r.try_change([&] { take(r, tried, writes_hf_quant); });
    };
    const size_t before = r.faults();
    bool mended = is_unreadable || try_entries(merged);
    // A statement of the old config alone may be the fault.
    if (mended && !is_unreadable && r.faults() > 0 && before > 0) mended = try_entries(ordered) || mended;
    if (!mended) mended = try_entries(ordered);
    if (is_unreadable) {
      take(r, std::move(entries), writes_hf_quant);
      r.changed();
    }
    if (!mended) {
      r.leave(rule, where, "a config written from the tensors has as many findings, such as " + r.rejected());
      return false;
    }
  } catch (const ReadError&) {
    throw;
  } catch (const Error& e) {
    r.leave(rule, where, e.what());
    return false;
  }
  if (r.edited.config != config) {
    record.files.insert("config.json");
    record.settings.push_back(
        {"config.json", "quantization_config", entry_of(config), entry_of(r.edited.config)});
    record.bytes += format_json(r.edited.config).size();
  }
  if (r.edited.hf_quant != hf_quant || is_unreadable) {
    record.files.insert(kHfQuant);
    record.settings.push_back({kHfQuant, "quantization", member(hf_quant, "quantization"),
                               member(r.edited.hf_quant, "quantization")});
    record.bytes += format_json(r.edited.hf_quant).size();
  }
  return true;
}

}  // namespace twofour
