#include "lib/source/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <mutex>
#include <numeric>

#include "formats/error.h"
#include "kernels/device/check.h"
#include "lib/base/findings/options.h"
#include "lib/base/io/file.h"
#include "lib/base/io/links.h"
#include "lib/base/names/arrangement_words.h"
#include "lib/base/threads/interrupt.h"
#include "lib/source/checkpoint/index_file.h"

namespace twofour {
namespace {

constexpr std::string_view kZeroPointsWords[] = {"stored", "symmetric", "v2"};

namespace fs = std::filesystem;

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

std::span<const std::string_view> zero_points_words() { return kZeroPointsWords; }

std::string_view zero_points_word(ZeroPoints zero_points) {
  return zero_points == ZeroPoints::kAsStated ? std::string_view()
                                              : kZeroPointsWords[static_cast<size_t>(zero_points) - 1];
}

ZeroPoints parse_zero_points(std::string_view word) {
  if (word.empty()) return ZeroPoints::kAsStated;
  const auto at = std::find(std::begin(kZeroPointsWords), std::end(kZeroPointsWords), word);
  if (at == std::end(kZeroPointsWords)) {
    throw Error(fmt::format("zero points: expected stored, symmetric or v2, found {}",
                            json_quote_short(std::string(word))));
  }
  return static_cast<ZeroPoints>(at - std::begin(kZeroPointsWords) + 1);
}

bool DescribedCodes::has(std::string_view module) const {
  const auto is_in = [](const std::vector<std::string>& names, std::string_view name) {
    return std::binary_search(names.begin(), names.end(), name, std::less<>());
  };
  if (all || is_in(shortened, module)) return true;
  constexpr int kMostParts = 32;  // largest number of parts of a module's name
  for (int i = 0; i < kMostParts; ++i) {
    if (is_in(modules, module)) return true;
    const size_t dot = module.find('.');
    if (dot == module.npos) return false;
    module.remove_prefix(dot + 1);
  }
  return false;
}

namespace {

/// Returns a module's name, "model.layers.0.mlp.up_proj", without endings that an entry may add to it.
std::string described_module(std::string name) {
  for (const char* suffix : {".weight", "."}) {
    if (name.ends_with(suffix)) name.resize(name.size() - std::string_view(suffix).size());
  }
  return name;
}

/// The codes that an entry of __metadata__ describes. The only form that names modules is ComfyUI's:
/// {"layers": {MODULE: {"format": ...}}}; any other form covers the whole file. Source: Comfy-Org/ComfyUI,
/// comfy/utils.py, convert_old_quants.
DescribedCodes described_codes(const std::string& key, const std::string& value, size_t tensors) {
  DescribedCodes described{json_quote_short(key)};
  described.key = described.key.substr(1, described.key.size() - 2);
  // The modules' names take no more memory than the tensors' names may.
  if (value.size() > 4096 + 256 * tensors) return described;
  try {
    const Json json = parse_json(key, value);
    if (!json.is_object()) return described;
    const auto layers = json.find("layers");
    for (const auto& [word, configured] : json.items()) {
      if (word != "layers" && word != "format_version") return described;
    }
    if (layers == json.end() || !layers->is_object()) return described;
    DescribedCodes named{described.key, false};
    for (const auto& [text, words] : layers->items()) {
      if (text.find_first_of("*?[(") != text.npos) return described;  // a pattern
      const std::string module = described_module(text);
      named.modules.push_back(module);
      constexpr int kMostPrefixes = 3;  // prefixes are like "module.", "base_model.model."
      std::string_view rest = module;
      for (int i = 0; i < kMostPrefixes && rest.find('.') != rest.npos; ++i) {
        rest.remove_prefix(rest.find('.') + 1);
        named.shortened.emplace_back(rest);
      }
    }
    std::sort(named.modules.begin(), named.modules.end());
    std::sort(named.shortened.begin(), named.shortened.end());
    return named;
  } catch (const Error&) {
    return described;  // the text has no known form
  }
}

/// True if an entry of __metadata__ describes codes. Its key shows it, or the configuration that it quotes.
bool is_on_codes(std::string key, const std::string& value) {
  if (!key.starts_with("twofour.") && names_arrangement(key, value)) return true;
  for (char& c : key) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  // Keys with these endings tell nothing about the bytes.
  for (const char* end : {"_by", "_version", "_date", "_time", "_at", "_from", "_with", "_tool", "_url"}) {
    if (key.ends_with(end)) return false;
  }
  constexpr const char* kWords[] = {"quant", "comfy", "hadamard", "rotat"};
  if (std::ranges::any_of(kWords, [&](const char* word) { return key.find(word) != key.npos; })) return true;
  constexpr const char* kQuoted[] = {"\"quantization_config\"", "\"quant_method\"", "\"quant_algo\"",
                                     "\"_type\""};
  return std::any_of(std::begin(kQuoted), std::end(kQuoted),
                     [&](const char* word) { return value.find(word) != value.npos; });
}

}  // namespace

void digest_metadata(Shard& shard) {
  for (const auto& [key, value] : shard.metadata) {
    if (is_on_codes(key, value)) shard.described.push_back(described_codes(key, value, shard.tensor_count));
  }
  std::erase_if(shard.metadata, [](const auto& entry) {
    return (entry.first != "format" && entry.first != "twofour.layout") || entry.second.size() > 64;
  });
}

const char* find_unfinished(const fs::path& directory) {
  std::error_code error;
  for (const char* name : {kJournalName, kTasksFolder}) {
    if (fs::exists(fs::symlink_status(directory / name, error))) return name;
  }
  return nullptr;
}

void refuse_unfinished(const fs::path& directory) {
  const char* const mark = find_unfinished(directory);
  if (mark == nullptr) return;
  throw Error(fmt::format(
      "{}: expected a complete checkpoint, found one that an interrupted run of twofour left ({}); {}, "
      "or write it again",
      directory.string(), mark,
      std::string_view(mark) == kTasksFolder
          ? std::string("run the plan's other tasks and merge")
          : fmt::format("finish it by the same command with {}", options::kResume)));
}

void TensorSource::read_rows(size_t, const RowRange&, std::span<uint8_t>, std::span<uint8_t>) const {
  check(false, "rows of a module whose weights are computed");
}

namespace {

/// Reads a config file, which must be an object. Returns null if it is absent.
Json read_object(const fs::path& folder, const char* name, Links links) {
  const fs::path path = folder / name;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return nullptr;
  Json json = parse_json(path.string(), read_text(open_below(folder, path, links)));
  if (!json.is_object())
    throw Error(fmt::format("{}: expected an object, found {}", path.string(), json.type_name()));
  return json;
}

}  // namespace

std::shared_ptr<Json> Checkpoint::read_config(const char* name) {
  const std::optional<LinkOutside> outside = link_outside(path_, path_ / name);
  if (outside) links_outside_.push_back(*outside);
  return std::make_shared<Json>(read_object(path_, name, outside ? Links::kFollowed : Links::kInside));
}

InputFile Checkpoint::open_again(const char* name) const {
  const fs::path path = path_ / name;
  const bool is_known = std::any_of(links_outside_.begin(), links_outside_.end(),
                                    [&](const LinkOutside& link) { return link.path == path; });
  return open_below(path_, path, is_known ? Links::kFollowed : Links::kInside);
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

Checkpoint Checkpoint::over(std::shared_ptr<const TensorSource> source, std::vector<TensorInfo> tensors,
                            std::vector<uint32_t> shards, Json config, Json hf_quant_config,
                            Findings findings) {
  Checkpoint c;
  c.path_ = source->stored().path();
  c.is_directory_ = source->stored().is_directory();
  c.zero_points_ = source->stored().zero_points();
  c.links_outside_ = source->links_outside();
  if (config.is_null()) c.beside_ = source->stored().beside_;
  c.source_ = std::move(source);
  c.tensors_ = std::move(tensors);
  c.shard_of_ = std::move(shards);
  c.config_ = std::make_shared<Json>(std::move(config));
  c.hf_quant_config_ = std::make_shared<Json>(std::move(hf_quant_config));
  c.findings_ = std::move(findings);
  c.find_modules();
  c.note_incomplete_modules();
  return c;
}

std::map<std::string, std::string> Checkpoint::config_texts() const {
  return source_ ? source_->config_texts() : std::map<std::string, std::string>{};
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

const std::vector<Shard>& Checkpoint::shards() const { return source_ ? source_->shards() : shards_; }
const std::vector<Shard>& TensorSource::shards() const { return stored().shards(); }
std::vector<LinkOutside> TensorSource::links_outside() const { return stored().links_outside(); }
void TensorSource::check_same_files() const { stored().check_same_files(); }
uint64_t Checkpoint::reader_bytes() const { return source_ ? source_->reader_bytes() : 0; }
const Json& Checkpoint::config() const { return *config_; }
const Json& Checkpoint::hf_quant_config() const { return *hf_quant_config_; }

/// The configs in the folder of a single file. They are read when they are first requested, since a file that
/// is not a checkpoint, such as statistics, may lie beside any config.
struct Checkpoint::Beside {
  std::once_flag once;
  Json config, hf_quant_config;
};
const Checkpoint::Beside& Checkpoint::beside() const {
  std::call_once(beside_->once, [&] {
    beside_->config = read_object(path_, "config.json", Links::kFollowed);
    beside_->hf_quant_config = read_object(path_, "hf_quant_config.json", Links::kFollowed);
  });
  return *beside_;
}
const Json& Checkpoint::config_of_values() const { return beside_ ? beside().config : *config_; }
const Json& Checkpoint::hf_quant_config_of_values() const {
  return beside_ ? beside().hf_quant_config : *hf_quant_config_;
}

void Checkpoint::check_unchanged() const {
  for (const Shard& shard : shards()) shard.file.check_unchanged();
}

void Checkpoint::check_same_files() const {
  if (source_) return source_->check_same_files();
  if (states_) states_->check_unchanged();
}

std::string Checkpoint::where(size_t tensor) const {
  return fmt::format("{}: {}", shard_of(tensor).name, tensors_[tensor].name);
}

void Checkpoint::read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const {
  if (source_) return source_->read(tensor, offset, out);
  const Shard& shard = shard_of(tensor);
  shard.file.read(shard.data_begin + tensors_[tensor].begin + offset, out);
}

std::optional<uint64_t> Checkpoint::computed_from(const Nvfp4Linear& module) const {
  return source_ ? source_->computed_from(module.codes) : std::nullopt;
}

void Checkpoint::read_rows(const Nvfp4Linear& module, const RowRange& rows, std::span<uint8_t> codes,
                           std::span<uint8_t> scales) const {
  check(source_ != nullptr, "a module whose weights are computed");
  source_->read_rows(module.codes, rows, codes, scales);
}

Json Checkpoint::computed_result(const Nvfp4Linear& module) const {
  return source_ ? source_->computed_result(module.codes) : Json(nullptr);
}

}  // namespace twofour
