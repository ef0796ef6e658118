#include "lib/output/shard_record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/threads/interrupt.h"
#include "lib/threads/parallel.h"
#include "lib/read_error.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

// --- As text ---

constexpr size_t kDigits = 32;  // of a hash

/// Hashes one behind the other: a file may have 100,000.
std::string hashes_to_text(std::span<const Hash128> hashes) {
  std::string text;
  text.reserve(hashes.size() * kDigits);
  for (const Hash128& hash : hashes) text += hash.hex();
  return text;
}

std::vector<Hash128> hashes_from_text(std::string_view where, std::string_view text, size_t count) {
  if (text.size() != count * kDigits) {
    throw Error(fmt::format("{}: expected {} hashes, found {} digits", where, count, text.size()));
  }
  std::vector<Hash128> hashes;
  hashes.reserve(count);
  for (; !text.empty(); text.remove_prefix(kDigits)) {
    hashes.push_back(parse_hash(where, std::string(text.substr(0, kDigits))));
  }
  return hashes;
}

std::vector<Hash128> flat(std::span<const SliceHashes> slices) {
  std::vector<Hash128> hashes;
  for (const SliceHashes& s : slices) hashes.insert(hashes.end(), {s.codes, s.scales});
  return hashes;
}

// Shortest decimals that read back as the same double.
Json quality_to_json(const Quality& q) {
  return {q.energy, q.kept_energy, q.quads, q.tied, q.fold_energy, q.fold_error};
}

Quality quality_from_json(const Json& json) {
  return {.energy = json.at(0).get<double>(),
          .kept_energy = json.at(1).get<double>(),
          .quads = whole_number<uint64_t>(json.at(2)),
          .tied = whole_number<uint64_t>(json.at(3)),
          .fold_energy = json.at(4).get<double>(),
          .fold_error = json.at(5).get<double>()};
}

Json error_to_json(const EncodeError& e) { return {e.energy, e.error}; }
EncodeError error_from_json(const Json& json) { return {json.at(0).get<double>(), json.at(1).get<double>()}; }

Json matrix_to_json(const EncodedResult& r) {
  Json findings = Json::array();
  for (const Finding& f : r.findings) {
    findings.push_back({static_cast<int>(f.severity), f.id, f.where, f.message});
  }
  Json json = {{"source", r.source.hex()},
               {"global_scale", r.global_scale},
               {"cast", r.cast},
               {"error", error_to_json(r.error)},
               {"pruned_after", error_to_json(r.pruned_after)},
               {"findings", std::move(findings)}};
  if (r.kept.compared) json["kept"] = {r.kept.codes, r.kept.scales, r.kept.bytes, r.kept.first};
  return json;
}

EncodedResult matrix_from_json(std::string_view where, const Json& json) {
  EncodedResult r;
  r.source = parse_hash(where, json.at("source").get<std::string>());
  r.global_scale = whole_number<uint32_t>(json.at("global_scale"));
  r.cast = json.at("cast").get<bool>();
  r.error = error_from_json(json.at("error"));
  r.pruned_after = error_from_json(json.at("pruned_after"));
  for (const Json& f : json.at("findings")) {
    const auto severity = static_cast<Severity>(whole_number<int>(f.at(0)));
    r.findings.push_back(
        {severity, f.at(1).get<std::string>(), f.at(2).get<std::string>(), f.at(3).get<std::string>()});
  }
  if (const auto kept = json.find("kept"); kept != json.end()) {
    r.kept = {true, whole_number<uint64_t>(kept->at(0)), whole_number<uint64_t>(kept->at(1)),
              whole_number<uint64_t>(kept->at(2)), kept->at(3).get<std::string>()};
  }
  return r;
}

/// A place in one of the plan's lists, by the name that it has there.
template <class List>
size_t index_from_json(std::string_view where, const Json& json, const List& list, const char* what) {
  const auto index = whole_number<uint64_t>(json.at("index"));
  if (index < list.size()) return index;
  throw Error(fmt::format("{}: expected one of {} {}, found number {}", where, list.size(), what, index));
}

