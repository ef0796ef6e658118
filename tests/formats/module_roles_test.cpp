#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "formats/families/family_rows.h"
#include "formats/naming.h"

namespace module_roles_test {

using namespace twofour;

namespace {

struct Case {
  const char* model;
  const char* module;
  const char* role;  ///< "": none
};

/// Names as public files have them; of Hugging Face's transformers where it writes them.
constexpr Case kCases[] = {
    {"llama", "model.layers.0.self_attn.q_proj", "attention"},
    {"llama", "model.layers.0.mlp.down_proj", "mlp"},
    {"llama", "lm_head", "head"},
    {"llama", "model.embed_tokens", "embeddings"},
    {"qwen2_moe", "model.layers.0.mlp.gate", "router"},
    {"qwen2_moe", "model.layers.0.mlp.shared_expert_gate", "shared-experts"},
    {"qwen2_moe", "model.layers.0.mlp.shared_expert.up_proj", "shared-experts"},
    {"qwen3_moe", "model.layers.0.mlp.experts.17.gate_proj", "experts"},
    {"qwen3_next", "model.layers.0.linear_attn.in_proj_qkvz", "linear-attention"},
    {"qwen3_next", "model.layers.0.linear_attn.out_proj", "linear-attention"},
    {"qwen3_next", "mtp.layers.0.mlp.experts.0.up_proj", "mtp"},
    {"qwen3_next", "mtp.fc", "mtp"},
    {"qwen3_5_moe", "model.language_model.layers.3.mlp.experts.gate_up_proj", "experts"},
    {"qwen3_5_moe", "model.language_model.layers.3.linear_attn.in_proj_a", "linear-attention"},
    {"qwen3_5_moe", "model.visual.blocks.0.attn.qkv", ""},
    {"mixtral", "model.layers.0.block_sparse_moe.gate", "router"},
    {"mixtral", "model.layers.0.block_sparse_moe.experts.0.w2", "experts"},
    {"olmoe", "model.layers.0.mlp.gate", "router"},
    {"flex_olmo", "model.layers.0.mlp.experts.0.down_proj", "experts"},
    {"phimoe", "model.layers.0.block_sparse_moe.experts.0.w1", "experts"},
    {"phimoe", "model.layers.0.block_sparse_moe.gate", "router"},
    {"deepseek_v3", "model.layers.3.mlp.shared_experts.gate_proj", "shared-experts"},
    {"deepseek_v3", "model.layers.3.self_attn.kv_a_proj_with_mqa", "attention"},
    {"deepseek_v3", "model.layers.61.self_attn.q_a_proj", "mtp"},
    {"deepseek_v3", "model.layers.61.eh_proj", "mtp"},
    {"deepseek_v4", "layers.3.ffn.experts.0.w1", "experts"},
    {"deepseek_v4", "layers.3.ffn.shared_experts.w2", "shared-experts"},
    {"deepseek_v4", "layers.3.ffn.gate", "router"},
    {"deepseek_v4", "layers.3.attn.wq_a", "attention"},
    {"deepseek_v4", "layers.3.attn.indexer.weights_proj", "attention"},
    {"deepseek_v4", "layers.3.attn.compressor.wkv", "attention"},
    {"deepseek_v4", "mtp.0.ffn.experts.0.w1", "mtp"},
    {"deepseek_v4", "embed", "embeddings"},
    {"deepseek_v4", "head", "head"},
    {"glm4_moe", "model.layers.1.mlp.shared_experts.down_proj", "shared-experts"},
    {"glm_moe_dsa", "model.layers.1.self_attn.indexer.wq_b", "attention"},
    {"dots1", "model.layers.1.mlp.gate", "router"},
    {"ernie4_5_moe", "model.layers.1.mlp.shared_experts.up_proj", "shared-experts"},
    {"exaone_moe", "model.layers.1.mlp.experts.3.up_proj", "experts"},
    {"hunyuan_v1_moe", "model.layers.0.mlp.gate.wg", "router"},
    {"hunyuan_v1_moe", "model.layers.0.mlp.shared_mlp.gate_proj", "shared-experts"},
    {"jamba", "model.layers.0.mamba.in_proj", "linear-attention"},
    {"jamba", "model.layers.0.mamba.x_proj", "linear-attention"},
    {"jamba", "model.layers.1.feed_forward.router", "router"},
    {"jamba", "model.layers.1.feed_forward.experts.0.gate_proj", "experts"},
    {"jamba", "model.layers.0.feed_forward.up_proj", "mlp"},
    {"lfm2_moe", "model.layers.0.conv.in_proj", "linear-attention"},
    {"lfm2_moe", "model.layers.0.conv.out_proj", "linear-attention"},
    {"lfm2_moe", "model.layers.2.self_attn.out_proj", "attention"},
    {"lfm2_moe", "model.layers.2.feed_forward.gate", "router"},
    {"lfm2_moe", "model.layers.2.feed_forward.experts.0.w3", "experts"},
    {"lfm2_moe", "model.layers.0.feed_forward.w1", "mlp"},
    {"minimax_m2", "model.layers.0.block_sparse_moe.experts.0.w1", "experts"},
    {"minimax_m2", "model.layers.0.self_attn.o_proj", "attention"},
    {"gpt_oss", "model.layers.0.mlp.experts.gate_up_proj", "experts"},
    {"gpt_oss", "model.layers.0.mlp.router", "router"},
    {"llama4", "language_model.model.layers.0.feed_forward.experts.down_proj", "experts"},
    {"llama4", "language_model.model.layers.0.feed_forward.router", "router"},
    {"llama4", "language_model.model.layers.0.feed_forward.shared_expert.up_proj", "shared-experts"},
    {"llama4", "vision_model.model.layers.99.self_attn.q_proj", ""},
    {"gemma4", "model.language_model.layers.0.experts.gate_up_proj", "experts"},
    {"gemma4", "model.language_model.layers.0.experts.5.gate_proj", "experts"},
    {"gemma4", "model.language_model.layers.0.router.proj", "router"},
    {"gemma4", "model.language_model.layers.0.mlp.gate_proj", "mlp"},
    {"gemma4", "model.language_model.embed_tokens_per_layer", "embeddings"},
    {"gemma4", "model.vision_tower.encoder.layers.70.self_attn.q_proj.linear", ""},
    {"gemma4", "model.embed_vision.embedding_projection", ""},
    {"granitemoe", "model.layers.0.block_sparse_moe.input_linear", "experts"},
    {"granitemoe", "model.layers.0.block_sparse_moe.output_linear", "experts"},
    {"granitemoe", "model.layers.0.block_sparse_moe.router.layer", "router"},
    {"granitemoeshared", "model.layers.0.shared_mlp.input_linear", "shared-experts"},
    {"granitemoehybrid", "model.layers.0.mamba.out_proj", "linear-attention"},
    {"nemotron_h", "backbone.layers.0.mixer.in_proj", "linear-attention"},
    {"nemotron_h", "backbone.layers.0.mixer.out_proj", "linear-attention"},
    {"nemotron_h", "backbone.layers.1.mixer.q_proj", "attention"},
    {"nemotron_h", "backbone.layers.1.mixer.k_proj", "attention"},
    {"nemotron_h", "backbone.layers.1.mixer.v_proj", "attention"},
    {"nemotron_h", "backbone.layers.1.mixer.o_proj", "attention"},
    {"nemotron_h", "backbone.layers.2.mixer.up_proj", "mlp"},
    {"nemotron_h", "backbone.layers.2.mixer.down_proj", "mlp"},
    {"nemotron_h", "backbone.layers.3.mixer.gate", "router"},
    {"nemotron_h", "backbone.layers.3.mixer.experts.4.up_proj", "experts"},
    {"nemotron_h", "backbone.layers.3.mixer.shared_experts.down_proj", "shared-experts"},
    {"nemotron_h", "mtp.layers.0.mixer.experts.4.up_proj", "mtp"},
    {"kimi_k2", "model.layers.1.mlp.experts.300.up_proj", "experts"},
    {"kimi_k2.5", "language_model.model.layers.1.mlp.shared_experts.up_proj", "shared-experts"},
    {"minimax_m3", "model.layers.0.block_sparse_moe.shared_experts.w1", "shared-experts"},
    {"hy_v3", "model.layers.1.mlp.router.gate", "router"},
    {"longcat_flash", "model.layers.1.mlp.router.classifier", "router"},
    {"jetmoe", "model.layers.1.self_attention.experts.router.layer", "router"},
    {"a gate of attention", "model.layers.1.self_attn.gate", "attention"},
    {"a gate of linear attention", "model.layers.1.linear_attn.gate", "linear-attention"},
    {"a matrix of an expert", "model.layers.1.mlp.experts.0.gate", "experts"},
    {"a matrix of a shared expert", "model.layers.1.mlp.shared_experts.gate", "shared-experts"},
};

}  // namespace

TEST_CASE("modules of every family have the role that they play in it") {
  for (const Case& c : kCases) {
    CAPTURE(c.model);
    CAPTURE(c.module);
    const auto role = module_role(c.module, 61);
    CHECK((role ? std::string(role_name(*role)) : "") == c.role);
    if (std::string_view(c.role) != "mtp" && *c.role != '\0')
      CHECK(is_router(c.module) == (role == ModuleRole::kRouter));
  }
}

TEST_CASE("the routers of all families are routers by every question about roles") {
  size_t routers = 0;
  for (const FamilyShapes& family : family_shapes()) {
    for (const FamilyRow& row : family_rows(family.parameters)) {
      if (row.kind != ParameterKind::kRouter || row.is_bias || row.n == "1") continue;
      std::string name(row.module());
      for (size_t at; (at = name.find('#')) != name.npos;) name.replace(at, 1, "0");
      CAPTURE(name);
      ++routers;
      CHECK(is_router(name));
      CHECK(module_role(name, 1) == ModuleRole::kRouter);
      CHECK(is_router_part(has_part(name, "router") ? "router" : "gate"));
    }
  }
  CHECK(routers > 20);
  for (const std::string_view path : router_paths()) {
    const std::string name = fmt::format("model.layers.0.mlp.{}", path);
    CHECK((is_router(name) && module_role(name, 1) == ModuleRole::kRouter));
  }
}

TEST_CASE("stacks have the block of their experts, and the tensor that holds them") {
  const auto granite = parse_module_name("model.layers.0.block_sparse_moe.input_linear");
  REQUIRE(granite);
  CHECK(granite->block == "model.layers.0.block_sparse_moe.experts");
  CHECK(granite->expert == -1);
  CHECK(granite->projection == Projection::kGateUp);
  CHECK(stack_tensor(granite->block, Projection::kDown) ==
        "model.layers.0.block_sparse_moe.output_linear.weight");
  const auto gemma = parse_module_name("model.layers.11.experts.down_proj");
  REQUIRE(gemma);
  CHECK(gemma->block == "model.layers.11.experts");
  CHECK(stack_tensor(gemma->block, Projection::kGateUp) == "model.layers.11.experts.gate_up_proj");
  CHECK(!parse_module_name("model.layers.x.experts.down_proj"));
  CHECK(!parse_module_name("layers.experts.0.down_proj"));
  CHECK(stack_tensor("model.layers.0.ffn.experts", Projection::kDown).empty());
  // No family has rows of gate and up in turn in stacks of rows.
  for (const char* type : {"gpt_oss", "llama4", "gemma4", "granitemoe", "qwen3_vl_moe"}) {
    const ExpertStacks* family = find_expert_stacks(type);
    REQUIRE(family != nullptr);
    CHECK(family->files != ExpertFiles::kApart);
  }
}

TEST_CASE("a router that transformers renames is known under both names") {
  CHECK(name_in_transformers("phimoe", "model.layers.3.block_sparse_moe.gate") ==
        "model.layers.3.mlp.router");
  CHECK(name_in_transformers("mixtral", "model.layers.3.block_sparse_moe.gate").empty());
  CHECK(name_in_transformers("phimoe", "model.layers.3.self_attn.q_proj").empty());
}

TEST_CASE("experts of drafts are told from the model's and from the rest of a draft") {
  for (const char* name :
       {"mtp.0.ffn.experts.3.w1", "mtp.0.ffn.experts", "model.layers.61.mlp.experts.0.up_proj",
        "mtp.layers.0.mlp.experts.gate_up_proj",
        "language_model.model.mtp.layers.0.transformer_layer.block_sparse_moe.experts.0.w2"}) {
    CAPTURE(name);
    CHECK(is_draft_expert(name, 61));
  }
  for (const char* name :
       {"layers.0.ffn.experts.3.w1", "model.layers.60.mlp.experts.0.up_proj", "mtp.0.ffn.shared_experts.w1",
        "mtp.0.attn.wq_a", "mtp.0.ffn.gate", "mtp.0.e_proj", "model.layers.61.eh_proj"}) {
    CAPTURE(name);
    CHECK(!is_draft_expert(name, 61));
  }
}

TEST_CASE("DeepSeek-V4's modules have other names in transformers, some families' attention in vLLM") {
  const auto transformers = [](const char* name) { return name_in_transformers("deepseek_v4", name); };
  CHECK(transformers("head") == "lm_head");
  CHECK(transformers("model.layers.0.attn.wq_b") == "model.layers.0.self_attn.q_b_proj");
  CHECK(transformers("layers.2.attn.compressor.wgate") == "layers.2.self_attn.compressor.gate_proj");
  CHECK(transformers("layers.2.attn.indexer.wq_b") == "layers.2.self_attn.compressor.indexer.q_b_proj");
  CHECK(transformers("layers.2.attn.indexer.compressor.wkv") ==
        "layers.2.self_attn.compressor.indexer.kv_proj");
  CHECK(transformers("layers.2.attn.indexer.weights_proj") ==
        "layers.2.self_attn.compressor.indexer.scorer.weights_proj");
  CHECK(transformers("layers.2.ffn.shared_experts.w3") == "layers.2.mlp.shared_experts.up_proj");
  CHECK(transformers("model.norm").empty());
  CHECK(name_in_vllm("jamba", "model.layers.1.self_attn.q_proj") == "model.layers.1.q_proj");
  CHECK(name_in_vllm("gpt_oss", "model.layers.1.self_attn.q_proj") == "model.layers.1.attn.q_proj");
  CHECK(name_in_vllm("deepseek_v4", "model.layers.1.ffn.shared_experts.w2") ==
        "model.layers.1.ffn.shared_experts.down_proj");
  CHECK(name_in_vllm("llama", "model.layers.1.self_attn.q_proj").empty());
}

TEST_CASE("a router is found wherever a family keeps it") {
  for (const char* name :
       {"model.layers.0.mlp.gate", "layers.3.ffn.gate", "model.layers.0.block_sparse_moe.gate",
        "backbone.layers.3.mixer.gate", "model.layers.2.feed_forward.gate", "model.layers.0.mlp.router",
        "model.layers.0.mlp.gate.wg", "model.layers.0.block_sparse_moe.router.layer",
        "model.language_model.layers.0.router.proj", "model.layers.1.mlp.router.gate", "mtp.0.ffn.gate"}) {
    CAPTURE(name);
    CHECK(is_router(name));
  }
  for (const char* name : {"model.layers.0.mlp.gate_proj", "model.layers.0.mlp.shared_expert_gate",
                           "model.layers.0.self_attn.gate", "model.layers.0.attn.wg",
                           "model.layers.0.mlp.experts.0.layer", "model.layers.0.proj", "aggregate"}) {
    CAPTURE(name);
    CHECK(!is_router(name));
  }
  CHECK(is_shared_expert_gate("model.layers.0.mlp.shared_expert_gate"));
  CHECK((is_router_part("moe_statics") && !is_router_part("experts")));
}

TEST_CASE("heads of models and of drafts") {
  for (const char* name : {"lm_head", "language_model.lm_head", "head", "output"})
    CHECK((is_head(name) && is_model_head(name)));
  CHECK((is_head("model.layers.61.shared_head.head") && !is_model_head("model.layers.61.shared_head.head")));
  for (const char* name : {"model.layers.0.head", "model.layers.0.attn.output", "lm_head.bias", ""})
    CHECK(!is_head(name));
  CHECK((is_in_mtp("mtp.0.head") && !is_in_mtp("mtp") && !is_in_mtp("model.mtp.0") &&
         names_draft("model.mtp.0")));
}

TEST_CASE("names are taken apart at their dots, which they need not have") {
  CHECK((leaf_of("a.b.c") == "c" && leaf_of("c") == "c" && leaf_of("a.") == ""));
  CHECK((parent_of("a.b.c") == "a.b" && parent_of("c").empty()));
  CHECK((module_of("a.b.weight") == "a.b" && module_of("blocks") == "blocks"));
  CHECK((ends_in("a.mlp.gate", "mlp.gate") && ends_in("gate", "gate") && !ends_in("a.expert_gate", "gate")));
  CHECK((is_below("a.b", "a") && !is_below("ab", "a") && !is_below("a", "a")));
  CHECK((has_part("a.b.c", "b") && !has_part("a.bc", "b")));
  std::string asked;
  CHECK(!any_above("a.b.c", [&](std::string_view name) { return asked += fmt::format("{} ", name), false; }));
  CHECK(asked == "a.b.c a.b a ");
}

TEST_CASE("embeddings and their pieces are tables, not linears") {
  for (const char* name : {"model.embed_tokens", "wte", "model.embed_tokens_per_layer", "x.ngram_embedding",
                           "x.ngram_embedding.shard_0", "x.ngram_embedding.shards.127", "embed.shard_12"}) {
    CAPTURE(name);
    CHECK(is_table_name(name));
    CHECK(!is_linear_name(name));
  }
  for (const char* name : {"lm_head", "x.shard_0", "shard_0", "x.embed_tokens.proj", "embed.shard_",
                           "embed.shard_a", "embed.shards.x", "embed.1", "x.shards.3"}) {
    CAPTURE(name);
    CHECK(!is_table_name(name));
    CHECK(is_linear_name(name));
  }
  for (const char* name : {"x.conv1d", "x.input_layernorm"})
    CHECK((!is_table_name(name) && !is_linear_name(name)));
}

TEST_CASE("the embedding that a piece belongs to") {
  CHECK(table_of_piece("a.embed.shard_3") == "a.embed");
  CHECK(table_of_piece("a.embed.shards.3") == "a.embed");
  for (const char* name : {"", "shard_3", "a.embed", "a.embed.3", "a.shard_3b", "shards.3"})
    CHECK(table_of_piece(name).empty());
}

}  // namespace module_roles_test
