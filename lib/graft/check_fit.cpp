#include "lib/graft/check_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "formats/naming.h"
#include "lib/base/findings/problems.h"
#include "lib/base/io/file.h"
#include "lib/graft/module_patterns.h"
#include "lib/source/config/config_terms.h"
#include "lib/source/config/model_config.h"
#include "lib/source/linears/weight_terms.h"

namespace twofour {
namespace {

std::optional<int64_t> size_of(const Checkpoint& c, const char* key) {
  const Json& value = model_setting(c.config(), key, (c.path() / "config.json").string());
  return value.is_number_integer() ? std::optional(value.get<int64_t>()) : std::nullopt;
}

/// The sides of a linear that are as wide as the hidden state. Source: Hugging Face transformers,
/// modeling_*.py.
enum class Sides { kInput, kOutput, kBoth, kTwice };  // kTwice is for hidden state and embedding side by side
struct SideRule {
  std::string_view leaf;
  Sides sides;
};
constexpr SideRule kSides[] = {
    {"q_proj", Sides::kInput},   {"k_proj", Sides::kInput},  {"v_proj", Sides::kInput},
    {"q_a_proj", Sides::kInput}, {"o_proj", Sides::kOutput}, {"kv_a_proj_with_mqa", Sides::kInput},
    {"eh_proj", Sides::kTwice},  {"fc", Sides::kTwice},      {"lm_head", Sides::kInput},
    {"head", Sides::kInput},     {"e_proj", Sides::kBoth},   {"h_proj", Sides::kBoth}};

/// Names of norms of the hidden state.
constexpr std::string_view kNorms[] = {"enorm",
                                       "hnorm",
                                       "input_layernorm",
                                       "post_attention_layernorm",
                                       "pre_fc_norm_embedding",
                                       "pre_fc_norm_hidden"};

std::optional<Sides> sides_of(const Linear& m) {
  if (const auto known = parse_module_name(m.name))
    return known->projection == Projection::kDown ? Sides::kOutput : Sides::kInput;
  const auto at = std::find_if(std::begin(kSides), std::end(kSides),
                               [&](const SideRule& r) { return r.leaf == leaf_of(m.name); });
  return at == std::end(kSides) ? std::nullopt : std::optional(at->sides);
}

bool fits(const Linear& m, Sides sides, int64_t hidden) {
  switch (sides) {
    case Sides::kInput:
      return m.k == hidden;
    case Sides::kOutput:
      return m.n == hidden;
    case Sides::kBoth:
      return m.k == hidden && m.n == hidden;
    case Sides::kTwice:
      return m.k == 2 * hidden && m.n == hidden;
  }
  return true;
}

/// The part of a linear's name that is the same in all layers: "experts.gate_proj", "q_proj".
std::string place_of(const Linear& m) {
  const auto known = parse_module_name(m.name);
  return known && known->expert >= 0 ? "experts." + std::string(leaf_of(m.name))
                                     : std::string(leaf_of(m.name));
}

class FitCheck {
 public:
  FitCheck(const Checkpoint& base, const std::vector<Linear>& of_base, const Checkpoint& donor)
      : base_(base), donor_(donor) {
    for (const Linear& m : of_base) shapes_[place_of(m)].insert({m.n, m.k});
  }

  void sizes_agree() {
    for (const char* key : {"hidden_size", "num_hidden_layers"}) {
      const auto ours = size_of(base_, key), theirs = size_of(donor_, key);
      if (!ours || !theirs || *ours == *theirs) continue;
      problems_.add("{}: {}: expected {} ({}), found {}", (donor_.path() / "config.json").string(), key,
                    *ours, (base_.path() / "config.json").string(), *theirs);
    }
  }

  void linear_fits(const Linear& m, const Linear* replaced) {
    if (replaced != nullptr && (m.n != replaced->n || m.k != replaced->k || m.e != replaced->e)) {
      problems_.add("{}: expected a matrix [{}, {}, {}] as in the base, found [{}, {}, {}]",
                    donor_.where(m.weight), replaced->e, replaced->n, replaced->k, m.e, m.n, m.k);
      return;
    }
    const auto hidden = size_of(base_, "hidden_size");
    const auto sides = sides_of(m);
    const bool as_others = shapes_[place_of(m)].contains({m.n, m.k});  // experts may work in a latent space
    if (replaced == nullptr && hidden && sides && !fits(m, *sides, *hidden) && !as_others) {
      problems_.add("{}: expected a matrix for the base's hidden_size {}, found [{}, {}]",
                    donor_.where(m.weight), *hidden, m.n, m.k);
    }
  }

