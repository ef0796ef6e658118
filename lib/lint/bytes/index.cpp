#include "lib/lint/bytes/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "formats/error.h"
#include "lib/lint/bytes/downloads.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The parts of a name like "model-00002-of-00005.safetensors".
struct Numbered {
  std::string stem;
  int64_t number, total;
};

std::optional<Numbered> parse_numbered(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors", kOf = "-of-";
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  const size_t of = name.rfind(kOf);
  if (of == name.npos) return std::nullopt;
  const size_t dash = name.rfind('-', of - 1);
  if (of == 0 || dash == name.npos) return std::nullopt;
  const auto number = [](std::string_view digits) -> int64_t {
    const bool plain = !digits.empty() && digits.size() < 10 &&
                       digits.find_first_not_of("0123456789") == std::string_view::npos;
    return plain ? std::stoll(std::string(digits)) : -1;
  };
  const Numbered n{std::string(name.substr(0, dash)), number(name.substr(dash + 1, of - dash - 1)),
                   number(name.substr(of + kOf.size()))};
  if (n.number < 0 || n.total < 0) return std::nullopt;
  return n;
}

/// The numbers of files, by the save that their names show: its name and its count of files.
using Saves = std::map<std::pair<std::string, int64_t>, std::set<int64_t>>;

Saves saves_of(const std::vector<std::string>& files) {
  Saves saves;
  for (const std::string& name : files) {
    if (const auto n = parse_numbered(name)) saves[{n->stem, n->total}].insert(n->number);
  }
  return saves;
}

/// Reports numbers of a save for which there is no file.
void check_gaps(const Saves& saves, LintReporter& reporter) {
  for (const auto& [save, numbers] : saves) {
    const int64_t missing = save.second - static_cast<int64_t>(numbers.size());
    if (missing <= 0) continue;
    int64_t first = 1;
    while (numbers.count(first)) ++first;
    reporter.add("missing-shard",
                 {fmt::format("{}-{:05}-of-{:05}.safetensors", save.first, first, save.second), ""},
                 "expected {} files of this save, found {}", save.second, numbers.size());
  }
}

/// Checks the names of files. Without an index, they show which files belong to one save.
void check_numbering(const std::vector<std::string>& present, LintReporter& reporter) {
  const Saves saves = saves_of(present);
  check_gaps(saves, reporter);
  if (saves.size() < 2) return;
  // The save with the most files counts as the intended one.
  const auto most = std::max_element(saves.begin(), saves.end(),
                                     [](auto& a, auto& b) { return a.second.size() < b.second.size(); });
  for (const std::string& name : present) {
    const auto n = parse_numbered(name);
    if (!n || n->stem != most->first.first || n->total == most->first.second) continue;
    reporter.add("leftover-file", {name, ""}, "expected a file of {} (as most), found one of {}",
                 most->first.second, n->total);
  }
}

/// True if a file is complete and has no tensors. Savers that move tensors to other files leave such files.
bool has_no_tensors(const fs::path& path) {
  constexpr uint64_t kMostHeader = 1u << 16;
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (error || size < 8 || size > 8 + kMostHeader) return false;
  std::ifstream file(path, std::ios::binary);
  std::string bytes(size, '\0');
  if (!file.read(bytes.data(), static_cast<std::streamsize>(size))) return false;
  uint64_t header = 0;
  for (size_t i = 8; i > 0; --i) header = header << 8 | static_cast<uint8_t>(bytes[i - 1]);
  return header == size - 8 && bytes[8] == '{' && bytes.find("data_offsets") == bytes.npos;
}

}  // namespace

std::optional<std::string_view> LintIndex::file_of(std::string_view tensor) const {
  const auto at =
      std::lower_bound(contents.entries.begin(), contents.entries.end(), tensor,
                       [](const IndexFile::Entry& e, std::string_view n) { return e.tensor < n; });
  if (at == contents.entries.end() || at->tensor != tensor) return std::nullopt;
  return contents.files[at->file];
}

bool is_one_of_several(std::string_view file) {
  const auto n = parse_numbered(file);
  return n && n->total > 1;
}

std::optional<LintIndex> read_lint_index(const fs::path& directory, const std::vector<std::string>& names,
                                         LintReporter& reporter) {
  if (names.empty()) return std::nullopt;
  std::string name = names[0];
  if (std::find(names.begin(), names.end(), kIndexName) != names.end()) {
    name = kIndexName;
  } else if (names.size() > 1) {
    reporter.add("bad-index", {names[0], ""}, "expected one index, found {}", names.size());
    return std::nullopt;
  }
  if (report_placeholder(directory, name, "an index", reporter)) return std::nullopt;
  try {
    LintIndex index{name, read_index_file(directory / name)};
    if (index.contents.has_mark) reporter.add("bad-index", {name, ""}, kByteOrderMarkFound);
    return index;  // an Error reports a repeated key
  } catch (const Error& e) {
    reporter.add(rule_of_damage(e.what(), "bad-index"), {name, ""}, damage_of(e, directory / name));
    return std::nullopt;
  }
}

