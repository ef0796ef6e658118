#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <tuple>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/index_file.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

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

std::set<std::string> Checkpoint::dropped_files() const {
  return source_ ? source_->dropped_files() : std::set<std::string>{};
}

std::set<std::string> Checkpoint::kept_files() const {
  return source_ ? source_->kept_files() : std::set<std::string>{};
}

Checkpoint Checkpoint::open_loosely(const fs::path& path, Io io, LooseFiles& found) {
  Checkpoint c;
  c.path_ = path;
  c.states_ = std::make_shared<const FileStates>(std::vector{path});
  c.is_directory_ = fs::is_directory(status_of(path));
  if (!c.is_directory_)
    throw Error(fmt::format("{}: expected a directory with a checkpoint, found a file", path.string()));
  if (const char* journal = find_unfinished(path)) {
    throw Error(
        fmt::format("{}: expected a complete checkpoint, found one that an interrupted run of twofour left "
                    "({})",
                    path.string(), journal));
  }
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
  // Mistral's own save lies beside the other one.
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

void Checkpoint::open_shards(const std::vector<std::string>& names, Io io, LooseFiles* loose,
                             const IndexFile* index) {
  const auto windows = io == Io::kCached ? nullptr : std::make_shared<ReadWindows>();
  std::vector<TensorInfo> tensors;
  std::vector<uint32_t> owners;
  for (const std::string& name : names) {
    check_interrupt();
    InputFile file(path_ / name, io, windows);
    const std::string where = file.path().string();
    std::vector<uint8_t> prefix(std::min(file.size(), kSafetensorsHead));
    file.read(0, prefix);
    const uint64_t length = parse_safetensors_prefix(where, prefix, file.size());
    const uint64_t data_begin = kSafetensorsPrefix + length;
    std::string head(data_begin, '\0');
    file.read(0, {reinterpret_cast<uint8_t*>(head.data()), head.size()});
    SafetensorsHeader header = parse_safetensors_header(
        where, std::string_view(head).substr(kSafetensorsPrefix), file.size() - data_begin);
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
        throw Error(fmt::format("{}: {}: expected one tensor of that name, found another in {}",
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

}  // namespace twofour
