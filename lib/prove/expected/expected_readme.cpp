#include "lib/prove/expected/expected_readme.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/io/file.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The figures of one matrix in twofour.json. NaN: twofour.json has none.
struct Figures {
  double error = NAN, snr = NAN;
};

/// The modules of twofour.json, by what they became. A method without figures has no matrix that states any.
struct Became {
  size_t matrices = 0, with_figures = 0;
  std::vector<Figures> known;
};

double number_or_nan(const Json& quality, const char* key) {
  return quality.contains(key) && quality.at(key).is_number() ? quality.at(key).get<double>() : NAN;
}

std::map<std::string, Became> read_modules(const fs::path& manifest, size_t tensors) {
  std::map<std::string, Became> all;
  parse_manifest_text(manifest, tensors, [&](Json& object) {
    const bool is_module = object.contains("gated") && object.contains("layout");
    if (is_module) {
      Became& one = all[object.at("layout").get<std::string>()];
      one.matrices += 1;
      if (object.contains("quality") && object.at("quality").contains("relative_error")) {
        const Json& quality = object.at("quality");
        one.with_figures += 1;
        const Figures found{number_or_nan(quality, "relative_error"), number_or_nan(quality, "snr_db")};
        if (!std::isnan(found.error)) one.known.push_back(found);
      }
    }
    return !is_module && !object.contains("xxh3_128") && !object.contains("codes_xxh3_128");
  });
  return all;
}

bool is_entry(const Json& config, const char* key) {
  return config.is_object() && config.contains(key) && config.at(key).is_object() && !config.at(key).empty();
}

/// The quantization entry that loaders find in config.json. Null if it has none.
const Json* find_entry(const Json& config) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (is_entry(config, key)) return &config.at(key);
    for (const char* part : {"text_config", "llm_config", "language_config"}) {
      if (is_entry(config, part) && is_entry(config.at(part), key)) return &config.at(part).at(key);
    }
  }
  return nullptr;
}

/// A word in which '?' replaces what Markdown could read.
std::string without_signs(std::string word) {
  constexpr std::string_view kPlain = "-_.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  for (size_t at = 0; (at = word.find_first_not_of(kPlain, at)) != word.npos;) word[at] = '?';
  return word;
}

/// The quantization method that the artifact's config files state. Empty if they state none.
std::string stated_method(const Checkpoint& artifact) {
  const Json* entry = find_entry(artifact.config());
  if (entry == nullptr || !entry->contains("quant_method") || !entry->at("quant_method").is_string())
    return artifact.hf_quant_config().is_object() ? "modelopt" : "";
  return without_signs(entry->at("quant_method").get<std::string>());
}

/// The algorithms of ModelOpt and the formats of compressed-tensors that vLLM 0.33 loads, in its linears or
/// in its experts. Formats of groups that this does not know count as loaded.
bool vllm_loads(const std::string& algorithm, bool is_mixed) {
  static const std::set<std::string> kBoth{"FP8",   "FP8_PB_WO",   "FP8_PER_CHANNEL_PER_TOKEN",
                                           "NVFP4", "W4A16_NVFP4", "MXFP8"};
  return kBoth.contains(algorithm) || (is_mixed && algorithm == "FP8_BLOCK_SCALES");
}

const Json& child(const Json& json, const char* key) {
  static const Json none;
  return json.is_object() && json.contains(key) ? json.at(key) : none;
}

/// What vLLM cannot load of the artifact, by its config files alone. Empty: nothing that is known.
std::string not_loaded(const Checkpoint& artifact) {
  const Json* found = find_entry(artifact.config());
  const bool has_method = found != nullptr && child(*found, "quant_method").is_string();
  const Json& entry = has_method ? *found : artifact.hf_quant_config();
  const auto word = [](const Json& json, const char* key) {
    return child(json, key).is_string() ? child(json, key).get<std::string>() : std::string();
  };
  if (word(entry, "quant_method") == "compressed-tensors") {
    const Json& groups = child(entry, "config_groups");
    for (auto group = groups.begin(); groups.is_object() && group != groups.end(); ++group) {
      const Json& weights = child(*group, "weights");
      if (child(weights, "num_bits") == Json(6) && word(weights, "type") == "float") return "MXFP6";
    }
    return {};
  }
  const bool is_modelopt = word(entry, "quant_method").rfind("modelopt", 0) == 0 ||
                           child(entry, "quantization").is_object() ||
                           word(child(entry, "producer"), "name") == "modelopt";
  if (!is_modelopt) return {};
  const Json& words = child(entry, "quantization").is_object() ? child(entry, "quantization") : entry;
  const auto algorithm = [&](const Json& json) {
    std::string text = word(json, "quant_algo");
    for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    return text;
  };
  const std::string single = algorithm(words);
  if (single != "MIXED_PRECISION")
    return single.empty() || vllm_loads(single, false) ? "" : without_signs(single);
  const Json& layers = child(words, "quantized_layers");
  for (auto layer = layers.begin(); layers.is_object() && layer != layers.end(); ++layer) {
    const std::string one = algorithm(*layer);
    if (!one.empty() && !vllm_loads(one, true)) return without_signs(one);
  }
  return {};
}

