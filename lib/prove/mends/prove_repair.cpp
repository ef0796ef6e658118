#include "lib/prove/mends/prove_repair.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "formats/error.h"
#include "formats/json/access.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/parallel.h"
#include "lib/prove/origins/configured_formats.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOrder[] = {"files",         "donor-files",  "names",      "sizes",
                                       "donor-tensors", "donor-bytes",  "generation", "reciprocals",
                                       "fold",          "input-scales", "kv-scales",  "quantization"};
constexpr const char *kConfig = "config.json", *kHfQuantConfig = "hf_quant_config.json";

class ProvenRepair {
 public:
  ProvenRepair(const Checkpoint& artifact, const RepairSettings& settings, const RepairNote& note,
               const Checkpoint& source, const LooseFiles& loose, const Checkpoint* donor, Progress& progress)
      : artifact_(artifact),
        note_(note),
        source_(source),
        loose_(loose),
        state_{settings, donor, {}, source.config(), source.hf_quant_config()},
        progress_(progress) {
    for (size_t i = 0; i < source.tensors().size(); ++i) {
      const TensorInfo& t = source.tensors()[i];
      state_.tensors[t.name] = {t, &source, i};
    }
  }

  RepairProof run() {
    check_order();
    follow_files(state_, noted("files"), artifact_, source_, loose_, beside_);
    follow_donor_files();
    follow_names(state_, noted("names"));
    follow_sizes();
    follow_donor_tensors(state_, noted("donor-tensors"), source_, loose_);
    follow_donor_bytes(state_, noted("donor-bytes"), source_);
    follow_generation();
    derive_reciprocals(state_, noted("reciprocals"));
    derive_folds(state_, noted("fold"));
    derive_input_scales(state_, noted("input-scales"));
    derive_cache_scales(state_, noted("kv-scales"));
    check_tensors();
    check_configs();
    check_texts();
    check_index();
    check_donor();
    RepairProof proof{std::move(state_.differences)};
    proof.source_tensors = source_.tensors().size() + loose_.duplicates.size();
    for (const TensorInfo& t : source_.tensors()) proof.source_bytes += t.bytes();
    for (const auto& one : loose_.duplicates) proof.source_bytes += one.info.bytes();
    return proof;
  }

 private:
  const MendNote* noted(std::string_view mend) const {
    const auto at =
        std::find_if(note_.mends.begin(), note_.mends.end(), [&](auto& m) { return m.mend == mend; });
    return at == note_.mends.end() ? nullptr : &*at;
  }

  void check_order() {
    auto last = std::begin(kOrder);
    for (const MendNote& m : note_.mends) {
      const auto at = std::find(last, std::end(kOrder), m.mend);
      if (at == std::end(kOrder)) {
        state_.differ("mend", m.mend, "expected each mend once, in the fixed order, found it behind another");
        continue;
      }
      last = at + 1;
      for (const std::string& rule : m.rules) {
        if (!state_.wants(rule))
          state_.differ("mend", m.mend, fmt::format("expected rules of the request, found {}", rule));
      }
    }
  }

  void follow_donor_files() {
    const MendNote* const note = noted("donor-files");
    if (note == nullptr) return;
    for (const MendNote::Setting& s : note->settings) follow_number(s);
    for (const std::string& name : note->files) {
      if (name == kConfig && !note->settings.empty()) continue;
      written_.insert(name);
      const bool ours = fs::exists(artifact_.path() / name);
      const bool theirs = state_.donor != nullptr && fs::exists(state_.donor->path() / name);
      if (!theirs && ours) {
        state_.differ("file", name, "expected no such file, since the donor has none, found one");
      } else if (theirs && name == kConfig) {
        state_.config = state_.donor->config();
        takes_config_ = true;
      } else if (theirs && (!ours || !same_contents(state_.donor->path() / name, artifact_.path() / name))) {
        state_.differ(
            "file", name,
            ours ? "expected the donor's text, found another" : "expected the donor's text, found no file");
      }
    }
  }

