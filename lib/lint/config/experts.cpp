#include "lib/lint/config/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "formats/naming.h"
#include "lib/lint/bytes/checks.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

/// The name of a tensor of a routed expert, in parts.
struct ExpertName {
  std::string_view block;  ///< "model.layers.0.mlp.experts"
  std::string_view number;
  int64_t expert;
  std::string_view rest;  ///< "gate_proj.weight"
};

std::optional<ExpertName> parse_expert_name(std::string_view name) {
  constexpr std::string_view kContainer = "experts.";
  for (size_t at = name.find(kContainer); at != name.npos; at = name.find(kContainer, at + 1)) {
    if (at > 0 && name[at - 1] != '.') continue;  // the match is in another word, such as "shared_experts."
    const size_t digits = at + kContainer.size(), end = name.find_first_not_of("0123456789", digits);
    if (end == name.npos || end == digits || end - digits > 9 || name[end] != '.') continue;
    int64_t expert = 0;
    for (size_t i = digits; i < end; ++i) expert = 10 * expert + (name[i] - '0');
    return ExpertName{name.substr(0, digits - 1), name.substr(digits, end - digits), expert,
                      name.substr(end + 1)};
  }
  return std::nullopt;
}

/// One tensor of an expert.
struct Member {
  size_t tensor;          ///< in LintInput::tensors
  std::string_view rest;  ///< the part of the name after the expert's number
};
/// The tensors of each expert, sorted by `rest`.
using Experts = std::map<int64_t, std::vector<Member>>;

/// True if the tensors of two experts have the same type and shape. A scalar may be [] or [1].
bool is_alike(const TensorInfo& a, const TensorInfo& b) {
  const auto is_scalar = [](const TensorInfo& t) {
    return t.shape.empty() || t.shape == std::vector<int64_t>{1};
  };
  // The types of scales may differ, since loaders convert a scale to their own type.
  const bool same_type =
      a.dtype == b.dtype || (is_float(a.dtype) && is_float(b.dtype) && a.name.ends_with("_scale"));
  return same_type && (a.shape == b.shape || (is_scalar(a) && is_scalar(b)));
}

class BlockLint {
 public:
  BlockLint(const LintInput& s, std::string_view block, const Experts& experts,
            const std::set<int64_t>& promised, const std::set<size_t>& reported, LintReporter& reporter)
      : s_(s), block_(block), experts_(experts), promised_(promised), reported_(reported), sink_(reporter) {}

  void run() {
    check_count();
    check_router();
    const std::vector<Member>& model = most_common();
    for (const auto& [e, tensors] : experts_) {
      if (!alike(tensors, model)) compare(e, tensors, model);
    }
    check_input_scales();
  }

 private:
  void check_count() {
    const auto count = static_cast<int64_t>(experts_.size()), last = experts_.rbegin()->first;
    if (last + 1 > count) {
      int64_t first = 0;
      while (experts_.count(first)) ++first;
      sink_.add("experts-missing", {"", block_}, "expected experts 0 to {}, found {} missing, the first {}",
                last, last + 1 - count, first);
      return;  // whether the last ones are lost, too, shows when the gap is filled
    }
    if (promised_.empty() || promised_.count(count)) return;
    const int64_t most = *promised_.rbegin();
    const bool fewer = count < most;
    // The gap in the numbers is already reported.
    if (fewer && last + 1 >= most) return;
    sink_.add(fewer ? "experts-missing" : "experts-extra", {"", block_},
              "expected {} experts (config.json), found {}", most, count);
  }

  /// Checks that the router beside the experts has a row for each expert.
  void check_router() {
    const auto count = experts_.rbegin()->first + 1;
    const bool is_reported =
        count != static_cast<int64_t>(experts_.size()) || (!promised_.empty() && promised_.count(count) == 0);
    if (is_reported) return;
    const std::string parent(module_of(block_));
    for (const std::string_view name : router_paths()) {
      const auto router = s_.find(fmt::format("{}.{}.weight", parent, name));
      if (!router || reported_.contains(*router)) continue;
      const TensorInfo& t = s_.tensors[*router];
      if (t.shape.size() != 2 || t.shape[0] == count) continue;
      sink_.add("config-shape", s_.at(*router), "expected {} rows, one for each expert of {}, found {}",
                count, block_, describe(t));
    }
  }

