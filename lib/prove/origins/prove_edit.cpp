#include "lib/prove/origins/prove_edit.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "formats/naming.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/parallel.h"
#include "lib/prove/origins/configured_formats.h"
#include "lib/prove/origins/edit_origin.h"
#include "lib/prove/origins/lost_terms.h"
#include "lib/prove/origins/mixed_modules.h"
#include "lib/prove/origins/switches.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/source/config/model_config.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

constexpr uint64_t kEditPiece = 4u << 20;

void differ(EditProof& proof, const char* id, std::string where, std::string message) {
  proof.differences.push_back({Severity::kError, id, std::move(where), std::move(message)});
}

/// Reads bytes [begin, begin + out.size()) of a tensor from its origin.
void read_origin(const TensorOrigin& origin, uint64_t begin, std::span<uint8_t> out) {
  if (origin.slices == nullptr) return origin.from->read(origin.tensor, begin, out);
  const uint64_t slice = origin.from->tensors()[origin.tensor].bytes() / static_cast<uint64_t>(origin.of);
  for (uint64_t i = 0; i < out.size();) {
    const uint64_t at = begin + i, within = at % slice;
    const uint64_t count = std::min<uint64_t>(slice - within, out.size() - i);
    const auto from = static_cast<uint64_t>(origin.slices->at(at / slice));
    origin.from->read(origin.tensor, from * slice + within, out.subspan(i, count));
    i += count;
  }
}

/// Describes the bytes that differ. Empty if none differs.
std::string compare_with_origin(const Checkpoint& artifact, size_t tensor, const TensorOrigin& origin,
                                Progress& progress) {
  const uint64_t bytes = artifact.tensors()[tensor].bytes();
  std::vector<uint8_t> found, expected;
  uint64_t wrong = 0, first = 0;
  for (uint64_t at = 0; at < bytes; at += kEditPiece) {
    check_interrupt();
    found.resize(std::min(kEditPiece, bytes - at));
    expected.resize(found.size());
    artifact.read(tensor, at, found);
    read_origin(origin, at, expected);
    const bool equal = found == expected;
    for (size_t i = 0; !equal && i < found.size(); ++i) {
      if (found[i] != expected[i] && wrong++ == 0) first = at + i;
    }
    progress.done += 2 * found.size();
  }
  return wrong == 0 ? std::string()
                    : fmt::format("{} bytes differ from those of the source's {}, the first at {}", wrong,
                                  origin.from->where(origin.tensor), first);
}

/// Proves that every tensor of the result equals its origin, and that every tensor of the sources is
/// accounted for.
void prove_tensors_of_edit(const Checkpoint& artifact, const EditOrigins& origins,
                           const std::vector<const Checkpoint*>& sources, Progress& progress,
                           EditProof& proof) {
  const size_t count = artifact.tensors().size();
  std::vector<std::string> problems(count);
  std::map<const Checkpoint*, std::vector<int>> used;
  for (const Checkpoint* c : sources) used[c].resize(c->tensors().size());
  std::vector<std::optional<TensorOrigin>> all(count);
  for (size_t i = 0; i < count; ++i) {
    const TensorInfo& t = artifact.tensors()[i];
    all[i] = origins.of(t.name);
    if (!all[i]) {
      problems[i] = "expected no such tensor, found one";
      continue;
    }
    const TensorInfo& from = all[i]->from->tensors()[all[i]->tensor];
    ++used[all[i]->from][all[i]->tensor];
    if (t.dtype != from.dtype || t.shape != all[i]->shape) {
      problems[i] = fmt::format("expected {}, found {}", describe(from.dtype, all[i]->shape), describe(t));
    }
  }
  parallel_for(count, [&](size_t i) {
    if (all[i] && problems[i].empty()) problems[i] = compare_with_origin(artifact, i, *all[i], progress);
  });
  for (size_t i = 0; i < count; ++i) {
    if (!problems[i].empty()) differ(proof, "bytes", artifact.tensors()[i].name, problems[i]);
  }
  for (const Checkpoint* c : sources) {
    for (size_t i = 0; i < used[c].size(); ++i) {
      const int expected = origins.stays(*c, i);
      if (used[c][i] == expected) {
        ++proof.source_tensors;
        proof.source_bytes += c->tensors()[i].bytes();
        continue;
      }
      differ(proof, "source-tensor", c->where(i),
             fmt::format("expected {} times in the artifact, found {} times", expected, used[c][i]));
    }
  }
}

