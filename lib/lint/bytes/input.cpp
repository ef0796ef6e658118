#include "lib/lint/bytes/input.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <numeric>

#include "formats/error.h"
#include "formats/json/access.h"
#include "formats/layouts/layouts.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/io/file.h"
#include "lib/base/io/links.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/parallel.h"
#include "lib/lint/bytes/downloads.h"
#include "lib/lint/bytes/index.h"
#include "lib/source/config/config_terms.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/config/quantization_config.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// Compares data offsets with types, shapes and the file's size. Sets in `whole` which tensors can be read.
void check_layout(const std::string& file, const std::vector<TensorInfo>& tensors, uint64_t data_bytes,
                  std::vector<bool>& whole, LintReporter& reporter) {
  uint64_t position = 0, last = 0;
  size_t wrong = 0, cut = 0;
  std::string first_wrong, first_cut, message;
  const auto note = [&](const TensorInfo& t, std::string text) {
    if (wrong++ > 0) return;
    first_wrong = t.name;
    message = std::move(text);
  };
  for (const TensorInfo& t : tensors) {
    bool fits = t.end >= t.begin;
    if (!fits) {
      note(t, fmt::format("expected data_offsets in ascending order, found [{}, {}]", t.begin, t.end));
    } else if (t.begin != position) {
      note(t, fmt::format("expected data to begin at {}, where the tensor before it ends, found {} ({})",
                          position, t.begin, t.begin < position ? "overlap" : "hole"));
    }
    try {
      const uint64_t bytes = tensor_bytes(t.name, t.dtype, t.shape);
      if (fits && bytes != t.bytes()) {
        note(t, fmt::format("expected {} bytes for {}, found {} between its data_offsets", bytes, describe(t),
                            t.bytes()));
        fits = false;
      }
    } catch (const Error& e) {
      note(t, without_where(e.what(), t.name));
      fits = false;
    }
    position = std::max(position, t.end);
    last = std::max(last, t.end);
    if (fits && t.end > data_bytes && cut++ == 0) first_cut = t.name;
    whole.push_back(fits && t.end <= data_bytes);
  }
  message += and_more(wrong, "; {} more tensors are wrong in this file");
  if (wrong > 0) reporter.add("data-holes", {file, first_wrong}, message);
  if (last > data_bytes) {
    reporter.add("file-size", {file, ""},
                 "expected {} bytes of data, found {}: {} missing; {} cut, the first {}", last, data_bytes,
                 last - data_bytes, cut == 1 ? "1 tensor is" : fmt::format("{} tensors are", cut), first_cut);
  } else if (last < data_bytes) {
    reporter.add("file-size", {file, ""}, "expected {} bytes of data, found {}: {} too many", last,
                 data_bytes, data_bytes - last);
  }
}

void check_format(const Shard& shard, LintReporter& reporter) {
  const auto it = shard.metadata.find("format");
  const bool known =
      it != shard.metadata.end() && (it->second == "pt" || it->second == "tf" || it->second == "flax" ||
                                     it->second == "mlx");  // transformers accepts it
  if (known) return;
  reporter.add("no-format", {shard.name, ""}, "expected \"format\": \"pt\" in __metadata__, found {}",
               it == shard.metadata.end() ? "none" : json_quote_short(it->second));
}

/// The parsed header of one file.
struct ParsedFile {
  Shard shard;
  std::vector<TensorInfo> tensors;
  bool has_metadata;  ///< the file has __metadata__, of which the shard keeps only used entries
};

/// Reads and parses a file's header. Throws Error if it is not valid.
ParsedFile parse_file(const fs::path& directory, const std::string& name) {
  InputFile file(directory / name);
  std::vector<uint8_t> prefix(std::min(file.size(), kSafetensorsHead));
  file.read(0, prefix);
  const uint64_t data_begin = kSafetensorsPrefix + parse_safetensors_prefix(name, prefix, file.size());
  std::string head(data_begin, '\0');
  file.read(0, {reinterpret_cast<uint8_t*>(head.data()), head.size()});
  SafetensorsHeader header =
      parse_safetensors_entries(name, std::string_view(head).substr(kSafetensorsPrefix));
  const size_t count = header.tensors.size();
  const bool has_metadata = !header.metadata.empty();
  ParsedFile parsed{
      {std::move(file), name, data_begin, hash_text(head), count, std::move(header.metadata), {}},
      std::move(header.tensors),
      has_metadata};
  digest_metadata(parsed.shard);
  return parsed;
}

