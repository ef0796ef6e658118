#include "lib/source/checkpoint/index_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/json_events.h"
#include "formats/safetensors.h"
#include "lib/base/io/file.h"

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

}  // namespace twofour