/// Checks that the index names exactly the tensors in the files, and states their size.
void check_index_of_edit(const Checkpoint& artifact, EditProof& proof) {
  const auto path = artifact.path() / kIndexName;
  const Json index = parse_json(path.string(), read_text(path, 1u << 30));
  uint64_t bytes = 0;
  for (const TensorInfo& t : artifact.tensors()) bytes += t.bytes();
  std::set<std::string> named;
  for (const auto& [name, file] : index.at("weight_map").items()) named.insert(name);
  for (const TensorInfo& t : artifact.tensors()) {
    if (named.erase(t.name) == 0)
      differ(proof, "index", t.name, "expected it in the index, found it only in a file");
  }
  for (const std::string& name : named)
    differ(proof, "index", name, "expected it in a file, found it only in the index");
  if (index.at("metadata").at("total_size") != Json(bytes))
    differ(proof, "index", "metadata.total_size", fmt::format("expected {}, found a different value", bytes));
}

/// The settings of a config and of its language model's config, except quantization.
std::map<std::string, Json> settings_of(const Json& config, const std::string& prefix = "") {
  std::map<std::string, Json> settings;
  if (!config.is_object()) return settings;
  for (const auto& [key, value] : config.items()) {
    if (key == "quantization_config" || key == "compression_config") continue;
    const bool language = std::find(std::begin(kLanguageConfigs), std::end(kLanguageConfigs), key) !=
                          std::end(kLanguageConfigs);
    if (language && value.is_object()) {
      settings.merge(settings_of(value, prefix + key + "."));
    } else {
      settings[prefix + key] = value;
    }
  }
  return settings;
}

/// The numbers of layers that occur in names. They are layers of the language model, or layers of drafts,
/// which have numbers from `layers` on or are below "mtp.".
struct ShownLayers {
  std::set<std::string> main, drafts;
};
ShownLayers shown_layers(const Checkpoint& c, int64_t layers) {
  ShownLayers shown;
  for (const TensorInfo& t : c.tensors()) {
    const size_t mtp = ("." + t.name).find(".mtp.");
    std::string_view rest = t.name;
    if (mtp != rest.npos) {
      rest = rest.substr(mtp + 4);
      if (rest.starts_with("layers.")) rest = rest.substr(7);
    } else {
      const size_t at = t.name.find("layers.");
      if (at == t.name.npos || (at > 0 && t.name[at - 1] != '.')) continue;
      if (module_role(t.name, 0) != ModuleRole::kMtp) continue;  // this is a layer of a tower
      rest = rest.substr(at + 7);
    }
    const std::string number(rest.substr(0, rest.find('.')));
    if (number.empty() || number.size() > 9 || number.find_first_not_of("0123456789") != number.npos)
      continue;
    (mtp != t.name.npos || std::stoll(number) >= layers ? shown.drafts : shown.main).insert(number);
  }
  return shown;
}

int64_t stated_layers(const Checkpoint& c) {
  const Json& count = model_setting(c.config(), "num_hidden_layers");
  return count.is_number_integer() ? count.get<int64_t>() : INT64_MAX;
}

/// The value of a key in the outermost config that has it. Null if no config has it.
Json first_setting(const Checkpoint& c, const std::string& key) {
  const auto all = model_settings(c.config(), key);
  return all.empty() ? Json() : *all.front();
}

/// True if `now` is the beginning of `before`, or is `before` followed by the last entries of `donor`.
bool is_resized(const Json& now, const Json& before, const Json& donor) {
  const auto text = [](const Json& list, size_t from, size_t count) {
    if (list.is_string()) return list.get<std::string>().substr(from, count);
    std::string all;
    for (size_t i = from; i < std::min(list.size(), from + count); ++i) all += json_line(list[i]) + "\n";
    return all;
  };
  const auto length = [](const Json& list) {
    return list.is_string() ? list.get<std::string>().size() : list.size();
  };
  if (now.type() != before.type() || (!now.is_array() && !now.is_string())) return false;
  const size_t n = length(now), m = length(before);
  if (n <= m) {
    if (text(now, 0, n) == text(before, 0, n)) return true;
    // A list of layer numbers keeps the numbers of the remaining layers.
    return now.is_array() && std::all_of(now.begin(), now.end(), [&](const Json& x) {
             return std::find(before.begin(), before.end(), x) != before.end();
           });
  }
  return text(now, 0, m) == text(before, 0, m) && donor.type() == now.type() && length(donor) == n &&
         text(now, m, n) == text(donor, m, n);
}

