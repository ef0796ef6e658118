#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "formats/module_names.h"
#include "formats/weight_dialect.h"
#include "lib/checkpoint/gate_up_order.h"
#include "lib/checkpoint/linears.h"
#include "lib/checkpoint/model_config.h"
#include "lib/checkpoint/weight_terms.h"
#include "lib/lint/config/checks.h"
#include "lib/lint/config/coded_modules.h"
#include "lib/names/lookup_parts.h"

namespace twofour {
namespace {

bool ends_with_any(std::string_view name, std::initializer_list<const char*> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](const char* end) { return name.ends_with(end); });
}

/// Whether the tensor holds codes of a format other than NVFP4, with their scales beside them.
bool has_own_scales(const LintInput& s, const TensorInfo& t) {
  return std::any_of(weight_dialects().begin(), weight_dialects().end(), [&](const WeightDialect& d) {
    if (d.scale == nullptr || !d.weight_types.has(t.dtype) || !t.name.ends_with(d.weight)) return false;
    const auto scale = s.find(t.name.substr(0, t.name.size() - std::string_view(d.weight).size()) + d.scale);
    return scale && d.scale_types.has(s.tensors[*scale].dtype);
  });
}

/// Codes and block scales that lack what makes them numbers.
void check_complete(const LintInput& s, LintReporter& reporter) {
  std::vector<bool> is_complete(s.tensors.size());
  for (const Nvfp4Linear& m : s.modules) is_complete[m.codes] = is_complete[m.block_scale] = true;
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const TensorInfo& t = s.tensors[i];
    if (is_complete[i]) continue;
    for (const Nvfp4Dialect& d : nvfp4_dialects()) {
      if (t.dtype == DType::kF8E4M3 && t.name.ends_with(d.block_scale)) {
        const std::string module = t.name.substr(0, t.name.size() - std::string_view(d.block_scale).size());
        const auto codes = s.find(module + d.codes);
        const bool lacks = codes && s.tensors[*codes].dtype == DType::kU8 && !s.find(module + d.global_scale);
        if (!lacks) continue;
        reporter.add(
            "incomplete-module", s.file_of(i), module,
            fmt::format("expected {} beside its codes and block scales, found none", d.global_scale));
        break;
      }
      const bool codes =
          t.dtype == DType::kU8 && *d.codes != '\0' && t.name.ends_with(d.codes) && t.shape.size() == 2;
      if (!codes) continue;
      const std::string module = t.name.substr(0, t.name.size() - std::string_view(d.codes).size());
      // With a global scale it is reported as a module with tensors that disagree.
      if (s.find(module + d.block_scale) || s.find(module + d.global_scale) || has_own_scales(s, t)) continue;
      reporter.add("incomplete-module", s.file_of(i), module,
                   fmt::format("expected {} beside its codes, found none", d.block_scale));
      break;
    }
  }
}

/// FP8 that lacks the scale which the rest of it has.
void check_fp8_complete(const LintInput& s, const std::vector<CodedModule>& modules, LintReporter& reporter) {
  std::string_view suffix;
  for (const CodedModule& m : modules) {
    if (m.codes == CodedModule::Codes::kFp8 && !m.scale_suffix.empty() && !m.is_stack)
      suffix = m.scale_suffix;
  }
  const bool is_scaled = !suffix.empty();
  for (const CodedModule& m : modules) {
    if (!is_scaled || m.codes != CodedModule::Codes::kFp8 || m.scale) continue;
    reporter.add("incomplete-module", s.file_of(m.tensor), m.name,
                 fmt::format("expected {} beside its FP8 numbers as others have, found none", suffix));
  }
}

/// Codes of INT4 that lack their scales, or zero points that their producers always write.
void check_int4_complete(const LintInput& s, LintReporter& reporter) {
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const TensorInfo& t = s.tensors[i];
    if (t.dtype != DType::kI32) continue;
    for (const WeightDialect& d : weight_dialects()) {
      if (!d.format->integers || !t.name.ends_with(d.weight)) continue;
      const std::string module = t.name.substr(0, t.name.size() - std::string_view(d.weight).size());
      if (s.find(module + ".weight")) continue;  // stored twice, which is reported as such
      const bool needs_zeros = std::string_view(d.zero_points) == ".qzeros";
      for (const char* part : {d.scale, needs_zeros ? d.zero_points : d.scale}) {
        if (s.find(module + part)) continue;
        reporter.add("incomplete-module", s.file_of(i), module,
                     fmt::format("expected {} beside its codes, found none", part));
        break;
      }
    }
  }
}

/// Modules with weights that are stored twice.
void check_two_weights(const LintInput& s, LintReporter& reporter) {
  constexpr std::string_view kPacked = "_packed";
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const std::string& name = s.tensors[i].name;
    if (!name.ends_with(".weight_packed")) continue;
    const std::string plain = name.substr(0, name.size() - kPacked.size());
    if (!s.find(plain)) continue;
    reporter.add("two-weights", s.file_of(i), name,
                 fmt::format("expected no {} beside it, found one", plain));
  }
}