std::vector<std::string> files_to_lint(const fs::path& directory, const std::optional<LintIndex>& index,
                                       bool has_index_file, const std::vector<std::string>& present,
                                       const Json& config, LintReporter& reporter) {
  if (!index) {
    check_numbering(present, reporter);
    if (present.size() > 1 && !has_index_file) {
      reporter.add("no-index", {"", ""}, "expected {} beside {} weight files, found none", kIndexName,
                   present.size());
    }
    return present;
  }
  std::vector<std::string> files;
  std::vector<size_t> tensors(index->contents.files.size());
  for (const IndexFile::Entry& e : index->contents.entries) ++tensors[e.file];
  for (size_t i = 0; i < index->contents.files.size(); ++i) {
    const std::string& name = index->contents.files[i];
    std::error_code error;
    if (fs::exists(fs::symlink_status(directory / name, error))) {
      files.push_back(name);
    } else {
      reporter.add("missing-shard", {name, ""}, "expected a file for {1} tensors ({0}), found none",
                   index->name, tensors[i]);
    }
  }
  // If files were removed and the index was written again, the names of the other files still state the
  // earlier count. If the family's tensors are known, other rules report missing tensors. A file may then be
  // absent because the config no longer has its parts, such as a draft.
  const auto model = find_language_model(config);
  const bool is_known = model && !model->family->is_open;
  std::vector<std::string> named = index->contents.files;
  named.insert(named.end(), present.begin(), present.end());
  if (const Saves saves = saves_of(named); saves.size() == 1 && !is_known) check_gaps(saves, reporter);
  for (const std::string& name : present) {
    if (std::binary_search(index->contents.files.begin(), index->contents.files.end(), name)) continue;
    if (name.starts_with("consolidated")) continue;  // Mistral's own save, which other loaders ignore
    if (has_no_tensors(directory / name)) continue;
    reporter.add("leftover-file", {name, ""}, "expected a tensor of it in {}, found none", index->name);
  }
  return files;
}

void drop_copied_shards(const LintIndex& index, std::vector<Shard>& shards, GatheredTensors& all,
                        LintReporter& reporter) {
  std::map<std::pair<uint64_t, uint64_t>, std::vector<size_t>> alike;
  for (size_t i = 0; i < shards.size(); ++i)
    alike[{shards[i].header_hash.high, shards[i].header_hash.low}].push_back(i);
  if (alike.size() == shards.size()) return;
  std::vector<bool> has_own(shards.size());
  for (size_t t = 0; t < all.tensors.size(); ++t) {
    const size_t i = all.owners[t];
    has_own[i] = has_own[i] || index.file_of(all.tensors[t].name) == shards[i].name;
  }
  std::vector<bool> copied(shards.size());
  for (const auto& [hash, files] : alike) {
    const auto own = std::ranges::find_if(files, [&](size_t i) { return has_own[i]; });
    for (const size_t i : files) {
      if (own == files.end() || has_own[i] || shards[i].tensor_count == 0) continue;
      copied[i] = true;
      reporter.add("missing-shard", {shards[i].name, ""},
                   "expected the tensors that {} puts there, found a copy of {}", index.name,
                   shards[*own].name);
    }
  }
  std::vector<uint32_t> places;
  std::vector<Shard> kept;
  for (size_t i = 0; i < shards.size(); ++i) {
    places.push_back(static_cast<uint32_t>(kept.size()));
    if (!copied[i]) kept.push_back(std::move(shards[i]));
  }
  shards = std::move(kept);
  GatheredTensors some;
  for (size_t t = 0; t < all.tensors.size(); ++t) {
    if (copied[all.owners[t]]) continue;
    some.tensors.push_back(std::move(all.tensors[t]));
    some.owners.push_back(places[all.owners[t]]);
    some.whole.push_back(all.whole[t]);
  }
  all = std::move(some);
}

void check_lint_index(const LintIndex& index, const LintInput& s, LintReporter& reporter) {
  size_t missing = 0;
  std::string first_missing;
  const auto& entries = index.contents.entries;
  std::set<std::string_view> known;
  for (const Shard& shard : s.shards) known.insert(shard.name);
  std::vector<std::vector<std::string>> lost(index.contents.files.size());
  auto entry = entries.begin();
  const auto stale = [&](const IndexFile::Entry& e) {
    const std::string& file = index.contents.files[e.file];
    // Another check reports a file that could not be read.
    if (!known.count(file)) return lost[e.file].push_back(e.tensor);
    reporter.add("index-stale-tensor", {index.name, e.tensor},
                 fmt::format("expected in {}, found in no file", file),
                 LintFacts{.key = "weight_map", .value = file});
  };
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    while (entry != entries.end() && entry->tensor < s.tensors[i].name) stale(*entry++);
    if (entry == entries.end() || entry->tensor != s.tensors[i].name) {
      if (missing++ == 0) first_missing = s.tensors[i].name;
      continue;
    }
    const std::string& file = index.contents.files[entry->file];
    if (file != s.file_of(i)) {
      reporter.add("index-wrong-file", {index.name, s.tensors[i].name},
                   fmt::format("expected in {}, found in {}", file, s.file_of(i)),
                   LintFacts{.key = "weight_map", .value = fmt::format("{} for {}", s.file_of(i), file)});
    }
    ++entry;
  }
  while (entry != entries.end()) stale(*entry++);
  for (size_t i = 0; i < lost.size(); ++i)
    if (!known.count(index.contents.files[i])) reporter.lose(index.contents.files[i], std::move(lost[i]));
  if (missing > 0) {
    reporter.add("index-incomplete", {index.name, first_missing},
                 "expected all {} tensors of its files, found {} missing, this the first", s.tensors.size(),
                 missing);
  }
  const bool all_read = known.size() == index.contents.files.size();
  uint64_t bytes = 0;
  for (const TensorInfo& t : s.tensors) bytes += t.end >= t.begin ? t.bytes() : 0;
  if (!index.contents.odd_total_size.empty()) {
    reporter.add("index-total-size", {index.name, ""}, "expected total_size {}, found {}",
                 all_read ? fmt::format("{}", bytes) : "as a whole number of bytes",
                 index.contents.odd_total_size);
  }
  if (all_read && index.contents.total_size && *index.contents.total_size != bytes) {
    reporter.add("index-total-size", {index.name, ""}, "expected total_size {}, found {}", bytes,
                 *index.contents.total_size);
  }
}

}  // namespace twofour
