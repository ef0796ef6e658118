#include "lib/source/model/router_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>

#include "lib/base/findings/finding.h"
#include "lib/source/model/settings.h"

namespace twofour {
namespace {

constexpr const char* kGroupLimited = "group_limited_greedy";

constexpr FamilyRouter kDescribed{.renormalized = Renormalized::kIfConfigured};

/// Returns the name of a score function in config.json.
const char* name_of(RouterScores scores) {
  switch (scores) {
    case RouterScores::kSoftmax:
      return "softmax";
    case RouterScores::kSigmoid:
      return "sigmoid";
    case RouterScores::kSqrtSoftplus:
      return "sqrtsoftplus";
  }
  return "";
}

void expect_text(const Settings& s, std::string_view key, std::initializer_list<const char*> known) {
  const std::string found = s.text(key);
  if (found.empty() || std::find(known.begin(), known.end(), found) != known.end()) return;
  s.refuse(key, fmt::format("{}", fmt::join(known, " or ")));
}

void check_scores(RouterScores scores, const Settings& s) {
  const char* name = name_of(scores);
  for (const auto& [key, value] : s.config().items()) {
    if (!is_scoring_key(key)) continue;
    if (value.is_string() || key == "scoring_func") expect_text(s, key, {name});
    if (value == true && scores != RouterScores::kSigmoid) s.refuse(key, fmt::format("false for {}", name));
  }
}

bool is_renormalized(Renormalized rule, const Settings& s) {
  const bool configured = s.yes("norm_topk_prob", rule != Renormalized::kIfConfigured);
  if (rule == Renormalized::kAlways && !configured) s.refuse("norm_topk_prob", "true");
  return rule != Renormalized::kNever && configured;
}

/// Throws Error on groups of experts in a config of a family that has no groups.
void expect_no_groups(const Settings& s) {
  if (s.has("n_group") && s.count("n_group") != 1) s.refuse("n_group", "1, no groups of experts");
}

void read_groups(const FamilyRouter& family, const Settings& s, int64_t experts, int64_t top_k,
                 RouterRule& rule) {
  rule.sums_two = family.groups == ExpertGroups::kByTwo;
  rule.groups = s.has("n_group") ? s.count("n_group") : family.group_count;
  rule.kept_groups = s.has("topk_group") ? s.count("topk_group") : family.kept_groups;
  const int64_t least = rule.sums_two ? 2 : 1;
  if (experts % rule.groups != 0 || experts / rule.groups < least)
    s.refuse("n_group", fmt::format("groups of {} or more of the {} experts", least, experts));
  if (rule.kept_groups > rule.groups)
    s.refuse("topk_group",
             fmt::format("at most the {}", counted(static_cast<uint64_t>(rule.groups), "group")));
  const int64_t most = experts / rule.groups * rule.kept_groups;
  if (top_k > most) {
    s.refuse("topk_group",
             fmt::format("enough groups of {} experts for the {} of a token", experts / rule.groups, top_k));
  }
}

}  // namespace

const FamilyRouter* find_described_router(const Json& config) {
  const auto norm = config.find("norm_topk_prob");
  if (norm == config.end() || !norm->is_boolean()) return nullptr;
  for (const auto& [key, value] : config.items()) {
    if (is_scoring_key(key) && value == "softmax") return &kDescribed;
  }
  return nullptr;
}

bool is_scoring_key(std::string_view key) {
  const auto has = [&](std::string_view word) { return key.find(word) != key.npos; };
  return (has("scor") || has("router") || has("routing") || has("gating")) &&
         (has("func") || has("_fn") || has("activation") || has("use_sigmoid"));
}

RouterRule read_router_rule(const FamilyRouter& family, const Settings& s, int64_t experts, int64_t top_k) {
  RouterRule rule;
  rule.scores = family.scores;
  check_scores(family.scores, s);
  rule.renormalized = is_renormalized(family.renormalized, s);
  rule.scaling = s.positive("routed_scaling_factor", family.scaling > 0 ? family.scaling : 1);
  if (family.scaling == 0 && rule.scaling != 1) s.refuse("routed_scaling_factor", "1, no factor");
  switch (family.groups) {
    case ExpertGroups::kNone:
      expect_text(s, "topk_method", {family.correction != nullptr ? "noaux_tc" : "greedy"});
      expect_no_groups(s);
      break;
    case ExpertGroups::kIfConfigured:
      expect_text(s, "topk_method", {"greedy", kGroupLimited});
      if (s.text("topk_method") == kGroupLimited) read_groups(family, s, experts, top_k, rule);
      break;
    case ExpertGroups::kByTwo:
      expect_text(s, "topk_method", {"noaux_tc"});
      read_groups(family, s, experts, top_k, rule);
      break;
  }
  return rule;
}

}  // namespace twofour