ShardRecord record_from_json(std::string_view where, const Plan& plan, const Json& json) {
  ShardRecord record;
  const auto name = json.at("file").get<std::string>();
  while (record.file < plan.files.size() && plan.files[record.file].name != name) ++record.file;
  if (record.file == plan.files.size() ||
      json.at("header").get<std::string>() != hash_text(plan.files[record.file].header).hex()) {
    throw Error(fmt::format("{}: expected a weight file of this conversion, found {}", where,
                            json_quote_short(name)));
  }
  record.outputs = hashes_from_text(where, json.at("outputs").get_ref<const std::string&>(),
                                    plan.files[record.file].tensor_count);
  for (const Json& t : json.at("targets")) {
    const size_t index = index_from_json(where, t, plan.targets, "targets");
    const auto hashes = hashes_from_text(where, t.at("slices").get_ref<const std::string&>(),
                                         2 * plan.targets[index].sources.size());
    std::vector<SliceHashes> slices;
    for (size_t i = 0; i < hashes.size(); i += 2) slices.push_back({hashes[i], hashes[i + 1]});
    record.targets.push_back({index, quality_from_json(t.at("quality")), std::move(slices)});
  }
  for (const Json& m : json.at("modules")) {
    const auto hashes = hashes_from_text(where, m.at("source").get_ref<const std::string&>(), 2);
    record.modules.push_back({index_from_json(where, m, plan.modules, "modules"),
                              quality_from_json(m.at("quality")),
                              {hashes[0], hashes[1]}});
  }
  for (const Json& m : json.at("matrices")) {
    record.matrices.push_back(
        {index_from_json(where, m, plan.matrices, "matrices"), matrix_from_json(where, m.at("result"))});
  }
  return record;
}

// --- Joined ---

/// Notes what is known of entry `index`; several files may say it, but all the same.
template <class T>
void join(std::vector<const T*>& known, const T& entry, const std::string& name) {
  const T*& at = known[entry.index];
  if (at != nullptr && *at != entry) {
    throw Error(fmt::format("{}: expected the same in all records that name it, found them different", name));
  }
  at = &entry;
}

[[noreturn]] void missing(const std::string& name) {
  throw Error(fmt::format("{}: expected a record of it, found none", name));
}

}  // namespace

std::string format_shard_record(const Plan& plan, const ShardRecord& record) {
  const OutputFile& file = plan.files[record.file];
  Json targets = Json::array(), modules = Json::array(), matrices = Json::array();
  for (const ShardRecord::Target& t : record.targets) {
    targets.push_back({{"index", t.index},
                       {"quality", quality_to_json(t.quality)},
                       {"slices", hashes_to_text(flat(t.slices))}});
  }
  for (const ShardRecord::Module& m : record.modules) {
    modules.push_back({{"index", m.index},
                       {"quality", quality_to_json(m.quality)},
                       {"source", hashes_to_text(flat({&m.source, 1}))}});
  }
  for (const ShardRecord::Matrix& m : record.matrices) {
    matrices.push_back({{"index", m.index}, {"result", matrix_to_json(m.result)}});
  }
  const Json json = {{"file", file.name},
                     {"header", hash_text(file.header).hex()},
                     {"outputs", hashes_to_text(record.outputs)},
                     {"targets", std::move(targets)},
                     {"modules", std::move(modules)},
                     {"matrices", std::move(matrices)}};
  return json_line(json);
}

ShardRecord parse_shard_record(std::string_view where, const Plan& plan, std::string_view text) {
  try {
    return record_from_json(where, plan, Json::parse(text.begin(), text.end()));
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: expected a record of a weight file, found something else", where));
  }
}

InputFile open_shard(const fs::path& directory, const OutputFile& file) {
  if (fs::is_symlink(directory / file.name)) {
    throw Error(fmt::format("{}: expected a file of our own, found a symbolic link",
                            (directory / file.name).string()));
  }
  InputFile opened(directory / file.name, Io::kBuffered);
  if (opened.size() != file.size()) {
    throw Error(
        fmt::format("{}: expected {} bytes, found {}", opened.path().string(), file.size(), opened.size()));
  }
  std::string header(file.header.size(), '\0');
  opened.read(0, {reinterpret_cast<uint8_t*>(header.data()), header.size()});
  if (header != file.header) {
    throw Error(
        fmt::format("{}: expected the header that was planned, found another", opened.path().string()));
  }
  return opened;
}

