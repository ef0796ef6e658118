#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/source/checkpoint/beside.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/index_file.h"
#include "lib/source/checkpoint/weight_header.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// True if an index puts a tensor into that file.
bool is_indexed(const IndexFile* index, const std::string& tensor, const std::string& file) {
  if (index == nullptr) return false;
  const auto at =
      std::lower_bound(index->entries.begin(), index->entries.end(), tensor,
                       [](const IndexFile::Entry& e, const std::string& n) { return e.tensor < n; });
  return at != index->entries.end() && at->tensor == tensor && index->files[at->file] == file;
}

/// The usable index of a directory, with its name: the one with the usual name, otherwise the only one.
std::optional<std::pair<std::string, IndexFile>> read_usable_index(const fs::path& path) {
  const auto names = list_files(path, ".safetensors.index.json");
  const bool usual = std::find(names.begin(), names.end(), kIndexName) != names.end();
  if (!usual && names.size() != 1) return std::nullopt;
  const std::string name = usual ? kIndexName : names[0];
  try {
    return std::pair{name, read_index_file(path / name)};
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Returns the index file to read: the one with the usual name, otherwise the only one. nullopt: there is
/// none.
std::optional<std::string> find_index(const fs::path& directory) {
  const auto names = list_files(directory, ".safetensors.index.json");
  if (names.empty()) return std::nullopt;
  if (std::find(names.begin(), names.end(), kIndexName) != names.end()) return kIndexName;
  if (names.size() > 1) {
    throw Error(fmt::format("{}: expected one index, found {} ({}, {}, ...)", directory.string(),
                            names.size(), names[0], names[1]));
  }
  return names[0];
}

}  // namespace

fs::path checkpoint_directory(const fs::path& path) {
  const std::string name = path.filename().string();
  const bool is_part = name == "config.json" || name.ends_with(".safetensors.index.json");
  return is_part && is_file(path) ? folder_of(path) : path;
}

std::optional<fs::path> directory_of_lone_shard(const fs::path& file) {
  constexpr std::string_view kSuffix = ".safetensors";
  if (!file.filename().string().ends_with(kSuffix) || !is_file(file)) return std::nullopt;
  fs::path folder = folder_of(file);
  if (!is_file(folder / "config.json") || list_files(folder, kSuffix).size() != 1) return std::nullopt;
  return folder;
}

Checkpoint Checkpoint::open(const fs::path& given, Io io, ZeroPoints zero_points) {
  const fs::path path = checkpoint_directory(given);
  Checkpoint c;
  c.zero_points_ = zero_points;
  c.path_ = path;
  c.states_ = std::make_shared<const FileStates>(std::vector{path});
  c.is_directory_ = fs::is_directory(status_of(path));
  if (!c.is_directory_) {
    c.path_ = path.has_parent_path() ? path.parent_path() : fs::path(".");
    c.open_shards({path.filename().string()}, io);
    c.config_ = c.hf_quant_config_ = std::make_shared<Json>(nullptr);
    c.beside_ = std::make_shared<Beside>();
  } else {
    refuse_unfinished(path);
    c.config_ = c.read_config("config.json");
    c.hf_quant_config_ = c.read_config("hf_quant_config.json");
    const auto present = list_files(path, ".safetensors");
    if (const auto index_name = find_index(path)) {
      c.open_indexed(*index_name, read_index_file(path / *index_name), io);
      for (const std::string& name : present) {
        const bool known =
            std::any_of(c.shards_.begin(), c.shards_.end(), [&](auto& s) { return s.name == name; });
        if (!known) {
          c.findings_.push_back({Severity::kWarning, "unindexed-file", name,
                                 fmt::format("not named by {}: neither read nor copied", *index_name)});
        }
      }
    } else if (present.empty()) {
      throw Error(
          fmt::format("{}: expected *.safetensors files, found {}", path.string(), where_weights_are(path)));
    } else {
      c.open_shards(present, io);
    }
  }
  c.find_modules();
  c.note_incomplete_modules();
  c.states_->check_unchanged();
  return c;
}

Checkpoint Checkpoint::open_loosely(const fs::path& path, Io io, LooseFiles& found) {
  Checkpoint c;
  c.path_ = path;
  c.states_ = std::make_shared<const FileStates>(std::vector{path});
  c.is_directory_ = fs::is_directory(status_of(path));
  if (!c.is_directory_)
    throw Error(fmt::format("{}: expected a directory with a checkpoint, found a file", path.string()));
  refuse_unfinished(path);
  for (const auto& [name, config] :
       {std::pair{"config.json", &c.config_}, {"hf_quant_config.json", &c.hf_quant_config_}}) {
    try {
      *config = c.read_config(name);
    } catch (const ReadError&) {
      throw;
    } catch (const Error&) {
      *config = std::make_shared<Json>(nullptr);
      found.unreadable.insert(name);
    }
  }
  const auto index = read_usable_index(path);
  if (index) found.index = index->first;
  std::vector<std::string> names = list_files(path, ".safetensors");
  const auto is_named = [&](const std::string& name) {
    return !index || std::binary_search(index->second.files.begin(), index->second.files.end(), name);
  };
  std::erase_if(names, [&](const std::string& name) { return found.unreadable.contains(name); });
  // Mistral's own save (consolidated*) may be beside the usual files.
  std::erase_if(names,
                [&](const std::string& name) { return name.starts_with("consolidated") && !is_named(name); });
  if (names.empty())
    throw Error(
        fmt::format("{}: expected *.safetensors files, found {}", path.string(), where_weights_are(path)));
  c.open_shards(names, io, &found, index ? &index->second : nullptr);
  for (uint32_t i = 0; i < c.shards_.size(); ++i) {
    if (!is_named(c.shards_[i].name)) found.unindexed.push_back(i);
  }
  c.states_->check_unchanged();
  return c;
}

void Checkpoint::open_indexed(const std::string& index_name, const IndexFile& index, Io io) {
  const std::string where = (path_ / index_name).string();
  for (const std::string& file : index.files) {
    if (is_absent(path_ / file)) {
      const std::string link = dangling_link(path_ / file);
      throw Error(fmt::format("{}: expected the file {}, which it names, found {}", where, file,
                              link.empty() ? "none" : link));
    }
  }
  open_shards(index.files, io);
  std::vector<bool> named(tensors_.size());
  for (const auto& [tensor, file] : index.entries) {
    const auto at = find(tensor);
    if (!at) {
      throw Error(fmt::format("{}: expected {} in {}, found it in no file", where, json_quote(tensor),
                              index.files[file]));
    }
    if (shard_of(*at).name != index.files[file]) {
      throw Error(fmt::format("{}: expected {} in {}, found it in {}", where, json_quote(tensor),
                              index.files[file], shard_of(*at).name));
    }
    named[*at] = true;
  }
  const auto missing = std::count(named.begin(), named.end(), false);
  if (missing > 0) {
    const auto first = static_cast<size_t>(std::find(named.begin(), named.end(), false) - named.begin());
    findings_.push_back(
        {Severity::kWarning, "incomplete-index", index_name,
         fmt::format("{} of {} tensors are missing from it, the first {}; taken from the headers", missing,
                     tensors_.size(), tensors_[first].name)});
  }
}

void Checkpoint::open_shards(const std::vector<std::string>& names, Io io, LooseFiles* loose,
                             const IndexFile* index) {
  const auto windows = io == Io::kCached ? nullptr : std::make_shared<ReadWindows>();
  std::vector<TensorInfo> tensors;
  std::vector<uint32_t> owners;
  for (const std::string& name : names) {
    check_interrupt();
    InputFile file(path_ / name, io, windows);
    auto [header, head] = read_weight_header(file);
    const uint64_t data_begin = head.size();
    owners.insert(owners.end(), header.tensors.size(), static_cast<uint32_t>(shards_.size()));
    const size_t count = header.tensors.size();
    std::move(header.tensors.begin(), header.tensors.end(), std::back_inserter(tensors));
    shards_.push_back(
        {std::move(file), name, data_begin, hash_text(head), count, std::move(header.metadata), {}});
    digest_metadata(shards_.back());
  }
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return std::tie(tensors[a].name, a) < std::tie(tensors[b].name, b); });
  tensors_.reserve(order.size());
  shard_of_.reserve(order.size());
  for (const size_t i : order) {
    if (!tensors_.empty() && tensors_.back().name == tensors[i].name) {
      if (loose == nullptr) {
        throw Error(fmt::format("{}: {}: expected one tensor of this name, found a second in {}",
                                shards_[owners[i]].name, json_quote(tensors[i].name),
                                shards_[shard_of_.back()].name));
      }
      if (is_indexed(index, tensors[i].name, shards_[owners[i]].name)) {
        std::swap(tensors_.back(), tensors[i]);
        std::swap(shard_of_.back(), owners[i]);
      }
      loose->duplicates.push_back({std::move(tensors[i]), owners[i], tensors_.size() - 1});
      continue;
    }
    tensors_.push_back(std::move(tensors[i]));
    shard_of_.push_back(owners[i]);
  }
}

