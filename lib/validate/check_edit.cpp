#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "formats/naming.h"
#include "lib/checkpoint/linears.h"
#include "lib/checkpoint/model_config.h"
#include "lib/checkpoint/quantization_config.h"
#include "lib/graft/open_edited.h"
#include "lib/names/config_pattern.h"
#include "lib/threads/interrupt.h"
#include "lib/threads/parallel.h"
#include "lib/validate/checks.h"
#include "lib/validate/edit_origin.h"

namespace twofour {
namespace {

constexpr uint64_t kEditPiece = 4u << 20;

/// Reads bytes [begin, begin + out.size()) of what a tensor's origin gives.
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

/// Bytes that differ, in words; empty where none does.
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

/// Every tensor of the result from its origin, every tensor of the sources accounted for.
void prove_tensors_of_edit(const Checkpoint& artifact, const EditOrigins& origins,
                           const std::vector<const Checkpoint*>& sources, Progress& progress,
                           ValidateReport& report) {
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
      problems[i] = fmt::format("expected {}, found {}", describe(from.dtype, all[i]->shape),
                                describe(t.dtype, t.shape));
    }
  }
  parallel_for(count, [&](size_t i) {
    if (all[i] && problems[i].empty()) problems[i] = compare_with_origin(artifact, i, *all[i], progress);
  });
  for (size_t i = 0; i < count; ++i) {
    if (!problems[i].empty()) differ(report, "bytes", artifact.tensors()[i].name, problems[i]);
  }
  for (const Checkpoint* c : sources) {
    for (size_t i = 0; i < used[c].size(); ++i) {
      const int expected = origins.stays(*c, i);
      if (used[c][i] == expected) {
        ++report.source_tensors;
        report.source_bytes += c->tensors()[i].bytes();
        continue;
      }
      differ(report, "source-tensor", c->where(i),
             fmt::format("expected {} times in the artifact, found {} times", expected, used[c][i]));
    }
  }
}

/// The index names the tensors of the files and no others, and their size.
void check_index_of_edit(const Checkpoint& artifact, ValidateReport& report) {
  const auto path = artifact.path() / kIndexName;
  const Json index = parse_json(path.string(), read_text(path, 1u << 30));
  uint64_t bytes = 0;
  for (const TensorInfo& t : artifact.tensors()) bytes += t.bytes();
  std::set<std::string> named;
  for (const auto& [name, file] : index.at("weight_map").items()) named.insert(name);
  for (const TensorInfo& t : artifact.tensors()) {
    if (named.erase(t.name) == 0)
      differ(report, "index", t.name, "expected in the index, found it only in a file");
  }
  for (const std::string& name : named)
    differ(report, "index", name, "expected in a file, found it only in the index");
  if (index.at("metadata").at("total_size") != Json(bytes))
    differ(report, "index", "metadata.total_size", fmt::format("expected {}, found another value", bytes));
}

/// The settings of a config and of those of its language model, quantization left out.
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

/// Layers that names show: of the language model and, at or beyond `layers` or below "mtp.", drafts.
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
      if (module_role(t.name, 0) != ModuleRole::kMtp) continue;  // a tower's
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

/// Whether a list is the first entries of another, or that one and the last entries of a donor's.
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
    // A list of layers' numbers keeps those of the layers that stay.
    return now.is_array() && std::all_of(now.begin(), now.end(), [&](const Json& x) {
             return std::find(before.begin(), before.end(), x) != before.end();
           });
  }
  return text(now, 0, m) == text(before, 0, m) && donor.type() == now.type() && length(donor) == n &&
         text(now, m, n) == text(donor, m, n);
}