  bool alike(const std::vector<Member>& a, const std::vector<Member>& b) const {
    return a.size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin(), [&](const Member& x, const Member& y) {
             return x.rest == y.rest && is_alike(s_.tensors[x.tensor], s_.tensors[y.tensor]);
           });
  }

  /// Returns the set of tensors that most experts have. In a tie, it is the first such set.
  const std::vector<Member>& most_common() const {
    std::vector<std::pair<const std::vector<Member>*, size_t>> kinds;
    for (const auto& [e, tensors] : experts_) {
      const auto same =
          std::find_if(kinds.begin(), kinds.end(), [&](auto& k) { return alike(*k.first, tensors); });
      if (same != kinds.end()) {
        ++same->second;
      } else if (kinds.size() < 16) {
        kinds.push_back({&tensors, 1});
      }
    }
    return *std::max_element(kinds.begin(), kinds.end(), [](auto& a, auto& b) {
              return a.second < b.second;
            })->first;
  }

  void compare(int64_t e, const std::vector<Member>& tensors, const std::vector<Member>& model) {
    std::set<std::string_view> present, changed, reported;  // names of matrices: "gate_proj"
    for (const Member& own : tensors) {
      present.insert(matrix_of(own.rest));
      const auto m =
          std::lower_bound(model.begin(), model.end(), own.rest,
                           [](const Member& member, std::string_view rest) { return member.rest < rest; });
      if (m == model.end() || m->rest != own.rest) continue;
      const TensorInfo &found = s_.tensors[own.tensor], &wanted = s_.tensors[m->tensor];
      if (is_alike(found, wanted)) continue;
      changed.insert(matrix_of(own.rest));
      if (reported_.contains(own.tensor)) continue;
      sink_.add("expert-shape", s_.at(own.tensor), "expected {} (as in the other experts), found {}",
                describe(wanted), describe(found));
    }
    for (const Member& m : model) {
      const bool there =
          std::any_of(tensors.begin(), tensors.end(), [&](auto& own) { return own.rest == m.rest; });
      const std::string_view matrix = matrix_of(m.rest);
      // An expert in another format need not have this tensor.
      if (there || changed.count(matrix)) continue;
      const TensorInfo& wanted = s_.tensors[m.tensor];
      const std::string type = describe(wanted);
      if (!present.count(matrix)) {
        if (!reported.insert(matrix).second) continue;
        sink_.add("experts-missing", {"", fmt::format("{}.{}.{}", block_, e, matrix)},
                  "expected it as in the other experts, found none");
      } else if (!is_input_scale(m.rest) && !is_nvfp4(model, matrix)) {  // NVFP4 is reported with its module
        sink_.add("experts-missing", {"", fmt::format("{}.{}.{}", block_, e, m.rest)},
                  "expected {} (as in the other experts), found none", type);
      }
    }
  }

  /// Reports matrices without an input scale if at least half of the experts have one in the same format.
  void check_input_scales() {
    std::map<std::string_view, std::vector<int64_t>> having;  // experts by the name of the scale
    for (const auto& [e, tensors] : experts_) {
      for (const Member& m : tensors) {
        if (is_input_scale(m.rest)) having[m.rest].push_back(e);
      }
    }
    for (const auto& [scale, with] : having) {
      std::vector<int64_t> without;
      for (const auto& [e, tensors] : experts_) {
        if (lacks(tensors, scale, experts_.at(with[0]))) without.push_back(e);
      }
      if (without.size() > with.size()) continue;  // where a config declares them, it says so
      const auto& model = experts_.at(with[0]);
      const auto at = std::ranges::find_if(model, [&](const Member& m) { return m.rest == scale; });
      for (const int64_t e : without) {
        sink_.add("missing-input-scale", {"", fmt::format("{}.{}.{}", block_, e, scale)},
                  "expected {} (as in the other experts), found none", describe(s_.tensors[at->tensor]));
      }
    }
  }

  /// True if an expert has a matrix in the same format as `model`, but not its input scale.
  bool lacks(const std::vector<Member>& tensors, std::string_view scale,
             const std::vector<Member>& model) const {
    const auto find = [&](std::string_view rest) {
      return std::ranges::find_if(tensors, [&](const Member& m) { return m.rest == rest; });
    };
    if (find(scale) != tensors.end()) return false;
    return std::ranges::all_of(model, [&](const Member& m) {
      if (matrix_of(m.rest) != matrix_of(scale) || is_input_scale(m.rest)) return true;
      const auto own = find(m.rest);
      return own != tensors.end() && is_alike(s_.tensors[m.tensor], s_.tensors[own->tensor]);
    });
  }

  static std::string_view matrix_of(std::string_view rest) { return rest.substr(0, rest.find('.')); }

  bool is_nvfp4(const std::vector<Member>& members, std::string_view matrix) const {
    return std::any_of(members.begin(), members.end(), [&](const Member& m) {
      return matrix_of(m.rest) == matrix && s_.tensors[m.tensor].dtype == DType::kU8;
    });
  }

  const LintInput& s_;
  const std::string block_;
  const Experts& experts_;
  const std::set<int64_t>& promised_;
  const std::set<size_t>& reported_;  ///< tensors with findings
  LintReporter& sink_;
};

}  // namespace

std::set<int64_t> promised_counts(const Json& config, std::initializer_list<const char*> keys) {
  std::set<int64_t> counts;
  for (const char* key : keys) {
    for (const Json* configured : model_settings(config, key)) {
      if (configured->is_number_integer() && configured->get<int64_t>() > 0)
        counts.insert(configured->get<int64_t>());
    }
  }
  return counts;
}