std::string size_of(uint64_t bytes) {
  if (bytes < 1'000'000) return std::to_string(bytes) + " bytes";
  const bool is_giga = bytes >= 1'000'000'000;
  return fmt::format("{:.2f} {}", static_cast<double>(bytes) / (is_giga ? 1e9 : 1e6), is_giga ? "GB" : "MB");
}

std::string format_of(const std::string& method) {
  static const std::map<std::string, std::string> kFormats = {
      {"v7", "NVFP4, pruned to 2:4, in a layout for kernels"},
      {"v7-packed", "NVFP4, pruned to 2:4, in a layout for kernels"},
      {"g8", "NVFP4 in a layout for kernels"},
      {"nvfp4", "NVFP4 with its codes and block scales unchanged"},
      {"quantize", "NVFP4"},
      {"prune", "the source's format, pruned"},
      {"fp8", "FP8 E4M3"},
      {"mxfp8", "MXFP8"},
      {"mxfp6", "MXFP6"},
      {"mxfp4", "MXFP4"},
      {"bf16", "BF16"}};
  const auto at = kFormats.find(method);
  return at == kFormats.end() ? "the source's format" : at->second;
}

std::string first_sentence(Edit::Kind kind) {
  switch (kind) {
    case Edit::Kind::kGraft:
      return "`twofour graft` wrote this checkpoint: modules of a second one replace or join those of the "
             "first.";
    case Edit::Kind::kDropModules:
    case Edit::Kind::kDropExperts:
      return "`twofour drop` wrote this checkpoint: modules or experts of the source are left out.";
    case Edit::Kind::kRepair:
      return "`twofour repair` wrote this checkpoint: faults of the source are mended, and `twofour.json` "
             "lists "
             "each mend.";
    case Edit::Kind::kNone:
      break;
  }
  return "twofour wrote this checkpoint from another one.";
}

constexpr const char* kLoadLayout =
    R"(transformers 5 needs an import of twofour's Python module. Without it, transformers warns of an unknown quantization type and takes random weights. vLLM finds the module where it is installed.

```python
import twofour.integrations.transformers
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("PATH", dtype="bfloat16", device_map="cuda")
```

Single layers run without either:

```python
import twofour
layer = twofour.Artifact("PATH").load(0, "cuda")  # or "cpu"
out = layer(hidden, ids, weights)
```

`twofour convert PATH OUT --to nvfp4` writes a checkpoint that engines load without twofour.
)";
constexpr const char* kLoadFloats = R"(No import of twofour is needed:

```python
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("PATH", dtype="auto")
```
)";

void add_loading(const std::string& method, const std::string& unloaded, std::ostream& to) {
  to << "## Loading\n";
  if (method == "twofour") {
    to << kLoadLayout;
  } else if (method.empty()) {
    to << kLoadFloats;
  } else if (!unloaded.empty()) {
    to << "No import of twofour is needed, but vLLM has no loader of " << unloaded
       << ". Take an engine that has one, or `twofour convert PATH OUT --to bf16`, which writes a checkpoint "
          "that "
          "vLLM loads.\n";
  } else {
    to << "No import of twofour is needed. Engines that read `quant_method` `" << method
       << "` load it, vLLM among them:\n\n```sh\nvllm serve PATH\n```\n";
  }
  to << "\n";
}