std::vector<std::string> check_shards(const fs::path& directory, const Plan& plan,
                                      std::span<const ShardRecord> records, Progress& progress) {
  std::vector<std::string> wrong(records.size());
  std::vector<std::optional<InputFile>> files(records.size());
  struct Item {
    size_t record, tensor;  ///< in the file
  };
  std::vector<Item> items;
  for (size_t r = 0; r < records.size(); ++r) {
    const OutputFile& file = plan.files[records[r].file];
    try {
      files[r].emplace(open_shard(directory, file));
      for (size_t i = 0; i < file.tensor_count; ++i) items.push_back({r, i});
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      wrong[r] = e.what();
    }
  }
  const auto check = [&](const Item& item) {
    const InputFile& file = *files[item.record];
    const OutputFile& planned = plan.files[records[item.record].file];
    const TensorInfo& tensor = plan.tensors[planned.first_tensor + item.tensor].info;
    const Hash128 found =
        hash_range(file, planned.header.size() + tensor.begin, tensor.bytes(), [&](uint64_t bytes) {
          check_interrupt();
          progress.done += bytes;
        });
    const Hash128& expected = records[item.record].outputs[item.tensor];
    if (found == expected) return std::string();
    return fmt::format("{}: {}: expected hash {} as written, found {}", file.path().string(), tensor.name,
                       expected.hex(), found.hex());
  };
  std::vector<std::string> found(items.size());
  parallel_for(items.size(), [&](size_t i) {
    try {
      found[i] = check(items[i]);
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      found[i] = e.what();
    }
  });
  for (size_t i = 0; i < items.size(); ++i) {
    if (wrong[items[i].record].empty()) wrong[items[i].record] = std::move(found[i]);
  }
  return wrong;
}

ConversionRecord join_records(const Checkpoint& source, const Plan& plan,
                              std::span<const ShardRecord> records) {
  ConversionRecord joined;
  joined.outputs.resize(plan.tensors.size());
  joined.modules.resize(plan.modules.size());
  std::vector<const ShardRecord*> files(plan.files.size());
  std::vector<const ShardRecord::Target*> targets(plan.targets.size());
  std::vector<const ShardRecord::Module*> modules(plan.modules.size());
  std::vector<const ShardRecord::Matrix*> matrices(plan.matrices.size());
  for (const ShardRecord& record : records) {
    const OutputFile& file = plan.files[record.file];
    if (files[record.file] != nullptr && *files[record.file] != record) {
      throw Error(fmt::format("{}: expected one record, found two that differ", file.name));
    }
    files[record.file] = &record;
    std::copy(record.outputs.begin(), record.outputs.end(),
              joined.outputs.begin() + static_cast<std::ptrdiff_t>(file.first_tensor));
    for (const auto& t : record.targets) join(targets, t, plan.targets[t.index].name);
    for (const auto& m : record.matrices) join(matrices, m, plan.matrices[m.index].name);
    for (const auto& m : record.modules) {
      join(modules, m, source.nvfp4_modules()[plan.modules[m.index].module].name);
    }
  }
  for (size_t f = 0; f < files.size(); ++f) {
    if (files[f] == nullptr) missing(plan.files[f].name);
  }
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] == nullptr) missing(plan.targets[t].name);
    joined.slices.push_back(targets[t]->slices);
    joined.quality.push_back(targets[t]->quality);
  }
  for (size_t m = 0; m < modules.size(); ++m) {
    joined.quality.push_back(modules[m] != nullptr ? modules[m]->quality : Quality{});
    if (modules[m] != nullptr) joined.modules[m] = modules[m]->source;
  }
  // What goes along as it is has the same hash on both sides.
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const OutputTensor& t = plan.tensors[i];
    if (t.module == OutputTensor::kNoModule) continue;
    const Nvfp4Module& m = source.nvfp4_modules()[plan.modules[t.module].module];
    if (t.op == Op::kBlockScales) joined.modules[t.module].scales = joined.outputs[i];
    if (t.op == Op::kNone && t.source == m.codes) joined.modules[t.module].codes = joined.outputs[i];
  }
  for (size_t m = 0; m < matrices.size(); ++m) {
    if (matrices[m] == nullptr) missing(plan.matrices[m].name);
    joined.matrices.push_back(matrices[m]->result);
  }
  return joined;
}

}  // namespace twofour