/// Settings are the base's, but for counts and lists of layers and experts, which say what the tensors show.
void check_settings_of_edit(const Checkpoint& artifact, const Edit& edit, const Checkpoint& base,
                            const Checkpoint* donor, ValidateReport& report) {
  const auto before = settings_of(base.config()), now = settings_of(artifact.config());
  const ShownLayers shown = shown_layers(artifact, stated_layers(artifact));
  const ShownLayers of_base = shown_layers(base, stated_layers(base));
  const auto wrong = [&](const std::string& key, const std::string& expected, const Json* found) {
    differ(report, "config", "config.json: " + key,
           fmt::format("expected {}, found {}", expected, found ? quoted_setting(*found) : "nothing"));
  };
  std::set<std::string> keys;
  for (const auto& [key, value] : before) keys.insert(key);
  for (const auto& [key, value] : now) keys.insert(key);
  for (const std::string& key : keys) {
    const auto a = before.find(key), b = now.find(key);
    const Json* found = b == now.end() ? nullptr : &b->second;
    const std::string leaf = key.substr(key.rfind('.') + 1);
    const Json& theirs = donor ? model_setting(donor->config(), leaf) : Json();
    if (leaf == "num_nextn_predict_layers" || leaf == "mtp_num_hidden_layers") {
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
    } else if (edit.kind == Edit::Kind::kDropExperts) {
      const bool right = a != before.end() && found && *found == Json(edit.experts.begin()->second.size()) &&
                         leaf.find("experts") != leaf.npos;
      if (!right) wrong(key, "the source's value or the count of experts that stay", found);
    } else if (a == before.end() || !found || !is_resized(*found, a->second, theirs)) {
      wrong(key, "the base's value", found);
    }
  }
}

/// What the config files of a checkpoint say of modules, looked up by name.
class SaidOfModules {
 public:
  explicit SaidOfModules(const Checkpoint& c) {
    if (const auto entry = quantization_entry(c.config())) take(entry->value);
    if (!c.hf_quant_config().is_object()) return;
    const auto nested = c.hf_quant_config().find("quantization");
    take(nested == c.hf_quant_config().end() ? c.hf_quant_config() : *nested);
  }
  bool has_lists() const { return !lists_.empty(); }
  bool is_mixed() const { return !entries_.empty(); }
  /// Whether each of the files lists a module as not quantized.
  std::vector<bool> listed(const std::string& module) {
    std::vector<bool> all;
    for (PatternList& list : lists_) {
      bool hit = false;
      for (std::string name = module; !hit; name = name.substr(0, name.rfind('.'))) {
        hit = list.matches(name);
        if (name.find('.') == name.npos) break;
      }
      all.push_back(hit);
    }
    return all;
  }
  /// Each file's entry of a module, or of one above it; null: none.
  std::vector<Json> entries(const std::string& module) const {
    std::vector<Json> all;
    for (const auto& map : entries_) {
      Json found;
      for (std::string name = module; found.is_null(); name = name.substr(0, name.rfind('.'))) {
        if (const auto at = map.find(name); at != map.end()) found = at->second;
        if (name.find('.') == name.npos) break;
      }
      all.push_back(found);
    }
    return all;
  }
  const std::vector<std::map<std::string, Json>>& maps() const { return entries_; }

 private:
  void take(const Json& holder) {
    std::map<std::string, std::string> texts;
    bool any = false;
    for (const char* key : {"ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"}) {
      const auto at = holder.find(key);
      if (at == holder.end() || !at->is_array()) continue;
      any = true;
      for (const Json& text : *at) {
        if (text.is_string()) texts[text.get<std::string>()] = key;
      }
    }
    if (any) lists_.emplace_back(texts);
    const auto layers = holder.find("quantized_layers");
    if (layers == holder.end() || !layers->is_object()) return;
    auto& map = entries_.emplace_back();
    for (const auto& [name, entry] : layers->items()) map[name] = entry;
  }

  std::vector<PatternList> lists_;
  std::vector<std::map<std::string, Json>> entries_;
};

std::string module_name_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

