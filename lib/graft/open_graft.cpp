#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "formats/error.h"
#include "formats/module_names.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/problems.h"
#include "lib/graft/check_fit.h"
#include "lib/graft/edited_checkpoint.h"
#include "lib/graft/mixed_entries.h"
#include "lib/graft/model_settings.h"
#include "lib/graft/module_patterns.h"
#include "lib/graft/module_tensors.h"
#include "lib/graft/open_edited.h"
#include "lib/graft/quantization_entries.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/source/config/config_terms.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The texts of a checkpoint's config files, byte for byte, by name.
std::map<std::string, std::string> config_files_of(const Checkpoint& c) {
  std::map<std::string, std::string> texts;
  std::error_code error;
  for (const char* name : kConfigNames) {
    if (c.is_directory() && fs::exists(c.path() / name, error)) texts[name] = read_text(c.open_again(name));
  }
  return texts;
}

bool is_code_type(DType type) {
  return type == DType::kU8 || type == DType::kI8 || type == DType::kI32 || type == DType::kF8E4M3;
}

/// The quantized modules and the linears in floats that a graft adds, with their entries in the donor's
/// config.
std::vector<ComingModule> coming_modules(const Checkpoint& donor, const QuantizationEntries& words,
                                         const std::vector<Linear>& linears, const std::vector<bool>& comes) {
  std::set<std::string> floats, quantized;
  for (const Linear& m : linears) {
    if (comes[m.weight]) (!m.format->coded ? floats : quantized).insert(m.name);
  }
  // These are modules in formats without linears, or in unsupported formats.
  for (size_t i = 0; i < comes.size(); ++i) {
    const TensorInfo& t = donor.tensors()[i];
    const std::string_view leaf = leaf_of(t.name);
    if (comes[i] && is_code_type(t.dtype) && (leaf.find("weight") == 0 || leaf == "qweight"))
      quantized.insert(std::string(module_of(t.name)));
  }
  std::vector<ComingModule> coming;
  for (const std::string& name : quantized) {
    coming.push_back(words.scheme_of(name));
    if (coming.back().scheme.is_null()) {
      throw Error(fmt::format("{}: expected a config that describes the quantization of {}, found none",
                              donor.path().string(), name));
    }
  }
  for (const std::string& name : floats) {
    if (!quantized.contains(name)) coming.push_back({name, nullptr, "", words.scheme_of(name).scheme});
  }
  return coming;
}

std::vector<std::string> float_linears(const Checkpoint& c) {
  std::vector<std::string> names;
  Problems ignored;
  for (const Linear& m : find_weight_modules(c, ignored)) {
    if (!m.format->coded) names.push_back(m.name);
  }
  return names;
}

/// Writes the config files after a graft. If possible, these are the base's files with entries for the added
/// modules. Otherwise they are new files with an entry for each module of the result.
void write_keys(const Checkpoint& base, const Checkpoint& donor, const std::vector<Linear>& linears,
                const std::vector<bool>& comes, const Checkpoint& result,
                const std::vector<std::string>& staying, Edited& edited) {
  QuantizationEntries words(edited.config, base.hf_quant_config(), base.path().string());
  words.forget(names_of(base), staying, names_of(result));
  const QuantizationEntries of_donor(donor.config(), donor.hf_quant_config(), donor.path().string());
  const std::vector<ComingModule> coming = coming_modules(donor, of_donor, linears, comes);
  if (const auto why = words.add(coming, of_donor, float_linears(result), staying)) {
    for (const ComingModule& m : coming) {  // an unsupported format cannot be named
      const bool known =
          m.scheme.is_null() || std::any_of(linears.begin(), linears.end(), [&](const Linear& l) {
            return l.name == m.name || l.name.starts_with(m.name + ".");
          });
      if (!known) throw Error(*why);
    }
    std::set<std::string> came;
    for (size_t i = 0; i < comes.size(); ++i) {
      if (comes[i]) came.insert(donor.tensors()[i].name);
    }
    for (const Checkpoint* c : {&base, &donor}) {  // a new config does not repeat such settings
      const auto terms = find_config_terms(*c, c->tensors());
      if (!terms.empty()) throw Error(text_of(*c, terms[0]));
    }
    ConfigEntries entries = write_mixed_words(base, donor, result, came);
    edited.config = with_quantization(std::move(edited.config), std::move(entries.quantization_config));
    edited.hf_quant = std::move(entries.hf_quant_config);
    return;
  }
  edited.config = words.config();
  edited.hf_quant = words.hf_quant_config();
}

}  // namespace

Checkpoint open_graft(const fs::path& source, const fs::path& donor_path, const Edit& edit, Io io) {
  Checkpoint base = open_editable(source, io), donor = open_editable(donor_path, io);
  const int64_t layers = layer_count(base);
  const int64_t donor_layers = layer_count(donor);
  ModulePatterns patterns(edit.patterns, options::kTake.text());
  const std::vector<bool> comes = patterns.select(
      donor, donor.config().is_null() || donor_layers == kNoLayerCount ? layers : donor_layers);
  patterns.refuse_unused(donor_path.string());
  Problems ignored;  // problems of modules that the edit leaves unchanged
  const auto of_base = find_weight_modules(base, ignored), of_donor = find_weight_modules(donor, ignored);
  const ModuleTensors ours(base, of_base), theirs(donor, of_donor);
  refuse_parts(base, ours, donor, theirs, comes);
  const std::vector<bool> goes =
      find_replaced(base, ours, patterns.select(base, layers), donor, theirs, comes);
  refuse_unlike_shapes(base, of_base, goes, donor, of_donor, comes);

  Edited edited;
  std::vector<bool> stays = goes;
  stays.flip();
  add_tensors(base, stays, 0, edited.tensors);
  const std::vector<std::string> staying = names_of(edited.tensors);
  add_tensors(donor, comes, static_cast<uint32_t>(base.shards().size()), edited.tensors);
  sort_by_name(edited.tensors);
  edited.findings = findings_of(base);
  if (staying.size() == base.tensors().size()) {
    edited.note = {{"base", graft_base_to_json({hash_descriptions(base.tensors()), config_files_of(base)})}};
  }
  {
    const Checkpoint result = outline(base, &donor, edited.tensors);
    bool drafts = false;
    for (size_t i = 0; i < comes.size(); ++i) {
      const std::string_view module = module_of(donor.tensors()[i].name);
      drafts = drafts || (comes[i] && module_role(module, layers) == ModuleRole::kMtp);
    }
    edited.config =
        switch_settings(config_after_graft(base, donor, result, drafts), base, result, donor.config());
    write_keys(base, donor, of_donor, comes, result, staying, edited);
    settle_settings(base, result, edited);
    const Checkpoint configured = outline(base, &donor, edited);
    refuse_lost_terms(base, goes, donor, of_donor, comes, configured);
    refuse_other_readings(donor, of_donor, configured, [&](const Linear& m) {
      return comes[m.weight] ? std::optional(m.name) : std::nullopt;
    });
  }
  return view_of(std::move(base), std::move(donor), std::move(edited));
}

}  // namespace twofour
