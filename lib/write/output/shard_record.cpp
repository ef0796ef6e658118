#include "lib/write/output/shard_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/parallel.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

// --- As text ---

constexpr size_t kDigits = 32;  // digits of a hash

/// The hashes as text without separators, since a file may have 100,000 of them.
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
  for (const Json& r : json.at("results")) {
    const auto index = whole_number<uint32_t>(r.at("transformation"));
    if (index >= plan.transformations.size() || record.results.contains(index)) {
      throw Error(fmt::format("{}: expected one of {} transformations, each once, found number {}", where,
                              plan.transformations.size(), index));
    }
    plan.transformations[index]->check_result(r.at("result"));
    record.results[index] = r.at("result");
  }
  return record;
}

}  // namespace

std::string format_shard_record(const Plan& plan, const ShardRecord& record) {
  const OutputFile& file = plan.files[record.file];
  Json results = Json::array();
  for (const auto& [index, result] : record.results) {
    results.push_back({{"transformation", index}, {"result", result}});
  }
  return json_line({{"file", file.name},
                    {"header", hash_text(file.header).hex()},
                    {"outputs", hashes_to_text(record.outputs)},
                    {"results", std::move(results)}});
}

ShardRecord parse_shard_record(std::string_view where, const Plan& plan, std::string_view text) {
  try {
    return record_from_json(where, plan, Json::parse(text));
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: expected a record of a weight file, found something else", where));
  } catch (const Error& e) {
    if (std::string_view(e.what()).starts_with(where)) throw;
    throw Error(fmt::format("{}: {}", where, e.what()));
  }
}

InputFile open_shard(const fs::path& directory, const OutputFile& file) {
  if (fs::is_symlink(directory / file.name)) {
    throw Error(fmt::format("{}: expected a file that twofour wrote, found a symbolic link",
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
    size_t record, tensor;  ///< index of the record, and of the tensor in the file
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

ConversionRecord join_records(const Plan& plan, std::span<const ShardRecord> records) {
  ConversionRecord joined;
  joined.outputs.resize(plan.tensors.size());
  std::vector<const ShardRecord*> files(plan.files.size());
  for (const ShardRecord& record : records) {
    const OutputFile& file = plan.files[record.file];
    if (files[record.file] != nullptr && *files[record.file] != record) {
      throw Error(fmt::format("{}: expected one record, found two that differ", file.name));
    }
    files[record.file] = &record;
    std::copy(record.outputs.begin(), record.outputs.end(),
              joined.outputs.begin() + static_cast<std::ptrdiff_t>(file.first_tensor));
    for (const auto& [index, result] : record.results) {
      if (plan.tensors[plan.parts_of(index)[0]].file != record.file) {
        throw Error(
            fmt::format("{}: expected results of the matrices that begin in it, found others", file.name));
      }
      joined.results[index] = result;
    }
  }
  for (size_t f = 0; f < files.size(); ++f) {
    if (files[f] == nullptr) {
      throw Error(fmt::format("{}: expected a record of it, found none", plan.files[f].name));
    }
  }
  for (size_t t = 0; t < plan.transformations.size(); ++t) {
    const bool expected = !plan.transformations[t]->empty_result().is_null();
    if (expected == joined.results.contains(static_cast<uint32_t>(t))) continue;
    throw Error(fmt::format("{}: expected a record of its results, found none",
                            plan.tensors[plan.parts_of(t)[0]].info.name));
  }
  return joined;
}

}  // namespace twofour
