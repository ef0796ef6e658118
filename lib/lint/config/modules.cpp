#include <algorithm>
#include <array>
#include <map>

#include "formats/json/access.h"
#include "formats/module_names.h"
#include "formats/weight_dialect.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/findings/finding.h"
#include "lib/base/names/unknown_codes.h"
#include "lib/base/names/weight_names.h"
#include "lib/lint/config/checks.h"
#include "lib/lint/config/coded_modules.h"
#include "lib/source/config/config_terms.h"
#include "lib/source/config/model_config.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/linears/expert_stacks.h"
#include "lib/source/linears/linear_shapes.h"
#include "lib/source/linears/linears.h"
#include "lib/source/linears/weight_terms.h"

namespace twofour {
namespace {

bool ends_with_any(std::string_view name, std::initializer_list<const char*> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](const char* end) { return name.ends_with(end); });
}

/// Compares the matrices that engines fuse.
void check_gate_up(const LintInput& s, const ModelFacts& model, LintReporter& reporter) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kPairs = {
      {{".gate_proj.weight", ".up_proj.weight"},
       {".w1.weight", ".w3.weight"},
       {".gate_proj.qweight", ".up_proj.qweight"}}};
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const TensorInfo& gate = s.tensors[i];
    for (const auto& [own, other] : kPairs) {
      const bool packed = gate.name.ends_with("_packed");
      const std::string_view name =
          std::string_view(gate.name).substr(0, gate.name.size() - (packed ? 7 : 0));
      if (!name.ends_with(own)) continue;
      std::string up_name(name.substr(0, name.size() - own.size()));
      up_name.append(other).append(packed ? "_packed" : "");
      const auto up = s.find(up_name);
      if (!up) continue;
      const TensorInfo& u = s.tensors[*up];
      if (u.dtype == gate.dtype && u.shape == gate.shape) continue;
      if (model.reported.contains(i) || model.reported.contains(*up)) continue;
      reporter.add("gate-up-shape", s.at(*up), "expected {} (as in the gate), found {}", describe(gate),
                   describe(u));
    }
  }
}

/// Reports FP8 scales of rows that are stored as [1, N]. Readers take them for scales of columns or blocks.
void check_turned_scales(const LintInput& s, const std::vector<CodedModule>& coded, LintReporter& reporter) {
  constexpr int64_t kBlock = 128;
  const TensorInfo* first = nullptr;
  size_t at = 0, count = 0;
  for (const CodedModule& m : coded) {
    if (!m.is_fp8() || m.is_stack || !m.scale || m.n < 2 || m.k <= kBlock) continue;
    const TensorInfo& scale = s.tensors[*m.scale];
    const bool is_turned = scale.shape == std::vector<int64_t>{1, m.n};
    if (!is_turned || !is_float(scale.dtype) || (m.k + kBlock - 1) / kBlock == m.n) continue;
    if (count++ == 0) first = &scale, at = *m.scale;
  }
  if (first == nullptr) return;
  reporter.add("module-shape", s.at(at), "expected {}, a scale for each row, found {}{}",
               describe(first->dtype, std::vector<int64_t>{first->shape[1], 1}), describe(*first),
               and_more(count, ", and in {} more modules"));
}