void add_proof(const Recipe& recipe, std::ostream& to) {
  bool statistics = false, masks = false;
  for (const Rule& rule : recipe.rules) {
    statistics |= !rule.statistics_hash.empty();
    masks |= !rule.mask_hash.empty();
  }
  to << "## Proof\n```sh\ntwofour validate PATH\ntwofour validate PATH --source SOURCE";
  if (recipe.edit.kind == Edit::Kind::kGraft) to << " --donor DONOR";
  if (statistics) to << " --stats FILE";
  if (masks) to << " --mask FILE";
  to << "\n```\n\nThe first compares every tensor and file with the hashes in `twofour.json`. The second "
        "derives "
        "every byte again from the source";
  if (statistics) to << ", and solves some of the rows again that statistics chose";
  to << ".\n";
  if (recipe.edit.kind == Edit::Kind::kRepair)
    to << "If mends took from a donor, `--donor DONOR` names it.\n";
  if (statistics) to << "`--stats` names the file of these statistics.\n";
  if (masks) to << "`--mask` names the file of masks by which weights were pruned.\n";
}

void add_figures(const std::map<std::string, Became>& modules, std::ostream& to) {
  bool has_any = false;
  for (const auto& [method, one] : modules) {
    if (one.with_figures == 0) continue;
    if (!has_any) {
      to << "\n## Figures\nOf each matrix, against the weights that it was made from. `twofour card PATH` "
            "lists "
            "all figures.\n\n| became | figure | smallest error | median error | largest error |\n"
            "| --- | --- | --- | --- | --- |\n";
      has_any = true;
    }
    std::vector<Figures> sorted = one.known;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const Figures& a, const Figures& b) { return a.error < b.error; });
    std::vector<std::string> errors(3, "unknown"), ratios(3, "unknown");
    for (size_t i = 0; i < 3 && !sorted.empty(); ++i) {
      const Figures& f = i == 0 ? sorted.front() : i == 1 ? sorted[sorted.size() / 2] : sorted.back();
      errors[i] = fmt::format("{:.4g} %", f.error * 100);
      ratios[i] = std::isnan(f.snr) ? "exact" : fmt::format("{:.2f} dB", f.snr);
    }
    for (const auto& [name, cells] : {std::pair{"relative error", &errors}, {"SNR", &ratios}}) {
      to << "| `" << method << "` | " << name << " |";
      for (const std::string& cell : *cells)
        to << ' ' << std::string(cell.size() < 14 ? 14 - cell.size() : 0, ' ') << cell << " |";
      to << '\n';
    }
  }
}

}  // namespace

std::string expected_readme(const Checkpoint& artifact, const Manifest& manifest) {
  const auto modules = read_modules(artifact.path() / kManifestName, artifact.tensors().size());
  uint64_t bytes = 0, source_bytes = 0;
  for (const TensorInfo& t : artifact.tensors()) bytes += t.bytes();
  for (const auto& file : manifest.sources) source_bytes += file.bytes;
  std::ostringstream text;
  text << "# A checkpoint that twofour wrote\n\n"
       << first_sentence(manifest.recipe.edit.kind) << " It has " << size_of(bytes)
       << " of tensors; the source's weight files have " << size_of(source_bytes) << ".\n\n";
  if (!modules.empty()) {
    text << "| became | matrices | format |\n| --- | --- | --- |\n";
    for (const auto& [method, one] : modules)
      text << "| `" << method << "` | " << one.matrices << " | " << format_of(method) << " |\n";
    text << "\n";
  }
  text << "`twofour.json` has the recipe, and the hashes of the source and of every tensor and file; "
          "`copied` in "
          "it lists tensors that were not made anew. Below, PATH is this directory.\n\n";
  add_loading(stated_method(artifact), not_loaded(artifact), text);
  add_proof(manifest.recipe, text);
  add_figures(modules, text);
  return text.str();
}

std::string expected_readme_name(const fs::path& source, size_t source_tensors, const Recipe& recipe) {
  if (recipe.readme != Readme::kWritten) return "";
  if (is_absent(source / "README.md")) return "README.md";
  if (is_absent(source / kManifestName)) return "TWOFOUR.md";
  Manifest of_source;
  try {
    of_source = read_manifest(source / kManifestName, source_tensors);
  } catch (const Error&) {
    return "TWOFOUR.md";  // nothing shows that twofour wrote the README.md
  }
  const auto noted = of_source.files.find("README.md");
  const bool is_twofours = of_source.integrity_error.empty() && of_source.readme == "README.md" &&
                           noted != of_source.files.end() && noted->second == hash_file(source / "README.md");
  return is_twofours ? "README.md" : "TWOFOUR.md";
}

}  // namespace twofour
