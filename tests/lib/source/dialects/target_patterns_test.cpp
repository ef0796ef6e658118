#include "lib/source/dialects/target_patterns.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "lib/base/names/pattern.h"

namespace target_patterns_test {

using namespace twofour;

namespace {

using Names = std::vector<std::string>;

bool is_matched(const Names& targets, const std::string& name) {
  for (const std::string& text : targets) {
    if (text.starts_with("re:") ? NamePattern(text).matches(name) : text == name) return true;
  }
  return false;
}

/// Every member is matched by targets of its own group and of no other.
void check_groups(const std::vector<Names>& members) {
  for (size_t g = 0; g < members.size(); ++g) {
    const Names targets = target_patterns(members, g);
    for (size_t other = 0; other < members.size(); ++other) {
      for (const std::string& name : members[other]) {
        CAPTURE(name);
        CHECK(is_matched(targets, name) == (other == g));
      }
    }
  }
}

}  // namespace

TEST_CASE("groups that differ in their modules are expressions without a prefix") {
  const std::vector<Names> members = {{"model.layers.0.self_attn.q_proj", "model.layers.11.self_attn.q_proj"},
                                      {"model.layers.0.mlp.experts.0.up_proj"}};
  check_groups(members);
  const Names targets = target_patterns(members, 0);
  CHECK(targets.size() == 1);
  CHECK(is_matched(targets, "language_model.model.layers.5.self_attn.q_proj"));
  CHECK(!is_matched(targets, "model.layers.0.self_attn.q_proj_norm"));
}

TEST_CASE("layers are named where two groups share a form, and 1 is not 10") {
  check_groups(
      {{"model.layers.1.mlp.up_proj"}, {"model.layers.10.mlp.up_proj", "model.layers.2.mlp.up_proj"}});
}

TEST_CASE("what no expression tells apart is named") {
  const std::vector<Names> members = {{"model.layers.0.mlp.experts.0.up_proj", "lm_head"},
                                      {"model.layers.0.mlp.experts.1.up_proj"}};
  check_groups(members);
  CHECK(target_patterns(members, 1) == Names{"model.layers.0.mlp.experts.1.up_proj"});
}

TEST_CASE("a draft's layers are told from the model's by what precedes them") {
  check_groups({{"model.layers.0.mlp.up_proj"}, {"mtp.layers.0.mlp.up_proj"}});
}

TEST_CASE("experts of other names are matched as loaders ask for them") {
  const Names targets = target_patterns(
      {{"model.layers.0.block_sparse_moe.experts.0.w1", "model.layers.0.block_sparse_moe.experts.0.w2",
        "model.layers.0.block_sparse_moe.experts.0.w3"}},
      0);
  for (const char* leaf : {"w1", "w2", "w3", "gate_proj", "up_proj", "down_proj"}) {
    CAPTURE(leaf);
    CHECK(is_matched(targets, std::string("model.layers.3.block_sparse_moe.experts.0.") + leaf));
  }
}

}  // namespace target_patterns_test