/// Reports tensors that change the meaning of weights, and stacks that can be read in two ways.
void check_meaning(const LintInput& s, const std::vector<CodedModule>& coded, bool headers_only,
                   LintReporter& reporter) {
  TensorAccess access{.tensors = s.tensors, .whole = &s.whole};
  if (!headers_only) {
    access.read = [&s](size_t tensor, uint64_t offset, std::span<uint8_t> out) {
      s.read(tensor, offset, out);
    };
  }
  access.file = [&s](size_t tensor) -> const Shard& { return s.shards[s.shard_of[tensor]]; };
  access.config = &s.config;
  // In an artifact, tensors of the source have no codes beside them.
  access.is_part = s.is_part || s.lacks_files || !s.layout.empty();
  const std::set<std::string> reported = reporter.reported_names();
  const auto is_reported = [&](const std::string& linear) {
    const auto at = reported.lower_bound(linear);
    return at != reported.end() && (*at == linear || at->starts_with(linear + "."));
  };
  for (const WeightTerm& term : find_weight_terms(access)) {
    if (term.weight || term.scope || !is_reported(term.linear))
      reporter.add(term.rule, s.at(term.tensor), term.problem);
  }
  for (const size_t i : find_unknown_codes(s.tensors, stated_storage(s.quantization).is_unlisted)) {
    if (!s.layout.empty() || reporter.reported_names().contains(s.tensors[i].name)) continue;
    if (any_above(s.tensors[i].name,
                  [&](std::string_view n) { return s.foreign.find(n) != s.foreign.end(); }))
      continue;
    reporter.add("unsupported-format", s.at(i), "expected codes of a format that twofour reads, found {}{}",
                 describe(s.tensors[i]), kNotSupported);
  }
  for (size_t i = 0; i < s.tensors.size() && s.layout.empty(); ++i) {
    if (!is_float(s.tensors[i].dtype) || s.tensors[i].shape.size() < 2) continue;
    const auto name = weight_name(s.tensors[i]);
    if (!name || !(name->is_stack || is_linear_name(name->linear)) || is_reported(name->linear)) continue;
    const std::string problem = scale_beside_floats(s.tensors, i, name->linear, name->is_stack);
    if (!problem.empty()) reporter.add("module-shape", s.at(i), problem);
  }
  if (s.layout.empty()) check_turned_scales(s, coded, reporter);
  for (const size_t i : find_quantizer_state(s.tensors)) {
    if (reported.contains(s.tensors[i].name)) continue;
    reporter.add("tensor-unknown", s.at(i),
                 "expected the module's own tensors, found a counter of its quantizer, which has no effect");
  }
  if (s.is_part || !s.is_directory) return;
  // Other checks compare what is promised with modules that have codes, and lists and objects with their
  // types.
  const bool is_compared = !coded.empty() || !s.layout.empty() || s.lacks_files;
  const std::span<const TensorInfo> tensors(s.tensors.data(), is_compared ? 0 : s.tensors.size());
  for (const ConfigTerm& term : find_config_terms(s.config, s.hf_quant_config, tensors)) {
    if (term.rule != std::string_view("bad-config"))
      reporter.add(term.rule, {term.file, term.key}, term.problem);
  }
  try {
    for (const ConfigTerm& term : find_side_terms(s.path))
      reporter.add(term.rule, {term.file, term.key}, term.problem);
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {  // another rule reports it
  }
  for (const UncertainStack& stack : find_uncertain_stacks(s.config, s.tensors))
    reporter.add("gate-up-order", s.at(stack.tensor), stack.problem);
}

/// Returns the numbers of layers, by the part of the name before them: "model.layers".
std::map<std::string, std::set<int64_t>, std::less<>> find_layers(const LintInput& s) {
  std::map<std::string, std::set<int64_t>, std::less<>> layers;
  for (const TensorInfo& t : s.tensors) {
    constexpr std::string_view kContainer = "layers.";
    const size_t at = t.name.find(kContainer), digits = at + kContainer.size();
    if (at == t.name.npos || (at > 0 && t.name[at - 1] != '.')) continue;
    const size_t end = t.name.find_first_not_of("0123456789", digits);
    if (end == t.name.npos || end == digits || end - digits > 9 || t.name[end] != '.') continue;
    int64_t layer = 0;
    for (size_t i = digits; i < end; ++i) layer = 10 * layer + (t.name[i] - '0');
    const auto prefix = std::string_view(t.name).substr(0, digits - 1);
    auto it = layers.find(prefix);
    if (it == layers.end()) it = layers.emplace(std::string(prefix), std::set<int64_t>{}).first;
    it->second.insert(layer);
  }
  return layers;
}

/// Reports numbers of layers with zeros before them.
void check_layer_names(const LintInput& s, LintReporter& reporter) {
  std::string last;
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    constexpr std::string_view kContainer = "layers.0";
    const std::string& name = s.tensors[i].name;
    const size_t at = name.find(kContainer), digit = at + kContainer.size();
    if (at == name.npos || (at > 0 && name[at - 1] != '.') || digit >= name.size() || name[digit] < '0' ||
        name[digit] > '9')
      continue;
    const std::string layer = name.substr(0, name.find('.', digit));
    if (layer == last) continue;
    last = layer;
    reporter.add("layer-numbers", s.at(i, layer), "expected a number without leading zeros, found {}",
                 leaf_of(layer));
  }
}

