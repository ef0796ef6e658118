#include "formats/naming.h"

#include <doctest/doctest.h>

#include <string>

#include "formats/families/family.h"

namespace naming_test {

using namespace twofour;

namespace {

/// The names in front of "mlp.experts" in the checkpoints of all families.
const std::string kPrefixes[] = {"model.layers.7.",
                                 "model.language_model.layers.7.",
                                 "language_model.model.layers.7.",
                                 "layers.7.",
                                 "backbone.layers.7.",
                                 "mtp.layers.0.",
                                 "mtp.0.",
                                 "model.layers.61.mtp_block."};

/// A path with some number where the rule has any.
std::string path_of(const std::string& prefix, std::string path) {
  if (const size_t number = path.find('#'); number != path.npos) path.replace(number, 1, "11");
  return prefix + path;
}

void check(const std::string& name, BlockKind kind, Projection projection, int64_t expert,
           const std::string& block) {
  CAPTURE(name);
  const auto m = parse_module_name(name);
  REQUIRE(m);
  CHECK(m->kind == kind);
  CHECK(m->projection == projection);
  CHECK(m->expert == expert);
  CHECK(m->block == block);
}

/// The three matrices of one expert or MLP at `path`; a rule without gate has two.
void check_matrices(const NamingRule& rule, const std::string& path, BlockKind kind, int64_t expert,
                    const std::string& block) {
  if (rule.gate != nullptr) check(path + "." + rule.gate, kind, Projection::kGate, expert, block);
  check(path + "." + rule.up, kind, Projection::kUp, expert, block);
  check(path + "." + rule.down, kind, Projection::kDown, expert, block);
}

}  // namespace

TEST_CASE("every family's experts are found one by one, under every prefix") {
  for (const NamingRule& rule : naming_rules()) {
    if (rule.up == nullptr) continue;
    CAPTURE(std::string(rule.models));
    for (const std::string& prefix : kPrefixes) {
      const std::string block = path_of(prefix, rule.routed);
      for (const int64_t e : {0, 7, 10, 255}) {
        check_matrices(rule, block + "." + std::to_string(e), BlockKind::kRoutedExperts, e, block);
      }
    }
  }
}

TEST_CASE("every family's stacked experts are found, under every prefix") {
  for (const NamingRule& rule : naming_rules()) {
    if (rule.stacked_gate_up == nullptr) continue;
    CAPTURE(std::string(rule.models));
    for (const std::string& prefix : kPrefixes) {
      const std::string block = path_of(prefix, rule.routed);
      const std::string stacks = rule.stacks != nullptr ? prefix + rule.stacks : block;
      check(stacks + "." + rule.stacked_gate_up, BlockKind::kRoutedExperts, Projection::kGateUp, -1, block);
      check(stacks + "." + rule.stacked_down, BlockKind::kRoutedExperts, Projection::kDown, -1, block);
    }
  }
}

TEST_CASE("every family's shared experts and dense MLPs are found, under every prefix") {
  for (const NamingRule& rule : naming_rules()) {
    CAPTURE(std::string(rule.models));
    for (const std::string& prefix : kPrefixes) {
      if (rule.shared != nullptr) {
        check_matrices(rule, prefix + rule.shared, BlockKind::kSharedExpert, -1, prefix + rule.shared);
      }
      if (rule.dense != nullptr) {
        check_matrices(rule, prefix + rule.dense, BlockKind::kDenseMlp, -1, prefix + rule.dense);
      }
    }
  }
}

TEST_CASE("names of well-known checkpoints") {
  constexpr auto kRouted = BlockKind::kRoutedExperts, kShared = BlockKind::kSharedExpert,
                 kDense = BlockKind::kDenseMlp;
  check("model.layers.3.mlp.experts.127.gate_proj", kRouted, Projection::kGate, 127,
        "model.layers.3.mlp.experts");
  check("model.layers.3.mlp.shared_expert.up_proj", kShared, Projection::kUp, -1,
        "model.layers.3.mlp.shared_expert");
  check("model.layers.3.mlp.shared_experts.down_proj", kShared, Projection::kDown, -1,
        "model.layers.3.mlp.shared_experts");
  check("model.layers.0.mlp.gate_proj", kDense, Projection::kGate, -1, "model.layers.0.mlp");
  check("layers.5.ffn.experts.2.w3", kRouted, Projection::kUp, 2, "layers.5.ffn.experts");
  check("model.layers.1.block_sparse_moe.experts.7.w1", kRouted, Projection::kGate, 7,
        "model.layers.1.block_sparse_moe.experts");
  check("model.layers.1.block_sparse_moe.experts.7.w2", kRouted, Projection::kDown, 7,
        "model.layers.1.block_sparse_moe.experts");
  check("language_model.model.layers.1.feed_forward.experts.gate_up_proj", kRouted, Projection::kGateUp, -1,
        "language_model.model.layers.1.feed_forward.experts");
  check("language_model.model.layers.1.feed_forward.shared_expert.down_proj", kShared, Projection::kDown, -1,
        "language_model.model.layers.1.feed_forward.shared_expert");
  check("backbone.layers.4.mixer.experts.9.up_proj", kRouted, Projection::kUp, 9,
        "backbone.layers.4.mixer.experts");
}

TEST_CASE("families that stack experts say how they order rows of gate and up") {
  const ExpertStacks* gpt_oss = find_expert_stacks("gpt_oss");
  REQUIRE(gpt_oss != nullptr);
  CHECK(gpt_oss->rows == GateUpRows::kInterleaved);
  CHECK(gpt_oss->has_bias);
  // The names and biases of gpt-oss, the rows of the others.
  const ExpertStacks* filter = find_expert_stacks("openai_privacy_filter");
  REQUIRE(filter != nullptr);
  CHECK(filter->rows == GateUpRows::kHalves);
  CHECK(filter->has_bias);
  for (const char* type : {"llama4", "llama4_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_moe"}) {
    const ExpertStacks* family = find_expert_stacks(type);
    REQUIRE(family != nullptr);
    CHECK(family->rows == GateUpRows::kHalves);
    CHECK(!family->has_bias);
  }
  for (const char* type : {"", "gpt", "gpt_oss_", "GPT_OSS", "llama"})
    CHECK(find_expert_stacks(type) == nullptr);
}

TEST_CASE("experts without a gate have up and down only") {
  const std::string block = "backbone.layers.1.mixer.experts";
  check(block + ".0.up_proj", BlockKind::kRoutedExperts, Projection::kUp, 0, block);
  check(block + ".0.down_proj", BlockKind::kRoutedExperts, Projection::kDown, 0, block);
  CHECK(!parse_module_name(block + ".0.gate_proj"));
  CHECK(!parse_module_name("backbone.layers.1.mixer.gate_proj"));
}

TEST_CASE("what is no gate, up or down matrix of a feed-forward block has no name") {
  for (const char* name : {
           "",
           ".",
           "gate_proj",
           "lm_head",
           "model.embed_tokens",
           "model.layers.0.self_attn.q_proj",
           "model.layers.0.self_attn.o_proj",
           "model.layers.0.mlp.gate",
           "model.layers.0.mlp.shared_expert_gate",
           "model.layers.0.mlp.experts",
           "model.layers.0.mlp.experts.0",
           "model.layers.0.mlp.experts.0.gate",
           "model.layers.0.mlp.experts.x.gate_proj",
           "model.layers.0.mlp.experts.01.up_proj",
           "model.layers.0.mlp.experts.00.up_proj",
           "model.layers.0.mlp.experts.-1.up_proj",
           "model.layers.0.mlp.experts.+1.up_proj",
           "model.layers.0.mlp.experts.1x.up_proj",
           "model.layers.0.mlp.experts. 1.up_proj",
           "model.layers.0.mlp.experts..up_proj",
           "model.layers.0.mlp.experts.99999999999999999999.up_proj",
           "model.layers.0.mlp.experts.0.0.up_proj",
           "model.layers.0.mlp.experts.gate_proj",
           "model.layers.0.mlp.experts.gate_up_proj_bias",
           "model.layers.0.mlp.experts.0.gate_up_proj",
           "model.layers.0.mlp.experts.0.gate_proj.weight",
           "model.layers.0.xmlp.gate_proj",
           "model.layers.0.mlp_experts.0.up_proj",
           "model.layers.0.smlp.experts.0.up_proj",
           "model.layers.0.mlp.w1",
           "model.layers.0.mlp.GATE_PROJ",
           "model.layers.0.block_sparse_moe.gate",
           "model.layers.0.feed_forward.experts.1.w4",
           "model.layers.0.mixer.in_proj",
           "vision_tower.blocks.0.mlp.fc1",
       }) {
    CAPTURE(std::string(name));
    CHECK(!parse_module_name(name));
  }
}

TEST_CASE("the largest expert number is read whole, the next one not at all") {
  const std::string block = "model.layers.0.mlp.experts";
  check(block + ".9223372036854775807.up_proj", BlockKind::kRoutedExperts, Projection::kUp,
        9223372036854775807, block);
  CHECK(!parse_module_name(block + ".9223372036854775808.up_proj"));
}

}  // namespace naming_test
