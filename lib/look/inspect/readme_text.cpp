#include "lib/look/inspect/readme_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/layouts/layouts.h"
#include "formats/weight_format.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/loader_lookup.h"

namespace twofour {
namespace {

/// A word of another program's config, without characters that Markdown would read.
std::string plain_word(std::string word) {
  for (char& c : word) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                          c == '-' || c == '_' || c == '.';
    if (!is_plain) c = '?';
  }
  return word;
}

std::string bytes_text(uint64_t bytes) {
  const auto count = static_cast<double>(bytes);
  return bytes >= 1'000'000'000 ? fmt::format("{:.2f} GB", count / 1e9)
         : bytes >= 1'000'000   ? fmt::format("{:.2f} MB", count / 1e6)
                                : fmt::format("{} bytes", bytes);
}

/// A description of the result of a layout or method.
std::string meaning_of(const std::string& method) {
  if (is_layout(method))
    return layout_pattern(method).empty() ? "NVFP4 in a layout for kernels"
                                          : "NVFP4, pruned to 2:4, in a layout for kernels";
  if (method == "nvfp4") return "NVFP4 with its codes and block scales unchanged";
  if (method == "quantize") return "NVFP4";
  if (method == "prune") return "the source's format, pruned";
  if (method == "fp8") return "FP8 E4M3";
  if (method == "bf16") return "BF16";
  for (const WeightFormat format : kMxFormats) {
    if (method == format->to) return format->name;
  }
  return "the source's format";
}

std::string origin_text(const std::string& command) {
  if (command == "graft")
    return "`twofour graft` wrote this checkpoint: modules of a second one replace or join those of the "
           "first";
  if (command == "drop")
    return "`twofour drop` wrote this checkpoint: modules or experts of the source are left out";
  if (command == "repair")
    return "`twofour repair` wrote this checkpoint: faults of the source are mended, and `twofour.json` "
           "lists each mend";
  return "twofour wrote this checkpoint from another one";
}

/// The cells of a table's row for the smallest, median and largest error. They have a fixed width, so that a
/// dry run knows the length of the file.
std::string figures_rows(const std::string& method, const ArtifactFacts::Made& made) {
  std::vector<std::pair<double, std::optional<double>>> sorted = made.errors;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string errors, ratios;
  for (const size_t at : {size_t{0}, sorted.size() / 2, sorted.size() - 1}) {
    const bool is_known = at < sorted.size();
    const std::string error = is_known ? fmt::format("{:.4g} %", 100 * sorted[at].first) : "unknown";
    const std::string ratio = !is_known           ? "unknown"
                              : sorted[at].second ? fmt::format("{:.2f} dB", *sorted[at].second)
                                                  : "exact";
    errors += fmt::format(" {:>14} |", error);
    ratios += fmt::format(" {:>14} |", ratio);
  }
  return fmt::format("| `{0}` | relative error |{1}\n| `{0}` | SNR |{2}\n", method, errors, ratios);
}

std::string figures_text(const ArtifactFacts& facts) {
  std::string rows;
  for (const auto& [method, made] : facts.made) {
    if (made.has_errors) rows += figures_rows(method, made);
  }
  if (rows.empty()) return {};
  return "\n## Figures\nOf each matrix, against the weights that it was made from. `twofour card PATH` lists "
         "all "
         "figures.\n\n"
         "| became | figure | smallest error | median error | largest error |\n"
         "| --- | --- | --- | --- | --- |\n" +
         rows;
}

}  // namespace

void ArtifactFacts::take(const Json& entry) {
  if (!entry.contains("gated")) return;
  Made& to = made[entry.at("layout").get<std::string>()];
  ++to.matrices;
  const auto quality = entry.find("quality");
  if (quality == entry.end() || !quality->contains("relative_error")) return;
  to.has_errors = true;
  const Json& error = quality->at("relative_error");
  if (!error.is_number()) return;
  const auto snr = quality->find("snr_db");
  const bool has_snr = snr != quality->end() && snr->is_number();
  to.errors.emplace_back(error.get<double>(), has_snr ? std::optional(snr->get<double>()) : std::nullopt);
}

void ArtifactFacts::take(const Recipe& recipe) {
  command = recipe.edit.name();
  for (const Rule& rule : recipe.rules) {
    is_solved = is_solved || !rule.statistics_hash.empty() || rule.awaits_statistics;
    is_masked = is_masked || !rule.mask_hash.empty();
  }
}