  void tensor_fits(size_t tensor, const Checkpoint& base) {
    const TensorInfo& t = donor_.tensors()[tensor];
    const std::string_view module = module_of(t.name);
    const auto hidden = size_of(base_, "hidden_size");
    const auto expect = [&](const std::string& expected) {
      problems_.add("{}: expected {}, found {}", donor_.where(tensor), expected, describe(t));
    };
    const bool norm = std::find(std::begin(kNorms), std::end(kNorms), leaf_of(module)) != std::end(kNorms);
    if (norm && hidden && t.shape.size() == 1 && t.shape[0] != *hidden && t.shape[0] != *hidden * streams())
      expect(fmt::format("the base's hidden_size {}", *hidden));
    const auto role = module_role(module, kNoLayerCount);
    const bool vocabulary = leaf_of(t.name) == "weight" && t.shape.size() == 2 &&
                            (role == ModuleRole::kEmbeddings || role == ModuleRole::kHead ||
                             leaf_of(module) == "embed_tokens" || leaf_of(module) == "head");
    if (!vocabulary) return;
    const auto ours = base.find(t.name);
    const auto words = size_of(base_, "vocab_size");
    if (ours && base.tensors()[*ours].shape.size() == 2) {
      if (base.tensors()[*ours].shape[0] != t.shape[0])
        expect(fmt::format("{} rows as in the base", base.tensors()[*ours].shape[0]));
    } else if (words && t.shape[0] < *words) {
      expect(fmt::format("at least the base's vocab_size {} rows", *words));
    }
    if (hidden && is_float(t.dtype) && t.shape[1] != *hidden)
      expect(fmt::format("the base's hidden_size {}", *hidden));
  }

  /// Adds a problem if a block of the donor and the base differ in the number of experts. Applies only to
  /// bases with one number in all layers.
  void experts_fit(const std::vector<bool>& comes) {
    const int64_t promised = promised_experts(base_.config());
    std::map<std::string, int64_t> counts;
    for (size_t i = 0; i < comes.size(); ++i) {
      if (!comes[i]) continue;
      const auto parsed = parse_module_name(module_of(donor_.tensors()[i].name));
      if (parsed && parsed->expert >= 0) {
        int64_t& count = counts[std::string(parsed->block)];
        count = std::max(count, parsed->expert + 1);
      }
    }
    for (const auto& [block, count] : counts) {
      if (promised == 0 || count == promised) continue;
      problems_.add("{}: expected {} experts ({}), found {}", block, promised,
                    (base_.path() / "config.json").string(), count);
    }
  }

  /// Adds a problem if the donor gives a head, but the base ties its head to the embedding.
  void head_is_read(const std::vector<bool>& comes) {
    if (model_setting(base_.config(), "tie_word_embeddings") != Json(true)) return;
    for (size_t i = 0; i < comes.size(); ++i) {
      if (!comes[i] || !is_model_head(module_of(donor_.tensors()[i].name))) continue;
      problems_.add(
          "{}: expected no head, because {} ties it to the embedding (tie_word_embeddings), found one",
          donor_.where(i), (base_.path() / "config.json").string());
      return;
    }
  }

  void refuse() const { problems_.refuse(); }

 private:
  /// The number of parallel hidden states in a model with hyper-connections.
  int64_t streams() const {
    return size_of(base_, "hc_count").value_or(size_of(base_, "hc_mult").value_or(1));
  }

