#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/module_names.h"
#include "lib/base/io/file.h"
#include "lib/prove/mends/prove_repair.h"
#include "lib/source/checkpoint/weight_header.h"

namespace twofour {
namespace {

bool are_same(const Checkpoint& c, const LooseFiles::Duplicate& one) {
  const TensorInfo& t = c.tensors()[one.of];
  if (t.dtype != one.info.dtype || t.shape != one.info.shape) return false;
  constexpr uint64_t kPiece = 1u << 20;
  std::vector<uint8_t> a, b;
  const Shard& shard = c.shards()[one.shard];
  for (uint64_t at = 0; at < t.bytes(); at += kPiece) {
    a.resize(std::min(kPiece, t.bytes() - at));
    b.resize(a.size());
    c.read(one.of, at, a);
    shard.file.read(shard.data_begin + one.info.begin + at, b);
    if (a != b) return false;
  }
  return true;
}

std::string name_of_place(const std::string& place) { return place.substr(place.find(": ") + 2); }

/// The parts of names that wrappers of modules add.
constexpr std::string_view kWrapperParts[] = {"_orig_mod",       "_fsdp_wrapped_module",
                                              "module",          "_checkpoint_wrapped_module",
                                              "_forward_module", "base_model"};

std::string without_wrappers(std::string_view name) {
  std::string kept;
  bool was_base = false;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    const bool wraps =
        std::find(std::begin(kWrapperParts), std::end(kWrapperParts), part) != std::end(kWrapperParts);
    if (!wraps && !(was_base && part == "model")) kept += (kept.empty() ? "" : ".") + std::string(part);
    was_base = part == "base_model";
    at = end + 1;
  }
  return kept;
}

}  // namespace

void follow_files(MendedState& state, const MendNote* note, const Checkpoint& artifact,
                  const Checkpoint& source, const LooseFiles& loose, std::set<std::string>& beside) {
  static const MendNote kNone;
  const MendNote& noted = note == nullptr ? kNone : *note;
  std::set<std::string> written, dropped = noted.dropped;
  for (const Shard& s : artifact.shards()) written.insert(s.name);
  for (const uint32_t file : loose.unindexed) {
    const std::string& name = source.shards()[file].name;
    if (noted.files.contains(name)) continue;
    const auto there = artifact.path() / name;
    std::error_code error;
    const bool is_kept = !written.contains(name) && std::filesystem::exists(there, error);
    if (!is_kept) {
      state.differ("mend", name, "expected the record of a mend (files), or the file, found none");
      continue;
    }
    beside.insert(name);
    std::erase_if(state.tensors,
                  [&](const auto& entry) { return source.shard_index_of(entry.second.tensor) == file; });
  }
  for (const LooseFiles::Duplicate& one : loose.duplicates) {
    const std::string& file = source.shards()[one.shard].name;
    if (beside.contains(file)) continue;
    const std::string place = file + ": " + one.info.name;
    if (dropped.erase(place) == 0)
      state.differ("mend", place, "expected it among what a mend (files) dropped, found not");
    if (!are_same(source, one))
      state.differ("mend", place, "expected the bytes of the tensor of that name, found others dropped");
  }
  for (const std::string& place : dropped)
    state.differ("mend", place, "expected a tensor that is there twice, found it dropped");
  for (const std::string& name : noted.files) {
    const bool is_index = name.ends_with(".safetensors.index.json");
    const bool is_loose = std::any_of(loose.unindexed.begin(), loose.unindexed.end(),
                                      [&](uint32_t f) { return source.shards()[f].name == name; });
    if (!is_index && !is_loose)
      state.differ("mend", name, "expected a file that the index does not name, found another in a record");
  }
}