/// The matrices that engines put into one, side by side.
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
      reporter.add("gate-up-shape", s.file_of(*up), u.name,
                   fmt::format("expected {} as the gate has, found {}", describe(gate.dtype, gate.shape),
                               describe(u.dtype, u.shape)));
    }
  }
}

/// What changes the meaning of weights, and stacks that can be read in two ways.
void check_meaning(const LintInput& s, bool headers_only, LintReporter& reporter) {
  TensorAccess access{.tensors = s.tensors, .whole = &s.whole};
  if (!headers_only) {
    access.read = [&s](size_t tensor, uint64_t offset, std::span<uint8_t> out) {
      s.read(tensor, offset, out);
    };
  }
  access.file = [&s](size_t tensor) -> const Shard& { return s.shards[s.shard_of[tensor]]; };
  access.config = &s.config;
  // What an artifact keeps of its source has no codes beside it.
  access.is_part = s.is_part || s.lacks_files || !s.layout.empty();
  const std::set<std::string> reported = reporter.reported_names();
  const auto is_reported = [&](const std::string& linear) {
    const auto at = reported.lower_bound(linear);
    return at != reported.end() && (*at == linear || at->starts_with(linear + "."));
  };
  for (const WeightTerm& term : find_weight_terms(access)) {
    if (term.weight || !is_reported(term.linear))
      reporter.add(term.rule, s.file_of(term.tensor), s.tensors[term.tensor].name, term.problem);
  }
  for (const size_t i : find_quantizer_state(s.tensors)) {
    if (reported.contains(s.tensors[i].name)) continue;
    reporter.add(
        "tensor-unknown", s.file_of(i), s.tensors[i].name,
        "expected the module's own tensors, found what its quantizer counted, which changes nothing");
  }
  if (s.is_part || !s.is_directory) return;
  if (const auto term = find_config_term(s.quantization)) {
    const size_t key = term->find(": ");
    reporter.add("weight-term", s.quantization_file, term->substr(0, key), term->substr(key + 2));
  }
  for (const UncertainStack& stack : find_uncertain_stacks(s.config, s.tensors))
    reporter.add("gate-up-order", s.file_of(stack.tensor), s.tensors[stack.tensor].name, stack.problem);
}

/// Layer numbers by the name before them: "model.layers".
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

void check_layers(const LintInput& s, LintReporter& reporter) {
  const auto layers = find_layers(s);
  const auto counts = promised_counts(s.config, {"num_hidden_layers"});
  const auto is_aside = [](std::string_view prefix) {
    return prefix.find("vis") != prefix.npos || prefix.find("audio") != prefix.npos ||
           prefix.find("mtp") != prefix.npos || prefix.find("encoder") != prefix.npos;
  };
  size_t most = 0;
  std::string main;
  for (const auto& [prefix, numbers] : layers) {
    const int64_t missing = *numbers.rbegin() + 1 - static_cast<int64_t>(numbers.size());
    if (missing > 0) {
      int64_t first = 0;
      while (numbers.count(first)) ++first;
      reporter.add("layers-missing", "", prefix,
                   fmt::format("expected layers 0 to {}, found {} missing, the first {}", *numbers.rbegin(),
                               missing, first));
    }
    if (is_aside(prefix) || numbers.size() <= most) continue;
    most = numbers.size();
    main = prefix;
  }
  if (counts.empty() || main.empty()) return;
  const int64_t promised = *counts.rbegin(), last = *layers.at(main).rbegin();
  if (last + 1 < promised) {
    reporter.add("layers-missing", "", main,
                 fmt::format("expected {} layers as config.json says, found {}", promised, last + 1));
  }
  const auto mtp =
      promised_counts(s.config, {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"});
  if (mtp.empty()) return;
  const bool found = last >= promised || std::any_of(s.tensors.begin(), s.tensors.end(), [](auto& t) {
                       return t.name.find("mtp") != t.name.npos || t.name.find("nextn") != t.name.npos;
                     });
  if (!found) {
    reporter.add(
        "mtp-missing", "config.json", "",
        fmt::format("expected {} layers for multi-token prediction, found no tensor of any", *mtp.begin()));
  }
}

/// What `key` says of the language model; nothing where config.json doesn't say it.
std::optional<bool> text_flag(const Json& config, const char* key) {
  std::optional<bool> flag;
  for (const Json* said : model_settings(config, key)) {
    if (said->is_boolean()) flag = said->get<bool>();
  }
  return flag;
}

void check_head(const LintInput& s, const ModelFacts& model, bool differs, LintReporter& reporter) {
  auto tied = text_flag(s.config, "tie_word_embeddings");
  if (!tied) tied = model.tied;
  const std::vector<std::string> architectures = lookups::strings_of(s.config, "architectures");
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
    reporter.add("head-missing", "config.json", "tie_word_embeddings",
                 "expected a head (lm_head.weight), as it is not tied to the embedding, found none");
  } else if (*tied && !head && !embedding && !model.embedding_reported) {
    reporter.add("head-missing", "config.json", "tie_word_embeddings",
                 "expected the embedding that the head is tied to, found none");
  } else if (*tied && head && !differs) {
    reporter.add("tied-head", "config.json", "tie_word_embeddings", "expected no head of its own, found one");
  }
}

/// Whether two whole tensors differ, as far as a few pieces of them show.
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

/// Whether a head is stored beside an embedding that some config ties it to, and is another matrix.
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
  reporter.add("head-differs", "config.json", "tie_word_embeddings",
               fmt::format("expected false{} as {} is another matrix than {}, found true",
                           several ? " throughout" : "", h.name, e.name));
  return true;
}