/// The headers of a directory's files. They are read on all threads before it is known which files belong to
/// one save.
class Headers {
 public:
  /// Calls `beside` once while headers are read.
  Headers(const fs::path& directory, const std::vector<std::string>& names,
          const std::function<void()>& beside)
      : directory_(directory), names_(names), parsed_(names.size()) {
    parallel_for(names.size() + 1, [&](size_t i) {
      if (i == 0) return beside();
      check_interrupt();
      try {
        parsed_[i - 1].emplace(parse_file(directory_, names_[i - 1]));
      } catch (const Error&) {
        errors_[i - 1] = std::current_exception();
      }
    });
  }
  ParsedFile take(const std::string& name) {
    const auto at = std::lower_bound(names_.begin(), names_.end(), name);
    if (at == names_.end() || *at != name) return parse_file(directory_, name);
    const auto i = static_cast<size_t>(at - names_.begin());
    if (errors_[i]) std::rethrow_exception(errors_[i]);
    return std::move(*parsed_[i]);
  }

 private:
  fs::path directory_;
  std::vector<std::string> names_;  ///< sorted
  std::vector<std::optional<ParsedFile>> parsed_;
  std::vector<std::exception_ptr> errors_ = std::vector<std::exception_ptr>(names_.size());
};

void add_file(LintInput& s, ParsedFile parsed, GatheredTensors& all, LintReporter& reporter) {
  const Shard& shard = s.shards.emplace_back(std::move(parsed.shard));
  check_layout(shard.name, parsed.tensors, shard.data_bytes(), all.whole, reporter);
  all.owners.insert(all.owners.end(), parsed.tensors.size(), static_cast<uint32_t>(s.shards.size() - 1));
  std::move(parsed.tensors.begin(), parsed.tensors.end(), std::back_inserter(all.tensors));
  if (parsed.has_metadata) check_format(shard, reporter);
}

void read_shards(LintInput& s, const std::vector<std::string>& names, Headers& headers,
                 const LintIndex* index, LintReporter& reporter) {
  GatheredTensors all;
  for (const std::string& name : names) {
    check_interrupt();
    if (report_placeholder(s.path, name, "a safetensors file", reporter)) continue;
    std::error_code error;
    const bool opens = fs::is_regular_file(s.path / name, error);
    try {
      add_file(s, headers.take(name), all, reporter);
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      const bool unreadable = !opens || std::string_view(e.what()).starts_with((s.path / name).string());
      reporter.add(unreadable ? "unreadable-file" : rule_of_damage(e.what(), "bad-header"), {name, ""},
                   without_where(e.what(), unreadable ? (s.path / name).string() : name));
    }
  }
  if (index != nullptr) drop_copied_shards(*index, s.shards, all, reporter);
  std::vector<size_t> order(all.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int compared = all.tensors[a].name.compare(all.tensors[b].name);
    return compared != 0 ? compared < 0 : a < b;
  });
  for (const size_t i : order) {
    if (!s.tensors.empty() && s.tensors.back().name == all.tensors[i].name) {
      reporter.add("duplicate-tensor", {s.shards[all.owners[i]].name, all.tensors[i].name},
                   "expected one tensor of this name, found a second in {}",
                   s.shards[s.shard_of.back()].name);
      const bool named =
          index != nullptr && index->file_of(all.tensors[i].name) ==
                                  std::optional<std::string_view>(s.shards[all.owners[i]].name);
      if (!named) continue;
      s.tensors.pop_back();
      s.shard_of.pop_back();
      s.whole.pop_back();
    }
    s.tensors.push_back(std::move(all.tensors[i]));
    s.shard_of.push_back(all.owners[i]);
    s.whole.push_back(all.whole[i]);
  }
  s.make_places();
}

std::set<std::string> names_of(const IndexFile& index) { return {index.files.begin(), index.files.end()}; }

/// Finds the quantization entry in config.json or, if it has none, in hf_quant_config.json. In an artifact,
/// finds the source's entry.
void find_quantization(LintInput& s) {
  const auto entry = quantization_entry(s.config);
  const Json& found = entry ? entry->value : s.hf_quant_config;
  s.quantization_file = entry ? "config.json" : "hf_quant_config.json";
  if (entry) s.quantization_key = entry->place;
  const bool ours = found.is_object() && found.contains("base") && found.contains("quant_method") &&
                    found["quant_method"] == "twofour";
  s.quantization = ours ? found["base"] : found;
  if (ours) s.quantization_key += ".base";
}