  const Checkpoint &base_, &donor_;
  /// Shapes {n, k} of the base's linears, by place_of().
  std::map<std::string, std::set<std::pair<int64_t, int64_t>>> shapes_;
  Problems problems_;
};

}  // namespace

void refuse_unlike_shapes(const Checkpoint& base, const std::vector<Linear>& of_base,
                          const std::vector<bool>& goes, const Checkpoint& donor,
                          const std::vector<Linear>& of_donor, const std::vector<bool>& comes) {
  FitCheck check(base, of_base, donor);
  check.sizes_agree();
  std::map<std::string_view, const Linear*> replaced;
  for (const Linear& m : of_base) {
    if (goes[m.weight]) replaced[m.name] = &m;
  }
  for (const Linear& m : of_donor) {
    if (!comes[m.weight]) continue;
    const auto at = replaced.find(m.name);
    check.linear_fits(m, at == replaced.end() ? nullptr : at->second);
  }
  for (size_t i = 0; i < comes.size(); ++i) {
    if (comes[i]) check.tensor_fits(i, base);
  }
  check.experts_fit(comes);
  check.head_is_read(comes);
  check.refuse();
}

namespace {

/// Returns the first field in which two readings of the same tensors differ: "FIELD: expected X, found Y".
std::string unlike_field(const Linear& a, const Linear& b) {
  std::string unlike;
  const auto compare = [&](const char* field, auto x, auto y) {
    if (unlike.empty() && x != y) unlike = fmt::format("{}: expected {}, found {}", field, x, y);
  };
  compare("format", std::string_view(a.format->name), std::string_view(b.format->name));
  compare("N", a.n, b.n);
  compare("K", a.k, b.k);
  compare("rows of a scale's block", a.scale_rows, b.scale_rows);
  compare("columns of a scale's block", a.scale_cols, b.scale_cols);
  compare("the number that is added to zero points", a.zero_offset, b.zero_offset);
  compare("order of K and N", a.k_outer, b.k_outer);
  compare("rows of gate and up", static_cast<int>(a.rows), static_cast<int>(b.rows));
  return unlike;
}

}  // namespace

void refuse_other_readings(const Checkpoint& from, const std::vector<Linear>& linears,
                           const Checkpoint& result,
                           const std::function<std::optional<std::string>(const Linear& module)>& new_name) {
  Problems problems, ignored;
  const std::vector<Linear> all = find_weight_modules(result, ignored);
  std::map<std::string_view, const Linear*> in_result;
  for (const Linear& m : all) in_result[m.name] = &m;
  WeightReader reader(from);
  for (const Linear& m : linears) {
    const auto name = m.format->coded ? new_name(m) : std::nullopt;
    if (!name) continue;
    const auto at = in_result.find(*name);
    const std::string unlike =
        at == in_result.end() ? "reading: expected one, found none" : unlike_field(m, *at->second);
    if (!unlike.empty()) {
      problems.add("{}: {} under the result's config; convert it to the base's format first",
                   from.where(m.weight), unlike);
      continue;
    }
    try {
      Linear as_there = m;
      reader.check_settings(as_there);
      as_there.symmetry = at->second->symmetry;
      as_there.wraps = at->second->wraps;
      as_there.lacks_config = at->second->lacks_config;
      as_there.is_ordered = at->second->is_ordered;
      reader.check_settings(as_there);
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      problems.add(e.what());
    }
  }
  problems.refuse();
}

void refuse_lost_terms(const Checkpoint& base, const std::vector<bool>& goes, const Checkpoint& donor,
                       const std::vector<Linear>& of_donor, const std::vector<bool>& comes,
                       const Checkpoint& result) {
  std::vector<const Linear*> taken;
  for (const Linear& m : of_donor) {
    if (comes[m.weight] && m.format->coded) taken.push_back(&m);
  }
  if (taken.empty()) return;
  Problems problems;
  const auto concerns = [&](const WeightTerm& term) {
    return std::any_of(taken.begin(), taken.end(), [&](const Linear* m) { return term.concerns(m->name); });
  };
  for (const WeightTerm& term : find_weight_terms(access_to(donor))) {
    if (!comes[term.tensor] && !term.is_in_header && concerns(term))
      problems.add("{}: {}", donor.where(term.tensor), term.problem);
  }
  for (const WeightTerm& term : find_weight_terms(access_to(base))) {
    if (!goes[term.tensor] && !term.is_in_header && term.scope && concerns(term))
      problems.add("{}: {}", base.where(term.tensor), term.problem);
  }
  const auto of_donors = find_config_terms(donor, donor.tensors());
  const auto of_result = find_config_terms(result, result.tensors());
  const auto add_missing = [&](const auto& terms, const auto& others, const Checkpoint& owner) {
    for (const ConfigTerm& term : terms) {
      if (term.rule == std::string_view("config-format") || term.rule == std::string_view("bad-config"))
        continue;
      if (std::none_of(others.begin(), others.end(),
                       [&](const ConfigTerm& o) { return o.problem == term.problem; }))
        problems.add(text_of(owner, term));
    }
  };
  add_missing(of_donors, of_result, donor);
  add_missing(of_result, of_donors, base);
  problems.refuse();
}

}  // namespace twofour