namespace {

/// Checks that a model with routed experts states the necessary numbers, by the keys of its family.
void check_stated(const LintInput& s, const ModelFacts& model, LintReporter& reporter) {
  // Without any size, the config of the language model is lost, which another rule reports.
  if (!s.config.is_object() || model_settings(s.config, "hidden_size").empty()) return;
  // If the config lacks a number, the model's class has a default.
  bool count = false,
       chosen = model.family != nullptr && *model.family->experts.per_token != '\0' &&
                FamilySizes(*model.family, s.config).number(model.family->experts.per_token).has_value();
  const auto has = [](std::string_view key, std::string_view word) { return key.find(word) != key.npos; };
  for (const Json* config : model_configs(s.config)) {
    for (const auto& [key, value] : config->items()) {
      const bool per_token = has(key, "per_tok") || has(key, "topk") || has(key, "top_k") || key == "moe_k" ||
                             has(key, "selected_experts");
      if (value.is_null() || value.is_boolean()) continue;  // norm_topk_prob, a boolean, is not a number
      chosen = chosen || per_token;
      count = count || (!per_token && has(key, "experts") && !has(key, "shared"));
    }
  }
  if (!count)
    reporter.add("odd-setting", {"config.json", "num_experts"}, "expected the count of experts, found none");
  if (!chosen)
    reporter.add("odd-setting", {"config.json", "num_experts_per_tok"},
                 "expected the count of experts per token, found none");
}

}  // namespace

namespace {

/// True if a block has a tensor of routed experts: one with "experts" in its name, or a stack with a matrix
/// for each of `count` experts.
bool has_experts(const LintInput& s, const std::string& block, int64_t count) {
  const std::string below = block.empty() ? "" : block + ".";
  auto at = std::lower_bound(s.tensors.begin(), s.tensors.end(), below,
                             [](const TensorInfo& t, const std::string& name) { return t.name < name; });
  for (; at != s.tensors.end() && at->name.starts_with(below); ++at) {
    const std::string_view rest = std::string_view(at->name).substr(below.size());
    if (any_part(rest, [](std::string_view part) { return part.starts_with("experts"); })) return true;
    if (at->shape.size() > 2 && at->shape[0] == count) return true;
  }
  return false;
}

/// Reports layers that have a router and none of the experts that it chooses from.
void check_routers_alone(const LintInput& s, const std::set<int64_t>& promised, LintReporter& reporter) {
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const TensorInfo& t = s.tensors[i];
    const std::string_view module = module_of(t.name), leaf = leaf_of(t.name);
    if (t.shape.size() != 2 || !(leaf == "weight" || leaf == "weight_packed") || !is_router(module)) continue;
    const int64_t rows = t.shape[0];
    if (!promised.contains(rows)) continue;
    for (const std::string_view path : router_paths()) {
      if (!ends_in(module, path) || module.size() == path.size()) continue;
      const std::string block(module.substr(0, module.size() - path.size() - 1));
      // The matrix of a longer path is "router.gate"; its experts are beside "router".
      const std::string_view above = leaf_of(block);
      if (above == "router" || above == "gate" || has_experts(s, block, rows)) continue;
      // The experts may be in another block of the layer.
      if (!is_number_part(above) && has_experts(s, std::string(parent_of(block)), rows)) continue;
      reporter.add("experts-missing", {"", block + ".experts"},
                   "expected {} experts, because {} has a row for each, found none", rows, t.name);
    }
  }
}

}  // namespace

void lint_experts(const LintInput& s, const ModelFacts& model, LintReporter& reporter) {
  const auto promised = model.experts ? std::set<int64_t>{*model.experts}
                                      : promised_counts(s.config, {"num_experts", "num_local_experts",
                                                                   "n_routed_experts", "moe_num_experts"});
  // Names are sorted, so the tensors of a block follow each other.
  std::string block, odd;
  Experts experts;
  bool routed = false;
  const auto finish = [&] {
    routed = routed || experts.size() > 1;
    if (!experts.empty()) BlockLint(s, block, experts, promised, model.reported, reporter).run();
    experts.clear();
  };
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const auto name = parse_expert_name(s.tensors[i].name);
    if (!name) continue;
    if (name->number.size() > 1 && name->number[0] == '0') {
      const std::string expert = fmt::format("{}.{}", name->block, name->number);
      if (expert == odd) continue;  // it is reported with its first tensor
      odd = expert;
      reporter.add("expert-name", s.at(i, expert),
                   "expected an expert's number without leading zeros, {}, found {}", name->expert,
                   name->number);
      continue;
    }
    if (name->block != block) {
      finish();
      block = name->block;
    }
    experts[name->expert].push_back({i, name->rest});
  }
  finish();
  if (routed && s.is_directory) check_stated(s, model, reporter);
  if (s.layout.empty()) check_routers_alone(s, promised, reporter);
  for (const Nvfp4Linear& m : s.modules) {
    if (!m.dialect->stacked || promised.empty() || promised.count(m.e)) continue;
    reporter.add(m.e < *promised.rbegin() ? "experts-missing" : "experts-extra", s.at(m.codes, m.name),
                 "expected {} experts (config.json), found {}", *promised.rbegin(), m.e);
  }
}

}  // namespace twofour