/// What stays is said to be quantized as the base says it, what comes as the donor's tensors show it, and no
/// entry is of a module that is not there.
void check_words_of_edit(const Checkpoint& artifact, const EditOrigins& origins, const Checkpoint& base,
                         ValidateReport& report) {
  SaidOfModules before(base), now(artifact);
  Problems ignored;
  const auto wrong = [&](const std::string& module, const std::string& expected) {
    differ(report, "quantization", module,
           fmt::format("expected {} in config.json and hf_quant_config.json, found otherwise", expected));
  };
  for (const Linear& m : find_weight_modules(artifact, ignored)) {
    const std::string& name = artifact.tensors()[m.weight].name;
    const auto origin = origins.of(name);
    if (!origin) continue;
    const bool is_float = m.format == WeightFormat::kFloat;
    const bool same_kind = before.is_mixed() == now.is_mixed() && before.has_lists() == now.has_lists();
    if (origin->from == &base && same_kind) {
      const std::string old = base.tensors()[origin->tensor].name;
      const std::string module = module_name_of(name), from = module_name_of(old);
      const std::vector<bool> as_shown(now.listed(module).size(), is_float);
      if (before.listed(from) != now.listed(module) && now.listed(module) != as_shown)
        wrong(module, "what the base lists of it");
      if (before.entries(from) != now.entries(module)) wrong(module, "the base's entry of it");
    } else if (now.is_mixed()) {
      for (const Json& entry : now.entries(m.name)) {
        if (entry.is_null() != is_float) wrong(m.name, is_float ? "no entry" : "an entry");
      }
    } else if (now.has_lists()) {
      for (const bool listed : now.listed(m.name)) {
        if (listed != is_float)
          wrong(m.name, is_float ? "it among what is not quantized" : "it as quantized");
      }
    } else if (!is_float && !quantization_entry(artifact.config())) {
      wrong(m.name, "an entry");
    }
  }
  for (const auto& map : now.maps()) {
    for (const auto& [name, entry] : map) {
      const auto tensors = artifact.tensors();
      const auto at = std::lower_bound(tensors.begin(), tensors.end(), name,
                                       [](const TensorInfo& t, const std::string& n) { return t.name < n; });
      const auto below =
          std::lower_bound(at, tensors.end(), name + ".",
                           [](const TensorInfo& t, const std::string& n) { return t.name < n; });
      const bool known = (at != tensors.end() && at->name == name) ||
                         (below != tensors.end() && below->name.starts_with(name + "."));
      if (!known) wrong(name, "entries of modules alone");
    }
  }
}

}  // namespace

void prove_edit(const Checkpoint& artifact, const Edit& edit, const Checkpoint& base, const Checkpoint* donor,
                Progress& progress, ValidateReport& report) {
  const EditOrigins origins(edit, base, donor);
  std::vector<const Checkpoint*> sources{&base};
  if (donor != nullptr) sources.push_back(donor);
  for (const TensorInfo& t : artifact.tensors()) progress.total += 2 * t.bytes();
  progress.phase = "deriving";
  prove_tensors_of_edit(artifact, origins, sources, progress, report);
  check_index_of_edit(artifact, report);
  check_settings_of_edit(artifact, edit, base, donor, report);
  check_words_of_edit(artifact, origins, base, report);
}

void validate_edit(const Checkpoint& artifact, const Manifest& manifest, const std::filesystem::path& source,
                   const ValidateOptions& options, Progress& progress, ValidateReport& report) {
  const Edit& edit = manifest.recipe.edit;
  const bool grafts = edit.kind == Edit::Kind::kGraft;
  if (grafts && options.donor.empty()) {
    throw Error(
        fmt::format("{}: expected --donor PATH, the checkpoint that modules were taken from, found none",
                    artifact.path().string()));
  }
  {
    const Checkpoint base = Checkpoint::open(source, options.io);
    std::optional<Checkpoint> donor;
    if (grafts) donor.emplace(Checkpoint::open(options.donor, options.io));
    prove_edit(artifact, edit, base, donor ? &*donor : nullptr, progress, report);
  }
  const Checkpoint view = open_edited(source, options.donor, edit, options.io);
  const Plan plan = make_plan(view, manifest.recipe);
  check_files(artifact, view, plan, manifest, report);
  if (report.differences.empty()) check_manifest(artifact, view, plan, manifest, {}, progress, report);
}

}  // namespace twofour