/// Checks that settings equal the base's. Exceptions are counts and lists of layers and experts, and
/// switches; these must agree with the tensors.
void check_settings_of_edit(const Checkpoint& artifact, const Edit& edit, const Checkpoint& base,
                            const Checkpoint* donor, EditProof& proof) {
  const auto before = settings_of(base.config()), now = settings_of(artifact.config());
  const ShownLayers shown = shown_layers(artifact, stated_layers(artifact));
  const ShownLayers of_base = shown_layers(base, stated_layers(base));
  const Switches switches(base, artifact, donor);
  const auto wrong = [&](const std::string& key, const std::string& expected, const Json* found) {
    differ(proof, "config", "config.json: " + key,
           fmt::format("expected {}, found {}", expected, found ? quoted_setting(*found) : "nothing"));
  };
  std::set<std::string> keys;
  for (const auto& [key, value] : before) keys.insert(key);
  for (const auto& [key, value] : now) keys.insert(key);
  for (const std::string& key : keys) {
    const auto a = before.find(key), b = now.find(key);
    const Json* found = b == now.end() ? nullptr : &b->second;
    const std::string leaf = key.substr(key.rfind('.') + 1);
    const Json theirs = donor ? first_setting(*donor, leaf) : Json();
    if (leaf == "num_nextn_predict_layers" || leaf == "mtp_num_hidden_layers" || leaf == "num_mtp_modules") {
      const bool unchanged = a != before.end() && found && a->second == *found;
      const bool right = found && (*found == Json(shown.drafts.size()) || (donor && *found == theirs));
      const bool changed = shown.drafts != of_base.drafts;
      if (!right && !(unchanged && !changed)) wrong(key, fmt::format("{}", shown.drafts.size()), found);
    } else if (leaf == "num_hidden_layers" && shown.main != of_base.main) {
      if (!found || *found != Json(shown.main.size()))
        wrong(key, fmt::format("{}", shown.main.size()), found);
    } else if (a != before.end() && found && a->second == *found) {
      const bool count = leaf == "num_experts" || leaf == "num_local_experts" || leaf == "n_routed_experts" ||
                         leaf == "moe_num_experts";
      if (edit.kind == Edit::Kind::kDropExperts && count)
        wrong(key, fmt::format("{}", edit.experts.begin()->second.size()), found);
    } else if (switches.explains(leaf, a == before.end() ? Json() : a->second, found ? *found : Json())) {
      // The modules that the key announces were dropped or added.
    } else if (edit.kind == Edit::Kind::kDropExperts) {
      const bool right = a != before.end() && found && *found == Json(edit.experts.begin()->second.size()) &&
                         leaf.find("experts") != leaf.npos;
      if (!right) wrong(key, "the source's value or the count of experts that stay", found);
    } else if (a == before.end() || !found || !is_resized(*found, a->second, theirs)) {
      wrong(key, "the base's value", found);
    }
  }
}

std::string module_name_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

/// True if loaders treat a module in floats as not quantized, although no list names it.
bool is_known_float(ConfiguredFormats& now, ConfiguredFormats* donor, const std::string& module) {
  if (!now.is_target(module)) return true;
  if (donor == nullptr || !now.is_fp8() || !donor->is_fp8()) return false;
  const std::vector<bool> listed = donor->listed(module);
  return std::find(listed.begin(), listed.end(), true) == listed.end();
}