void check_layers(const LintInput& s, LintReporter& reporter) {
  const auto layers = find_layers(s);
  // If layers have two blocks each, num_hidden_layers may be the number of blocks.
  auto counts = promised_counts(s.config, {"num_layers"});
  if (counts.empty()) counts = promised_counts(s.config, {"num_hidden_layers"});
  const auto is_aside = [](std::string_view prefix) {
    return prefix.find("vis") != prefix.npos || prefix.find("audio") != prefix.npos ||
           prefix.find("mtp") != prefix.npos || prefix.find("encoder") != prefix.npos;
  };
  size_t most = 0;
  std::string main;
  const int64_t stated = counts.empty() ? 0 : *counts.rbegin();
  for (const auto& [prefix, numbers] : layers) {
    const int64_t missing = *numbers.rbegin() + 1 - static_cast<int64_t>(numbers.size());
    const bool is_one = missing == 1 && stated > 1 && !is_aside(prefix);
    if (is_one && *numbers.begin() == 1 && *numbers.rbegin() >= stated) {
      reporter.add("layer-numbers", {"", prefix},
                   "expected layers from 0 on, {} (num_hidden_layers), found 1 to {}: numbers begin at 1",
                   stated, *numbers.rbegin());
    } else if (is_one && !numbers.contains(stated) && *numbers.rbegin() > stated) {
      reporter.add("layer-numbers", {"", fmt::format("{}.{}", prefix, stated + 1)},
                   "expected drafts from layer {} on, after the last layer, found them from {} on", stated,
                   stated + 1);
    } else if (missing > 0) {
      int64_t first = 0;
      while (numbers.count(first)) ++first;
      reporter.add("layers-missing", {"", prefix}, "expected layers 0 to {}, found {} missing, the first {}",
                   *numbers.rbegin(), missing, first);
    }
    if (is_aside(prefix) || numbers.size() <= most) continue;
    most = numbers.size();
    main = prefix;
  }
  if (counts.empty() || main.empty()) return;
  const int64_t promised = *counts.rbegin(), last = *layers.at(main).rbegin();
  if (last + 1 < promised) {
    reporter.add("layers-missing", {"", main}, "expected {} (config.json), found {}",
                 counted(static_cast<uint64_t>(promised), "layer"), last + 1);
  }
  const auto mtp =
      promised_counts(s.config, {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"});
  if (mtp.empty()) return;
  const bool found = last >= promised || std::any_of(s.tensors.begin(), s.tensors.end(), [](auto& t) {
                       return t.name.find("mtp") != t.name.npos || t.name.find("nextn") != t.name.npos;
                     });
  if (!found) {
    reporter.add("mtp-missing", {"config.json", ""},
                 "expected {} layers for multi-token prediction, found no tensor of any", *mtp.begin());
  }
}

/// Returns the value of `key` for the language model; nullopt: config.json does not state it.
std::optional<bool> text_flag(const Json& config, const char* key) {
  std::optional<bool> flag;
  for (const Json* configured : model_settings(config, key)) {
    if (configured->is_boolean()) flag = configured->get<bool>();
  }
  return flag;
}

void check_head(const LintInput& s, const ModelFacts& model, bool differs, LintReporter& reporter) {
  auto tied = text_flag(s.config, "tie_word_embeddings");
  if (!tied) tied = model.tied;
  const std::vector<std::string> architectures = strings_of(s.config, "architectures");
  const bool generates = std::any_of(architectures.begin(), architectures.end(), [](const std::string& a) {
    return a.find("ForCausalLM") != a.npos || a.find("ForConditionalGeneration") != a.npos;
  });
  if (!tied || !generates || s.tensors.empty()) return;
  bool head = false, embedding = false;
  for (const TensorInfo& t : s.tensors) {
    head = head || is_model_head(module_of(t.name));
    embedding = embedding ||
                ends_with_any(t.name, {"embed_tokens.weight", "embed.weight", "embeddings.weight",
                                       "tok_embeddings.weight", "wte.weight", "embed_tokens.weight_packed"});
  }
  if (!*tied && !head) {
    reporter.add("head-missing", {"config.json", "tie_word_embeddings"},
                 "expected a head (lm_head.weight), because it is not tied to the embedding, found none");
  } else if (*tied && !head && !embedding && !model.embedding_reported) {
    reporter.add("head-missing", {"config.json", "tie_word_embeddings"},
                 "expected the embedding that the head is tied to, found none");
  } else if (*tied && head && !differs) {
    reporter.add("tied-head", {"config.json", "tie_word_embeddings"}, "expected no separate head, found one");
  }
}

/// True if two whole tensors differ. Only a few pieces are compared.
bool are_different(const LintInput& s, size_t a, size_t b) {
  const TensorInfo &x = s.tensors[a], &y = s.tensors[b];
  if (x.dtype != y.dtype || x.shape != y.shape || x.bytes() == 0) return x.shape != y.shape;
  if (!s.whole[a] || !s.whole[b]) return false;
  constexpr uint64_t kPiece = 1u << 16, kPieces = 16;
  std::vector<uint8_t> own(std::min(kPiece, x.bytes())), other(own.size());
  for (uint64_t i = 0; i < kPieces; ++i) {
    const uint64_t at = (x.bytes() - own.size()) / (kPieces - 1) * i;
    s.read(a, at, own);
    s.read(b, at, other);
    if (own != other) return true;
  }
  return false;
}

/// True if a stored head differs from the embedding to which a config ties it.
bool check_tied_head(const LintInput& s, const ModelFacts& model, bool headers_only, LintReporter& reporter) {
  const std::vector<const Json*> stated = model_settings(s.config, "tie_word_embeddings");
  const bool is_tied = has_tied_head(s.config) || (stated.empty() && model.tied.value_or(false));
  if (!is_tied || !s.layout.empty()) return false;
  std::optional<size_t> head, embedding;
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const std::string_view name = s.tensors[i].name;
    if (names_draft(name) || name.find("shared_head") != name.npos) continue;
    if (leaf_of(name) == "weight" && is_model_head(module_of(name))) head = i;
    if (!embedding && ends_with_any(name, {"embed_tokens.weight", "embed.weight", "tok_embeddings.weight",
                                           "wte.weight", "word_embeddings.weight", "embeddings.weight"}))
      embedding = i;
  }
  if (!head || !embedding) return false;
  const TensorInfo &h = s.tensors[*head], &e = s.tensors[*embedding];
  const bool differ = h.shape != e.shape || (!headers_only && are_different(s, *head, *embedding));
  if (!differ) return false;
  const bool several = std::any_of(stated.begin(), stated.end(), [](const Json* j) { return *j == false; });
  reporter.add("head-differs", {"config.json", "tie_word_embeddings"},
               "expected false{}, because {} and {} differ, found true", several ? " throughout" : "", h.name,
               e.name);
  return true;
}

}  // namespace

void lint_modules(const LintInput& s, const std::vector<CodedModule>& coded, bool headers_only,
                  LintReporter& reporter) {
  lint_name_prefix(s, reporter);
  ModelFacts model = lint_family(s, reporter);
  model.coded = &coded;
  check_gate_up(s, model, reporter);
  check_meaning(s, coded, headers_only, reporter);
  if (s.is_part) return;
  lint_complete(s, coded, headers_only, reporter);
  lint_experts(s, model, reporter);
  check_layers(s, reporter);
  check_layer_names(s, reporter);
  lint_drafts(s, model, reporter);
  lint_layer_parts(s, model, reporter);
  lint_vision(s, model, reporter);
  lint_common_shapes(s, model, reporter);
  const bool differs = check_tied_head(s, model, headers_only, reporter);
  check_head(s, model, differs, reporter);
}

}  // namespace twofour