void follow_names(MendedState& state, const MendNote* note) {
  if (note == nullptr) return;
  const std::string& prefix = note->prefix;
  std::map<std::string, MendedTensor> renamed;
  bool any = false;
  for (auto& [name, t] : state.tensors) {
    std::string now = prefix == "wrappers"       ? without_wrappers(name)
                      : name.starts_with(prefix) ? name.substr(prefix.size())
                                                 : name;
    any = any || now != name;
    t.info.name = now;
    if (!renamed.emplace(now, std::move(t)).second)
      state.differ("mend", now, "expected one tensor of this name without prefixes, found two");
  }
  if (prefix != "wrappers" && !prefix.empty()) {
    const bool is_of_layers = std::any_of(state.tensors.begin(), state.tensors.end(), [&](const auto& entry) {
      return entry.first.starts_with("model.layers.") && !entry.first.starts_with(prefix);
    });
    if (!prefix.ends_with('.') || is_of_layers)
      state.differ("mend", prefix, "expected a prefix of all layers, found a layer without it");
  }
  if (!any || prefix.empty())
    state.differ("mend", prefix, "expected a prefix of names in the source, found none");
  state.tensors = std::move(renamed);
}

void follow_donor_tensors(MendedState& state, const MendNote* note, const Checkpoint& source,
                          const LooseFiles& loose) {
  if (note == nullptr) return;
  for (const std::string& file : note->files) {
    std::error_code error;
    if (!std::filesystem::exists(source.path() / file, error) ||
        fault_of_weight_file(source.path() / file).empty())
      state.differ("mend", file, "expected a weight file that cannot be read, found another in a record");
  }
  std::set<std::string> modules;
  for (const std::string& name : note->tensors) modules.insert(std::string(module_of(name)));
  std::set<std::string> endings;  // the last parts of names in the source
  for (const auto& [name, t] : state.tensors) endings.insert(name.substr(name.rfind('.') + 1));
  // The index names tensors of files that are lost.
  for (const std::string& name : lost_tensors(source, loose.index))
    endings.insert(name.substr(name.rfind('.') + 1));
  std::map<std::string, std::map<std::string, MendedTensor>> gone;  // by module
  std::map<std::string, std::string> places;  // names in the state, by file and name in the source
  for (const auto& [name, t] : state.tensors) {
    if (t.from == &source)
      places[source.shard_of(t.tensor).name + ": " + source.tensors()[t.tensor].name] = name;
  }
  for (const std::string& place : note->dropped) {
    const auto name = places.find(place);
    const auto at = name == places.end() ? state.tensors.end() : state.tensors.find(name->second);
    if (at == state.tensors.end() || !modules.contains(std::string(module_of(at->first)))) {
      state.differ("mend", name_of_place(place),
                   "expected a tensor of a module that the donor gave, found it dropped");
      continue;
    }
    gone[std::string(module_of(at->first))].insert(*at);
    state.tensors.erase(at);
  }
  for (const std::string& name : note->tensors) {
    const auto at = state.donor == nullptr ? std::nullopt : state.donor->find(name);
    if (!at) {
      state.differ("mend", name,
                   "expected the donor to have what a record takes from it, found no such tensor");
      continue;
    }
    const MendedTensor t{state.donor->tensors()[*at], state.donor, *at};
    const bool is_packed = t.info.dtype == DType::kU8 || name.find("_scale") != name.npos;
    if (is_packed && !endings.contains(name.substr(name.rfind('.') + 1)))
      state.differ("mend", name, "expected tensors of the source's dialect from the donor, found another's");
    if (!state.tensors.emplace(name, t).second)
      state.differ("mend", name, "expected a tensor that the source lacks, found it there");
  }
  // A module that the donor has in the same types and shapes needs a reason.
  std::map<std::string, size_t> of_modules;  // tensors of the donor
  if (state.donor != nullptr) {
    for (const TensorInfo& t : state.donor->tensors()) ++of_modules[std::string(module_of(t.name))];
  }
  for (const auto& [module, tensors] : gone) {
    bool is_alike = true;
    for (const auto& [name, t] : tensors) {
      const auto at = state.tensors.find(name);
      is_alike = is_alike && at != state.tensors.end() && at->second.info.dtype == t.info.dtype &&
                 at->second.info.shape == t.info.shape;
      const std::vector<float> values = t.info.bytes() <= 4096 ? t.floats() : std::vector<float>();
      is_alike = is_alike &&
                 std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x) && x > 0; });
    }
    if (is_alike && of_modules[module] == tensors.size())
      state.differ("mend", module,
                   "expected a fault of this module in the source, found it replaced without");
  }
}

}  // namespace twofour