  /// Follows a number of a token that the donor's config has.
  void follow_number(const MendNote::Setting& s) {
    Json theirs = state_.donor == nullptr ? Json() : state_.donor->config();
    const Json* const given = setting_at(theirs, s.key);
    Json* const now = setting_at(state_.config, s.key);
    const bool is_number = s.key.find("token") != s.key.npos;
    if (s.file != kConfig || !is_number || given == nullptr || now == nullptr || shown(*now) != s.before ||
        shown(*given) != s.after || *given == *now) {
      state_.differ("mend", fmt::format("{}: {}", s.file, s.key),
                    fmt::format("expected a number of a token that only the donor's {} has, found {} to "
                                "become {}",
                                kConfig, s.before, s.after));
      return;
    }
    *now = *given;
    sizes_ = true;
  }

  void follow_sizes() {
    const MendNote* const note = noted("sizes");
    if (note == nullptr) return;
    sizes_ = true;
    for (const MendNote::Setting& s : note->settings) {
      Json* const now = setting_at(state_.config, s.key);
      const std::string before = now == nullptr ? "absent" : shown(*now);
      if (before != s.before)
        state_.differ("mend", fmt::format("{}: {}", kConfig, s.key),
                      fmt::format("expected {} before the mend as the source says, found {} in its record",
                                  before, s.before));
      if (s.before == s.after)
        state_.differ("mend", fmt::format("{}: {}", kConfig, s.key), "expected a change, found none");
      Json value = parse_json(s.key, s.after);
      if (now != nullptr) {
        *now = std::move(value);
      } else {
        state_.config[s.key] = std::move(value);
      }
      check_size(s);
    }
  }

  /// Holds sizes that tensors show against these.
  void check_size(const MendNote::Setting& s) {
    const size_t dot = s.key.rfind('.');
    const std::string key = s.key.substr(dot + 1), above = s.key.substr(0, dot == s.key.npos ? 0 : dot);
    const bool is_language =
        above.empty() || std::find(std::begin(kLanguageConfigs), std::end(kLanguageConfigs), above) !=
                             std::end(kLanguageConfigs);
    if (!is_language) return;  // a tower has embeddings of its own
    const std::set<int64_t> sizes = shown_sizes(state_, key);
    const bool fits = std::any_of(sizes.begin(), sizes.end(),
                                  [&](int64_t size) { return s.after == std::to_string(size); });
    if (!sizes.empty() && !fits)
      state_.differ("mend", fmt::format("{}: {}", kConfig, s.key),
                    fmt::format("expected {} as tensors have, found {}", *sizes.rbegin(), s.after));
  }

  void follow_generation() {
    const char* const name = "generation_config.json";
    const MendNote* const note = noted("generation");
    if (note == nullptr && (written_.contains(name) || !fs::exists(source_.path() / name))) return;
    Json config = nullptr;
    try {
      config = parse_json(name, read_text(source_.open_again(name)));
    } catch (const Error&) {
      if (note != nullptr) throw;
    }
    for (const auto& [key, value] : config.items()) {
      const auto is_listed = [&key = key](const MendNote::Setting& s) { return s.key == key; };
      const bool goes =
          note != nullptr && std::any_of(note->settings.begin(), note->settings.end(), is_listed);
      if (state_.wants("odd-setting") && is_out_of_range(key, value) && !goes)
        state_.differ("mend", fmt::format("{}: {}", name, key),
                      "expected the record of a mend (generation), since it is out of range, found none");
    }
    if (note == nullptr) return;
    written_.insert(name);
    for (const MendNote::Setting& s : note->settings) {
      const std::string before = shown(member(config, s.key));
      if (before != s.before || s.after != "absent")
        state_.differ("mend", fmt::format("{}: {}", name, s.key),
                      fmt::format("expected {} to go, found {} to become {}", before, s.before, s.after));
      if (is_in_range(s.key, member(config, s.key)))
        state_.differ("mend", fmt::format("{}: {}", name, s.key),
                      "expected a value out of range, found one in range taken out");
      config.erase(s.key);
    }
    if (read_text(artifact_.path() / name) != format_json(config))
      state_.differ("file", name, "expected the source's settings without those that go, found another text");
  }