/// Whether a tensor is part of a linear in INT4, by the codes beside it.
bool is_of_int4(const LintInput& s, std::string_view tensor) {
  const std::string module(module_of(tensor));
  for (const char* codes : {".qweight", ".weight_packed"}) {
    const auto at = s.find(module + codes);
    if (at && s.tensors[*at].dtype == DType::kI32) return true;
  }
  return false;
}

/// Zero points that are not what the config says of them: one finding for all modules, which it returns.
std::set<std::string> check_zero_points(const LintInput& s, const std::vector<Linear>& linears,
                                        WeightReader& reader, LintReporter& reporter) {
  std::string first, key;
  std::set<std::string> found;
  for (const Linear& m : linears) {
    if (m.symmetry.empty() || !s.whole[s.find(reader.checkpoint().tensors()[*m.zero_points].name).value()])
      continue;
    try {
      reader.check_zero_points(m);
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      found.insert(m.name);
      if (found.size() > 1) continue;
      first = e.what();
      key = m.symmetry.substr(0, m.symmetry.find(':'));
    }
  }
  if (found.empty()) return found;
  const std::string place = s.quantization_key.empty() ? key : s.quantization_key + "." + key;
  reporter.add("config-format", s.quantization_file, place,
               first + (found.size() > 1 ? fmt::format("; so do {} more modules", found.size() - 1) : ""));
  return found;
}

/// INT4 whose tensors contradict each other or the config: what no conversion reads.
void check_int4_values(const LintInput& s, bool headers_only, LintReporter& reporter) {
  if (std::none_of(s.tensors.begin(), s.tensors.end(), [](auto& t) { return t.dtype == DType::kI32; }))
    return;
  std::optional<Checkpoint> c;
  std::vector<Linear> linears;
  Problems problems;
  try {
    c.emplace(Checkpoint::open(s.path));
    linears = find_weight_modules(*c, problems);
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    return;  // reported by other rules
  }
  const auto report = [&](const std::string& line) {
    for (const Shard& shard : s.shards) {
      if (!line.starts_with(shard.name + ": ")) continue;
      const std::string rest = line.substr(shard.name.size() + 2), tensor = rest.substr(0, rest.find(": "));
      if (!s.find(tensor) || !is_of_int4(s, tensor)) return;
      // Other counts of bits are no damage.
      const bool unread = rest.find("expected integers of 4 bits") != rest.npos;
      reporter.add(unread ? "unsupported-format" : "module-shape", shard.name, tensor,
                   without_where(rest, tensor) + (unread ? kNotSupported : ""));
      return;
    }
  };
  for (const std::string& line : problems.lines()) report(line);
  if (headers_only) return;
  WeightReader reader(*c);
  const std::set<std::string> refused = check_zero_points(s, linears, reader, reporter);
  if (!problems.empty()) return;
  std::vector<float> row;
  for (const Linear& m : linears) {
    if (!m.format->integers || !m.group_index || refused.contains(m.name)) continue;
    row.resize(static_cast<size_t>(m.k));
    try {
      reader.read_rows(m, 0, 0, 1, row);
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      report(e.what());
    }
  }
}

}  // namespace

void lint_modules(const LintInput& s, const std::vector<CodedModule>& coded, bool headers_only,
                  LintReporter& reporter) {
  ModelFacts model = lint_family(s, reporter);
  model.coded = &coded;
  check_gate_up(s, model, reporter);
  check_two_weights(s, reporter);
  check_meaning(s, headers_only, reporter);
  if (s.is_part) return;
  check_complete(s, reporter);
  check_fp8_complete(s, coded, reporter);
  check_int4_complete(s, reporter);
  check_int4_values(s, headers_only, reporter);
  lint_experts(s, model, reporter);
  check_layers(s, reporter);
  lint_drafts(s, model, reporter);
  lint_common_shapes(s, model, reporter);
  const bool differs = check_tied_head(s, model, headers_only, reporter);
  check_head(s, model, differs, reporter);
}

}  // namespace twofour
