#include "lib/checkpoint/index_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "lib/io/file.h"

namespace twofour {
namespace {

/// More than any model has; their names take no more memory than the text does.
constexpr size_t kMaxEntries = 2'000'000, kMaxFiles = 1u << 16;
constexpr uint64_t kMaxBytes = 128'000'000;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// Collects weight_map and metadata.total_size and skips everything else.
class IndexEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit IndexEvents(std::string_view where) : where_(where) {}
  std::map<std::string, uint32_t, std::less<>> files;  ///< numbered as they come
  std::vector<IndexFile::Entry> entries;
  std::optional<uint64_t> total_size;
  bool has_map = false;

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t) override { return value("a negative number"); }
  bool number_float(number_float_t v, const string_t& text) override {
    // Some writers leave total_size as a float.
    if (at_total_size() && v >= 0 && v < 9e18) total_size = static_cast<uint64_t>(v);
    return at_total_size() || value(text.substr(0, 64));
  }
  bool number_unsigned(number_unsigned_t v) override {
    if (at_total_size()) total_size = v;
    return at_total_size() || value(fmt::format("{}", v));
  }
  bool binary(binary_t&) override { return value("binary data"); }
  bool string(string_t& text) override {
    if (!in_map()) return true;
    check_file_name(fmt::format("{}: {}", where_, json_quote(key_)), text);
    if (entries.size() == kMaxEntries) {
      throw Error(fmt::format("{}: expected at most {} tensors, found more", where_, kMaxEntries));
    }
    if (files.size() == kMaxFiles && !files.contains(text)) {
      throw Error(fmt::format("{}: expected at most {} files, found more", where_, kMaxFiles));
    }
    entries.push_back({key_, files.try_emplace(text, static_cast<uint32_t>(files.size())).first->second});
    return true;
  }
  bool key(string_t& text) override {
    if (text.size() > kSafetensorsMaxName) {
      throw Error(fmt::format("{}: expected names of at most {} bytes, found {}", where_, kSafetensorsMaxName,
                              json_quote_short(text)));
    }
    if (depth_ == 1) {
      // Of sections that nobody reads a second one does no harm.
      bool* seen = text == "weight_map" ? &map_seen_ : text == "metadata" ? &metadata_seen_ : nullptr;
      if (seen != nullptr && std::exchange(*seen, true)) {
        throw Error(fmt::format("{}: {}: duplicate key", where_, json_quote(text)));
      }
      section_ = text;
    }
    key_ = text;
    return true;
  }
  bool start_object(std::size_t) override {
    if (in_map()) return value("an object");
    ++depth_;
    has_map = has_map || (depth_ == 2 && section_ == "weight_map");
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ == 0) throw Error(fmt::format("{}: expected an object, found an array", where_));
    if (in_map()) return value("an array");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    throw Error(fmt::format("{}: not JSON: error at byte {}", where_, position));
  }

 private:
  bool in_map() const { return depth_ == 2 && section_ == "weight_map"; }
  bool at_total_size() const { return depth_ == 2 && section_ == "metadata" && key_ == "total_size"; }
  bool value(std::string_view found) const {
    if (in_map()) {
      throw Error(fmt::format("{}: {}: expected a file name, found {}", where_, json_quote(key_), found));
    }
    return true;
  }

  std::string_view where_;
  int depth_ = 0;
  bool map_seen_ = false, metadata_seen_ = false;
  std::string section_, key_;
};

/// Sorts the entries and refuses a tensor that is named twice: which of its files counts would be a guess.
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
  refuse_zero_byte(where, json);
  refuse_long_tokens(where, json);
  IndexEvents events(where);
  nlohmann::json::sax_parse(json.begin(), json.end(), &events);
  if (!events.has_map) throw Error(fmt::format("{}: expected an object weight_map, found none", where));
  IndexFile index;
  index.total_size = events.total_size;
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
