#include "lib/source/checkpoint/index_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/json_events.h"
#include "formats/safetensors.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/weight_header.h"

namespace twofour {
namespace {

/// Limits that no model exceeds. The names take no more memory than the text of the file.
constexpr size_t kMaxEntries = 2'000'000, kMaxFiles = 1u << 16;
constexpr uint64_t kMaxBytes = 128'000'000;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// Collects weight_map and metadata.total_size. Skips everything else.
class IndexEvents : public JsonEvents {
 public:
  explicit IndexEvents(std::string_view where) : where_(where) {}
  std::map<std::string, uint32_t, std::less<>> files;  ///< numbered in order of appearance
  std::vector<IndexFile::Entry> entries;
  std::optional<uint64_t> total_size;
  std::string odd_total_size;
  bool has_map = false;

  void signed_number(int64_t v) override {
    unexpected(at_total_size() ? fmt::format("{}", v) : "a negative number");
  }
  void unsigned_number(uint64_t v) override {
    if (!at_total_size()) return unexpected(fmt::format("{}", v));
    total_size = v;
  }
  void float_number(double v, std::string_view text) override {
    if (!at_total_size()) return unexpected(std::string(text.substr(0, 64)));
    // Some writers store total_size as a float.
    if (v >= 0 && v < 9e18) total_size = static_cast<uint64_t>(v);
    const bool is_whole = total_size && static_cast<double>(*total_size) == v;
    if (!is_whole) odd_total_size = text.substr(0, 64);
  }
  void string(std::string& text) override {
    if (at_total_size()) odd_total_size = json_quote_short(text);
    if (!in_map()) return;
    const bool is_new = !files.contains(text);  // many thousands of tensors share few files
    if (is_new) check_file_name(fmt::format("{}: {}", where_, json_quote(key_)), text);
    if (entries.size() == kMaxEntries) {
      throw Error(fmt::format("{}: expected at most {} tensors, found more", where_, kMaxEntries));
    }
    if (files.size() == kMaxFiles && is_new) {
      throw Error(fmt::format("{}: expected at most {} files, found more", where_, kMaxFiles));
    }
    entries.push_back({key_, files.try_emplace(text, static_cast<uint32_t>(files.size())).first->second});
  }
  void key(std::string& text) override {
    if (text.size() > kSafetensorsMaxName) {
      throw Error(fmt::format("{}: expected names of at most {} bytes, found {}", where_, kSafetensorsMaxName,
                              json_quote_short(text)));
    }
    if (depth_ == 1) {
      // A key that occurs twice does no harm in a section that is not read.
      bool* seen = text == "weight_map" ? &map_seen_ : text == "metadata" ? &metadata_seen_ : nullptr;
      if (seen != nullptr && std::exchange(*seen, true)) {
        throw Error(fmt::format("{}: {}: duplicate key", where_, json_quote(text)));
      }
      section_ = text;
    }
    key_ = text;
  }
  void begin_object() override {
    if (in_map() || at_total_size()) unexpected("an object");
    ++depth_;
    has_map = has_map || (depth_ == 2 && section_ == "weight_map");
  }
  void end_object() override { --depth_; }
  void begin_array() override {
    if (depth_ == 0) throw Error(fmt::format("{}: expected an object, found an array", where_));
    if (in_map() || at_total_size()) unexpected("an array");
    ++depth_;
  }
  void end_array() override { --depth_; }

 private:
  bool in_map() const { return depth_ == 2 && section_ == "weight_map"; }
  bool at_total_size() const { return depth_ == 2 && section_ == "metadata" && key_ == "total_size"; }
  /// Ignores all values except those of the map and the total size.
  void unexpected(const std::string& found) override {
    if (at_total_size()) odd_total_size = found;
    if (!in_map()) return;
    throw Error(fmt::format("{}: {}: expected a file name, found {}", where_, json_quote(key_), found));
  }

  std::string_view where_;
  int depth_ = 0;
  bool map_seen_ = false, metadata_seen_ = false;
  std::string section_, key_;
};

/// Sorts the entries by tensor. Throws Error if a tensor occurs twice, since any choice of its file would be
/// a guess.
void sort_entries(std::string_view where, IndexFile& index) {
  std::sort(index.entries.begin(), index.entries.end(),
            [](auto& a, auto& b) { return std::tie(a.tensor, a.file) < std::tie(b.tensor, b.file); });
  const auto twice = std::adjacent_find(index.entries.begin(), index.entries.end(),
                                        [](auto& a, auto& b) { return a.tensor == b.tensor; });
  if (twice == index.entries.end()) return;
  throw Error(fmt::format("{}: {}: duplicate key: expected one file, found {} and {}", where,
                          json_quote_short(twice->tensor), json_quote_short(index.files[twice->file]),
                          json_quote_short(index.files[std::next(twice)->file])));
}

}  // namespace

void check_file_name(std::string_view where, std::string_view name) {
  if (name.empty() || name.find('/') != std::string_view::npos || name.find('\0') != std::string_view::npos ||
      name == "." || name == ".." || name.size() > NAME_MAX) {
    throw Error(fmt::format("{}: expected the name of a file in this directory, found {}", where,
                            json_quote_short(name)));
  }
}

IndexFile parse_index_file(std::string_view where, std::string_view json) {
  IndexEvents events(where);
  read_json(where, json, events);
  if (!events.has_map) throw Error(fmt::format("{}: expected an object weight_map, found none", where));
  IndexFile index;
  index.total_size = events.total_size;
  index.odd_total_size = events.odd_total_size;
  index.has_mark = json.starts_with(kByteOrderMark);
  index.entries = std::move(events.entries);
  std::vector<uint32_t> position(events.files.size());
  for (const auto& [file, number] : events.files) {
    position[number] = static_cast<uint32_t>(index.files.size());
    index.files.push_back(file);
  }
  for (IndexFile::Entry& e : index.entries) e.file = position[e.file];
  sort_entries(where, index);
  return index;
}

IndexFile read_index_file(const std::filesystem::path& path) {
  return parse_index_file(path.string(), read_text(path, kMaxBytes));
}

namespace {

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

bool is_file(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

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

std::filesystem::path checkpoint_directory(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const bool is_part = name == "config.json" || name.ends_with(".safetensors.index.json");
  return is_part && is_file(path) ? folder_of(path) : path;
}

std::optional<std::filesystem::path> directory_of_lone_shard(const std::filesystem::path& file) {
  constexpr std::string_view kSuffix = ".safetensors";
  if (!file.filename().string().ends_with(kSuffix) || !is_file(file)) return std::nullopt;
  std::filesystem::path folder = folder_of(file);
  if (!is_file(folder / "config.json") || list_files(folder, kSuffix).size() != 1) return std::nullopt;
  return folder;
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

}  // namespace twofour