/// Checks the config's statements about the quantization of modules. Modules from the base must have the
/// base's entries. Modules from the donor must have entries that agree with their tensors. No entry may be
/// for an absent module.
void check_words_of_edit(const Checkpoint& artifact, const EditOrigins& origins, const Checkpoint& base,
                         const Checkpoint* donor, EditProof& proof) {
  ConfiguredFormats before(base), now(artifact);
  std::optional<ConfiguredFormats> of_donor;
  if (donor != nullptr) of_donor.emplace(*donor);
  Problems ignored;
  const auto wrong = [&](const std::string& module, const std::string& expected) {
    differ(proof, "quantization", module,
           fmt::format("expected {} in config.json and hf_quant_config.json, found neither or a difference",
                       expected));
  };
  const auto has = [](const std::vector<bool>& all, bool value) {
    return std::find(all.begin(), all.end(), value) != all.end();
  };
  for (const Linear& m : find_weight_modules(artifact, ignored)) {
    const std::string& name = artifact.tensors()[m.weight].name;
    const auto origin = origins.of(name);
    if (!origin) continue;
    const bool is_float = !m.format->coded;
    if (origin->from == &base && before.is_mixed() == now.is_mixed()) {
      const std::string old = base.tensors()[origin->tensor].name;
      const std::string module = module_name_of(name), from = module_name_of(old);
      const std::vector<bool> then = before.listed(from), listed = now.listed(module);
      const bool as_before = then == listed || !has(listed, !has(then, true));
      if (!as_before && has(listed, !is_float)) wrong(module, "what the base lists of it");
      if (before.entries(from) != now.entries(module)) wrong(module, "the base's entry of it");
    } else if (now.is_mixed()) {
      for (const Json& entry : now.entries(m.name)) {
        if (entry.is_null() != is_float) wrong(m.name, is_float ? "no entry" : "an entry");
      }
    } else if (is_float) {
      const std::vector<bool> listed = now.listed(m.name);
      const bool right = !listed.empty() && !has(listed, false);
      if (!right && !is_known_float(now, of_donor ? &*of_donor : nullptr, m.name))
        wrong(m.name, "it among unquantized modules");
    } else if (has(now.listed(m.name), true) || !now.is_target(m.name)) {
      wrong(m.name, "it as quantized");
    }
  }
  for (const auto& map : now.maps()) {
    for (const auto& [name, entry] : map) {
      if (!now.is_known(name)) wrong(name, "only entries of modules");
    }
  }
}

/// The bytes of a checkpoint's config files, by file name.
std::map<std::string, std::string> read_config_files(const Checkpoint& c) {
  std::map<std::string, std::string> texts;
  std::error_code error;
  for (const char* name : {"config.json", "hf_quant_config.json"}) {
    const auto path = c.path() / name;
    if (c.is_directory() && std::filesystem::exists(path, error)) texts[name] = read_text(path);
  }
  return texts;
}

std::optional<GraftBase> noted_base(const Checkpoint& c) {
  std::error_code error;
  const auto path = c.path() / kManifestName;
  if (!c.is_directory() || !std::filesystem::exists(path, error)) return std::nullopt;
  return read_manifest(path, c.tensors().size()).graft_base;
}

/// Checks that `base` is the base that the graft recorded.
void check_noted_base(const Checkpoint& artifact, const Checkpoint& base, EditProof& proof) {
  const auto noted = noted_base(artifact);
  if (!noted) return;
  if (noted->tensors != hash_descriptions(base.tensors()))
    differ(proof, "manifest", "source.base.tensors_xxh3_128", "expected the base's value, found another");
  if (noted->texts != read_config_files(base))
    differ(proof, "manifest", "source.base.texts", "expected the base's config files, found others");
}

/// True if everything that a graft added was dropped, so that the result is the base of the graft. Then the
/// config files must equal the base's config files, byte for byte.
bool is_graft_undone(const Checkpoint& artifact, const Edit& edit, const Checkpoint& source,
                     EditProof& proof) {
  if (edit.kind != Edit::Kind::kDropModules) return false;
  const auto noted = noted_base(source);
  if (!noted || noted->tensors != hash_descriptions(artifact.tensors())) return false;
  if (noted->texts != read_config_files(artifact)) {
    differ(proof, "config", "config.json, hf_quant_config.json",
           "expected those of the checkpoint from which the source was grafted, found others");
  }
  return true;
}

}  // namespace

EditProof prove_edit(const Checkpoint& artifact, const Edit& edit, const Checkpoint& base,
                     const Checkpoint* donor, Progress& progress) {
  EditProof proof;
  const EditOrigins origins(edit, base, donor);
  std::vector<const Checkpoint*> sources{&base};
  if (donor != nullptr) sources.push_back(donor);
  prove_tensors_of_edit(artifact, origins, sources, progress, proof);
  check_index_of_edit(artifact, proof);
  if (donor != nullptr) {
    const auto stays = [&](const Checkpoint& source, size_t tensor) { return origins.stays(source, tensor); };
    for (LostTerm& term : find_lost_terms(artifact, base, *donor, stays))
      differ(proof, "weight-term", std::move(term.where), std::move(term.problem));
    for (Finding& mixed : find_mixed_modules(artifact, origins, base, *donor))
      proof.differences.push_back(std::move(mixed));
  }
  if (edit.kind == Edit::Kind::kGraft) check_noted_base(artifact, base, proof);
  if (is_graft_undone(artifact, edit, base, proof)) return proof;
  check_settings_of_edit(artifact, edit, base, donor, proof);
  check_words_of_edit(artifact, origins, base, donor, proof);
  return proof;
}

}  // namespace twofour