void find_modules(LintInput& s, LintReporter& reporter) {
  const std::vector<UnreadCodes> foreign = find_unread_codes(s.tensors);
  std::map<std::string_view, std::vector<const UnreadCodes*>> by_format;
  for (const UnreadCodes& codes : foreign) {
    by_format[codes.format].push_back(&codes);
    s.foreign.insert(codes.module);
  }
  reporter.leave_out(s.foreign);
  const std::string entry = s.quantization.dump() + member(s.config, "quantization").dump();
  for (const auto& [format, modules] : by_format) {
    LintFacts facts;
    facts.keeps_severity = entry.find(modules[0]->words) == entry.npos;
    reporter.add("unsupported-format", s.at(modules[0]->tensor, modules[0]->module),
                 fmt::format("expected a format that twofour reads, found {}{}{}", format,
                             and_more(modules.size(), " here and in {} more modules"), kNotSupported),
                 std::move(facts));
  }
  ConfiguredQuantization configured(s.quantization, s.quantization_key);
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    try {
      auto m = read_nvfp4_module(s.tensors, i, [&](size_t t) { return s.file_of(t); });
      if (m) s.modules.push_back(std::move(*m));
    } catch (const Error& e) {
      const std::string_view text(e.what());
      const bool alone = text.find(" beside it, found none") != text.npos;
      if (alone && s.is_part) continue;
      // The message names a file and the wrong tensor.
      const size_t file_end = text.find(": "), name_end = text.find(": ", file_end + 2);
      const bool unsupported = text.ends_with(kNotSupported);
      std::string tensor(text.substr(file_end + 2, name_end - file_end - 2));
      // Scales for 32 weights contradict a config that states no size.
      constexpr std::string_view kScales = "_weight_scale";
      const bool is_of_32 = text.find("found scales for 32, ") != text.npos && tensor.ends_with(kScales);
      const auto size = is_of_32 ? configured.group_size_of(tensor.substr(0, tensor.size() - kScales.size()))
                                 : std::nullopt;
      LintFacts facts;
      facts.keeps_severity = unsupported && size != 32;
      reporter.add(alone         ? "incomplete-module"
                   : unsupported ? "unsupported-format"
                                 : "module-shape",
                   {std::string(text.substr(0, file_end)), std::move(tensor)},
                   std::string(text.substr(name_end + 2)), std::move(facts));
    }
  }
}

}  // namespace

Json read_lint_config(const fs::path& directory, const char* name, LintReporter& reporter) {
  std::error_code error;
  const fs::path path = directory / name;
  if (!fs::exists(fs::symlink_status(path, error))) return nullptr;
  if (report_placeholder(directory, name, "a config", reporter)) return nullptr;
  try {
    const std::string text = read_text(path);
    if (text.starts_with("\xEF\xBB\xBF")) reporter.add("bad-config", {name, ""}, kByteOrderMarkFound);
    Json json = parse_json(path.string(), text);
    check_duplicate_keys(directory, name, reporter);
    if (json.is_object()) return json;
    reporter.add("bad-config", {name, ""}, "expected an object, found {}", json.type_name());
  } catch (const Error& e) {
    reporter.add("bad-config", {name, ""}, damage_of(e, path));
  }
  return nullptr;
}

std::string without_where(std::string_view message, std::string_view where) {
  const std::string begin = std::string(where) + ": ";
  return std::string(message.starts_with(begin) ? message.substr(begin.size()) : message);
}

void report_unknown_layout(const UnknownLayout& unknown, LintReporter& reporter) {
  reporter.add("unknown-layout", {fs::path(unknown.where).filename().string(), unknown.place},
               without_where(unknown.what(), unknown.where + ": " + unknown.place));
}

std::string damage_of(const Error& error, const fs::path& file) {
  if (dynamic_cast<const ReadError*>(&error) != nullptr) throw;
  return without_where(error.what(), file.string());
}

void LintInput::make_places() {
  places.assign(std::bit_ceil(2 * tensors.size() + 2), 0);
  for (size_t t = 0; t < tensors.size(); ++t) {
    size_t at = std::hash<std::string_view>()(tensors[t].name) & (places.size() - 1);
    while (places[at] != 0) at = (at + 1) & (places.size() - 1);
    places[at] = static_cast<uint32_t>(t + 1);
  }
}