  void check_tensors() {
    const auto found = artifact_.tensors();
    std::vector<std::string> problems(found.size());
    for (const auto& [name, t] : state_.tensors) {
      if (!artifact_.find(name))
        state_.differ("source-tensor", name,
                      fmt::format("expected {}, found no such tensor", describe(t.info)));
    }
    parallel_for(found.size(), [&](size_t i) { problems[i] = compare(i); });
    for (size_t i = 0; i < found.size(); ++i) {
      if (!problems[i].empty()) state_.differ("bytes", found[i].name, problems[i]);
    }
  }
  std::string compare(size_t i) {
    const TensorInfo& t = artifact_.tensors()[i];
    const auto at = state_.tensors.find(t.name);
    if (at == state_.tensors.end()) return "expected no such tensor, found one";
    const MendedTensor& expected = at->second;
    if (t.dtype != expected.info.dtype || t.shape != expected.info.shape)
      return fmt::format("expected {}, found {}", describe(expected.info), describe(t));
    constexpr uint64_t kPiece = 4u << 20;
    std::vector<uint8_t> a, b;
    uint64_t wrong = 0, first = 0;
    for (uint64_t begin = 0; begin < t.bytes(); begin += kPiece) {
      check_interrupt();
      a.resize(std::min(kPiece, t.bytes() - begin));
      b.resize(a.size());
      artifact_.read(i, begin, a);
      expected.read(begin, b);
      progress_.done += 2 * a.size();
      if (a == b) continue;
      for (size_t j = 0; j < a.size(); ++j) {
        if (a[j] != b[j] && wrong++ == 0) first = begin + j;
      }
    }
    return wrong == 0
               ? std::string()
               : fmt::format("{} bytes differ from those that the mends give, the first at {}", wrong, first);
  }

  void check_configs() {
    const MendNote* const note = noted("quantization");
    check_config(kConfig, note, state_.config, artifact_.config());
    check_config(kHfQuantConfig, note, state_.hf_quant, artifact_.hf_quant_config());
    if (note == nullptr) return;
    for (const MendNote::Setting& s : note->settings) {
      const bool is_main = s.file == kConfig;
      if (!is_main && s.file != kHfQuantConfig) {
        state_.differ("mend", s.file, "expected a config, found another file in the record");
        continue;
      }
      check_setting(s, is_main ? state_.config : state_.hf_quant, s.before, "before");
      check_setting(s, is_main ? artifact_.config() : artifact_.hf_quant_config(), s.after, "after");
    }
    check_words();
  }
  void check_setting(const MendNote::Setting& s, const Json& config, const std::string& stated,
                     const char* when) {
    Json copy = config;
    const Json* at = setting_at(copy, s.key);
    if (at == nullptr && s.key == "quantization_config") at = setting_at(copy, "compression_config");
    const std::string found = at == nullptr ? "absent" : shown(*at);
    if (found == stated || stated == "absent") return;  // an empty entry counts as absent
    state_.differ("mend", fmt::format("{}: {}", s.file, s.key),
                  fmt::format("expected {} {} the mend, found {} in its record", found, when, stated));
  }
  void check_config(const char* name, const MendNote* quantization, const Json& expected, const Json& found) {
    const bool is_quantization = quantization != nullptr && quantization->files.contains(name);
    if (is_quantization && std::string_view(name) == kHfQuantConfig) return;
    const bool same =
        is_quantization ? without_quantization(expected) == without_quantization(found) : expected == found;
    if (!same) {
      state_.differ("config", name,
                    first_difference(without_quantization(expected), without_quantization(found)));
      return;
    }
    const bool changes = is_quantization || (sizes_ && std::string_view(name) == kConfig);
    if (changes || (takes_config_ && std::string_view(name) == kConfig)) return;
    compare_file(name);
  }
  /// Holds the words of a config that was rebuilt against the tensors.
  void check_words() {
    ConfiguredFormats formats(artifact_);
    const auto infos = state_.infos();
    for (const Nvfp4Linear& m : sound_modules(infos)) {
      const std::vector<bool> listed = formats.listed(m.name);
      if (std::find(listed.begin(), listed.end(), true) != listed.end() || !formats.is_target(m.name))
        state_.differ("quantization", m.name, "expected configs to have it as quantized, found not");
    }
  }