void Checkpoint::find_modules() {
  const auto where = [&](size_t i) { return shard_of(i).name; };
  if (!source_ || !source_->may_be_broken()) {
    modules_ = find_nvfp4_modules(tensors_, where);
    return;
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    try {
      if (auto module = read_nvfp4_module(tensors_, i, where)) modules_.push_back(std::move(*module));
    } catch (const Error&) {
      continue;  // lint reports it
    }
  }
}

void Checkpoint::note_incomplete_modules() {
  for (const Nvfp4Dialect& dialect : nvfp4_dialects()) {
    if (dialect.known_by_input) continue;  // its names are another dialect's
    for (const TensorInfo& scale : tensors_) {
      if (scale.dtype != DType::kF8E4M3 || !scale.name.ends_with(dialect.block_scale)) continue;
      const std::string module =
          scale.name.substr(0, scale.name.size() - std::string_view(dialect.block_scale).size());
      const auto codes = find(module + dialect.codes);
      const bool is_nvfp4 = codes && tensors_[*codes].dtype == DType::kU8;
      if (!is_nvfp4 || find(module + dialect.global_scale)) continue;
      findings_.push_back({Severity::kWarning, "incomplete-module", module,
                           fmt::format("has NVFP4 codes and block scales but no {}: copied unchanged",
                                       dialect.global_scale)});
    }
  }
}

}  // namespace twofour