std::optional<size_t> LintInput::find(std::string_view name) const {
  if (places.empty()) return find_tensor(tensors, name);
  for (size_t at = std::hash<std::string_view>()(name) & (places.size() - 1); places[at] != 0;
       at = (at + 1) & (places.size() - 1)) {
    if (tensors[places[at] - 1].name == name) return places[at] - 1;
  }
  return std::nullopt;
}

LintInput lint_subject_of(const Checkpoint& view, LintReporter& reporter) {
  LintInput s;
  s.path = view.path();
  s.is_directory = true;
  s.view = &view;
  for (const Shard& shard : view.shards()) {
    s.shards.push_back({InputFile(shard.file.path()), shard.name, shard.data_begin, shard.header_hash,
                        shard.tensor_count, shard.metadata, shard.described});
  }
  s.tensors.assign(view.tensors().begin(), view.tensors().end());
  for (size_t i = 0; i < s.tensors.size(); ++i) s.shard_of.push_back(view.shard_index_of(i));
  s.whole.assign(s.tensors.size(), true);
  s.config = view.config();
  s.hf_quant_config = view.hf_quant_config();
  find_quantization(s);
  s.make_places();
  find_modules(s, reporter);
  return s;
}

LintInput open_lint_subject(const fs::path& path, LintReporter& reporter) {
  LintInput s;
  const char* unfinished = nullptr;
  std::error_code error;
  s.is_directory = fs::is_directory(status_of(path));
  s.path = s.is_directory ? path : path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!s.is_directory) {
    const std::string name = path.filename().string();
    if (!name.ends_with(".safetensors")) {  // a file of another name is expected to be valid safetensors
      parse_file(s.path, name);
    }
    s.is_part = is_one_of_several(name) || fs::exists(s.path / kIndexName, error);
    InputFile opens(path);
    Headers headers(s.path, {name}, [] {});
    read_shards(s, {name}, headers, nullptr, reporter);
    // The weights are read by the folder's configs. Other rules take a file by itself.
    s.config = read_lint_config(s.path, "config.json", reporter);
    s.hf_quant_config = read_lint_config(s.path, "hf_quant_config.json", reporter);
    find_quantization(s);
    for (const ConfigTerm& term : find_config_terms(s.config, s.hf_quant_config, {}))
      reporter.add(term.rule, {term.file, term.key}, term.problem);
    s.config = s.hf_quant_config = nullptr;
  } else {
    const auto present = list_files(path, ".safetensors");
    const auto indexes = list_files(path, ".safetensors.index.json");
    if (present.empty() && indexes.empty() && !has_unfinished_weights(path)) {
      refuse_unfinished(path);
      throw Error(
          fmt::format("{}: expected *.safetensors files, found {}", path.string(), where_weights_are(path)));
    }
    unfinished = find_unfinished(path);
    if (unfinished != nullptr) {
      reporter.add("unfinished-output", {unfinished, ""},
                   "expected a complete directory, found the journal of an interrupted run");
    }
    s.config = read_lint_config(path, "config.json", reporter);
    s.hf_quant_config = read_lint_config(path, "hf_quant_config.json", reporter);
    find_quantization(s);
    s.has_manifest = !is_absent(path / kManifestName);
    std::optional<LintIndex> index;
    Headers headers(path, present, [&] { index = read_lint_index(path, indexes, reporter); });
    const auto files = files_to_lint(path, index, !indexes.empty(), present, s.config, reporter);
    read_shards(s, files, headers, index ? &*index : nullptr, reporter);
    s.lacks_files = s.shards.size() < (index ? index->contents.files.size() : files.size());
    s.is_part = s.lacks_files && !index;
    if (index) check_lint_index(*index, s, reporter);
    lint_downloads(s, index ? names_of(index->contents) : std::set<std::string>(), reporter);
  }
  for (const Shard& shard : s.shards) {
    if (states_layout(shard, s.config)) s.layout = shard.metadata.at("twofour.layout");
  }
  if (s.is_directory) {
    if (const auto unknown = find_unknown_layout(s.path, s.shards, s.config))
      report_unknown_layout(*unknown, reporter);
  }
  // The manifest of an artifact is written last, so an unfinished one may lack it.
  const bool lacks_manifest = s.is_directory && !s.has_manifest && unfinished == nullptr;
  if (lacks_manifest && with_layout(s.layout, []<class L>() {})) {
    reporter.add("no-manifest", {kManifestName, ""}, "expected it beside tensors of layout {}, found none",
                 s.layout);
  }
  find_modules(s, reporter);
  return s;
}

}  // namespace twofour