  void compare_file(const std::string& name) {
    const auto there = artifact_.path() / name, from = source_.path() / name;
    const bool ours = fs::exists(there), theirs = fs::exists(from);
    if (!ours && !theirs) return;
    if (ours != theirs) {
      state_.differ("file", name,
                    ours ? "expected no such file, found one" : "expected the source's, found none");
    } else if (!same_contents(from, there)) {
      state_.differ("file", name, "expected a copy of the source's, found other contents");
    }
  }

  void check_texts() {
    std::set<std::string> names;
    const auto is_text = [](const fs::path& path) {
      const std::string end = path.extension().string();
      return end == ".json" || end == ".jinja" || end == ".txt" || end == ".model" || end == ".py";
    };
    for (const auto& entry : fs::directory_iterator(source_.path())) {
      const std::string name = entry.path().filename().string();
      if (entry.is_regular_file() && is_text(entry.path()) && !name.ends_with(".safetensors.index.json"))
        names.insert(name);
    }
    for (const auto& entry : fs::recursive_directory_iterator(artifact_.path())) {
      if (!entry.is_regular_file()) continue;
      names.insert(entry.path().lexically_relative(artifact_.path()).string());
    }
    for (const Shard& s : artifact_.shards()) names.erase(s.name);
    names.erase(note_.readme);  // derived from twofour.json, whoever wrote the checkpoint
    for (const char* own : {kIndexName, kManifestName, kConfig, kHfQuantConfig}) names.erase(own);
    for (const std::string& name : names) {
      if (!written_.contains(name)) compare_file(name);
    }
  }

  void check_index() {
    const fs::path path = artifact_.path() / kIndexName;
    const Json index = parse_json(path.string(), read_text(path, 1u << 30));
    uint64_t bytes = 0;
    std::map<std::string, std::string> expected;
    for (size_t i = 0; i < artifact_.tensors().size(); ++i) {
      bytes += artifact_.tensors()[i].bytes();
      expected[artifact_.tensors()[i].name] = artifact_.shard_of(i).name;
    }
    for (const auto& [name, file] : member(index, "weight_map").items()) {
      const auto at = expected.find(name);
      if (at == expected.end() || file != Json(at->second))
        state_.differ("index", name, "expected the file that has it, found another in the index");
      if (at != expected.end()) expected.erase(at);
    }
    for (const auto& [name, file] : expected)
      state_.differ("index", name, "expected in the index, found it only in a file");
    if (member(member(index, "metadata"), "total_size") != Json(bytes))
      state_.differ("index", "metadata.total_size", fmt::format("expected {}, found another value", bytes));
  }

  void check_donor() {
    if (state_.donor == nullptr) return;
    std::map<std::string, std::string> headers;
    for (const Shard& s : state_.donor->shards()) headers[s.name] = s.header_hash.hex();
    Hasher hasher;
    for (const auto& [name, hash] : headers) hasher.update(fmt::format("{} {}\n", name, hash));
    if (const MendNote* const note = noted("donor-files")) {
      for (const std::string& name : note->files) {
        const auto path = state_.donor->path() / name;
        if (name == kConfig && !note->settings.empty()) continue;  // only numbers of it were taken
        if (fs::exists(path)) hasher.update(fmt::format("{} {}\n", name, hash_text(read_text(path)).hex()));
      }
    }
    if (hasher.digest().hex() != note_.donor)
      state_.differ("donor", state_.donor->path().string(),
                    "expected the donor with the recorded fingerprint, found another");
  }

  const Checkpoint& artifact_;
  const RepairNote& note_;
  const Checkpoint& source_;
  const LooseFiles& loose_;
  MendedState state_;
  Progress& progress_;
  std::set<std::string> beside_, written_;  ///< weight files beside the result's; files that mends wrote
  bool takes_config_ = false, sizes_ = false;
};

}  // namespace

RepairProof prove_repair(const Checkpoint& artifact, const RepairSettings& settings, const RepairNote& note,
                         const Checkpoint& source, const LooseFiles& loose, const Checkpoint* donor,
                         Progress& progress) {
  return ProvenRepair(artifact, settings, note, source, loose, donor, progress).run();
}

}  // namespace twofour