void ArtifactFacts::take_config(const Json& config, const Json& hf_quant_config) {
  const auto entry = quantization_entry(config);
  const bool has_method = entry && entry->value.is_object() && entry->value.contains("quant_method") &&
                          entry->value.at("quant_method").is_string();
  quant_method = has_method ? plain_word(entry->value.at("quant_method").get<std::string>())
                 : hf_quant_config.is_object() ? "modelopt"
                                               : "";
  unloaded = plain_word(find_unloaded_by_vllm(has_method ? entry->value : hf_quant_config));
}

std::string loading_text(const ArtifactFacts& facts) {
  if (facts.quant_method == "twofour") {
    return "transformers 5 needs an import of twofour's Python module. Without it, transformers warns of an "
           "unknown quantization type and takes random weights. vLLM finds the module where it is "
           "installed.\n\n"
           "```python\nimport twofour.integrations.transformers\n"
           "from transformers import AutoModelForCausalLM\n"
           "model = AutoModelForCausalLM.from_pretrained(\"PATH\", dtype=\"bfloat16\", "
           "device_map=\"cuda\")\n```\n\n"
           "Single layers run without either:\n\n"
           "```python\nimport twofour\nlayer = twofour.Artifact(\"PATH\").load(0, \"cuda\")  # or \"cpu\"\n"
           "out = layer(hidden, ids, weights)\n```\n\n"
           "`twofour convert PATH OUT --to nvfp4` writes a checkpoint that engines load without twofour.\n";
  }
  if (facts.quant_method.empty()) {
    return "No import of twofour is needed:\n\n"
           "```python\nfrom transformers import AutoModelForCausalLM\n"
           "model = AutoModelForCausalLM.from_pretrained(\"PATH\", dtype=\"auto\")\n```\n";
  }
  if (!facts.unloaded.empty()) {
    return fmt::format(
        "No import of twofour is needed, but vLLM has no loader of {}. Take an engine that has one, or "
        "`twofour convert PATH OUT --to bf16`, which writes a checkpoint that vLLM loads.\n",
        facts.unloaded);
  }
  return fmt::format(
      "No import of twofour is needed. Engines that read `quant_method` `{}` load it, vLLM among them:\n\n"
      "```sh\nvllm serve PATH\n```\n",
      facts.quant_method);
}

std::string proof_text(const ArtifactFacts& facts) {
  const std::string donor = facts.command == "graft" ? " --donor DONOR" : "";
  std::string text = fmt::format(
      "```sh\ntwofour validate PATH\ntwofour validate PATH --source SOURCE{}{}{}\n```\n\n"
      "The first compares every tensor and file with the hashes in `twofour.json`. The second derives every "
      "byte again from the source{}.\n",
      donor, facts.is_solved ? " --stats FILE" : "", facts.is_masked ? " --mask FILE" : "",
      facts.is_solved ? ", and solves some of the rows again that statistics chose" : "");
  if (facts.command == "repair") text += "If mends took from a donor, `--donor DONOR` names it.\n";
  if (facts.is_solved) text += "`--stats` names the file of these statistics.\n";
  if (facts.is_masked) text += "`--mask` names the file of masks by which weights were pruned.\n";
  return text;
}

std::string made_text(const ArtifactFacts& facts) {
  std::string rows;
  for (const auto& [method, made] : facts.made)
    rows += fmt::format("| `{}` | {} | {} |\n", method, made.matrices, meaning_of(method));
  return rows.empty() ? rows : "| became | matrices | format |\n| --- | --- | --- |\n" + rows;
}

std::string readme_text(const ArtifactFacts& facts) {
  const std::string made = made_text(facts);
  return fmt::format(
      "# A checkpoint that twofour wrote\n\n{}. It has {} of tensors; the source's weight files have {}.\n\n"
      "{}{}"
      "`twofour.json` has the recipe, and the hashes of the source and of every tensor and file; `copied` in "
      "it "
      "lists tensors that were not made anew. Below, PATH is this directory.\n\n"
      "## Loading\n{}\n## Proof\n{}{}",
      origin_text(facts.command), bytes_text(facts.bytes), bytes_text(facts.source_bytes), made,
      made.empty() ? "" : "\n", loading_text(facts), proof_text(facts), figures_text(facts));
}

}  // namespace twofour
