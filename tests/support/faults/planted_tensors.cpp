#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"

// Tensors of config.json's family: clauses 1.10 to 1.13 and 1.15 to 1.17.

namespace twofour {
namespace {

using namespace spoil;
using enum Base;
constexpr Expect kFault = Expect::kFault, kHarmless = Expect::kHarmless;

std::vector<Planted> biases_and_routers() {
  return {
      {"1.10", kLlama, kFault, "promised for attention",
       "parameters for biases are allocated and never filled", "attention_bias",
       set_key("attention_bias", true)},
      {"1.10", kLlama, kFault, "promised for MLPs", "parameters for biases are allocated and never filled",
       "mlp_bias", set_key("mlp_bias", true)},
      {"1.10", kLlama, kFault, "stored and not promised", "vLLM finds no parameter; transformers drops them",
       "bias",
       all_of({add_bf16("model.layers.0.self_attn.q_proj.bias", {256}),
               add_bf16("model.layers.1.self_attn.q_proj.bias", {256}),
               add_bf16("model.layers.2.self_attn.q_proj.bias", {256})})},
      {"1.10", kGptOss, kFault, "one lost", "the bias of keys stays uninitialized",
       "layers.1.self_attn.k_proj", drop("model.layers.1.self_attn.k_proj.bias")},
      {"1.10", kGptOss, kFault, "switched off", "biases of all projections are dropped",
       "attention_bias | bias", set_key("attention_bias", false)},
      {"1.10", kLlama, kHarmless, "the default written out of the config", "attention has no bias by default",
       "", erase_key("attention_bias")},
      {"1.10", kLlama, kHarmless, "dropout of attention", "it drops nothing at inference", "",
       set_key("attention_dropout", 0.1)},
      {"1.11", kMoe, kFault, "one row fewer", "the last expert is never chosen, or the load fails",
       "layers.1.mlp.gate", resize_rows("model.layers.1.mlp.gate.weight", 15)},
      {"1.11", kMixtral, kFault, "twice the rows", "tokens go to experts that do not exist",
       "layers.0.block_sparse_moe.gate", resize_rows("model.layers.0.block_sparse_moe.gate.weight", 8)},
      {"1.11", kMoe, kFault, "half as wide", "it does not multiply with hidden states", "layers.2.mlp.gate",
       cut_columns("model.layers.2.mlp.gate.weight", 128)},
      {"1.11", kDeepSeek, kFault, "a correction of fewer experts", "the sum with scores fails or is shifted",
       "e_score_correction_bias", resize_rows("model.layers.4.mlp.gate.e_score_correction_bias", 3)},
      {"1.11", kGptOss, kFault, "a bias of fewer experts", "the sum with scores fails", "router",
       resize_rows("model.layers.0.mlp.router.bias", 3)},
      {"1.11", kTiny, kFault, "one lost", "the router stays uninitialized and scatters tokens",
       "layers.1 gate | layers.1 router", drop("model.layers.1.mlp.gate.weight")},
      {"1.11", kMoe, kHarmless, "in F32, with the same numbers", "BF16 in F32 is exact, loaders cast it", "",
       widen("model.layers.1.mlp.gate.weight")},
  };
}

std::vector<Planted> norms_and_head() {
  return {
      {"1.12", kMoe, kFault, "of half the width", "it does not multiply with hidden states",
       "layers.1.input_layernorm", resize_rows("model.layers.1.input_layernorm.weight", 128)},
      {"1.12", kLlama, kFault, "the last one lost", "it stays at ones: logits are wrong", "model.norm",
       drop("model.norm.weight")},
      {"1.12", kLlama, kFault, "one in the middle lost", "it stays at ones",
       "layers.1.post_attention_layernorm", drop("model.layers.1.post_attention_layernorm.weight")},
      {"1.12", kMoe, kFault, "of keys lost", "it stays at ones", "layers.2.self_attn.k_norm",
       drop("model.layers.2.self_attn.k_norm.weight")},
      {"1.12", kDeepSeek, kFault, "of another rank", "it does not multiply with compressed keys",
       "kv_a_layernorm", resize_rows("model.layers.2.self_attn.kv_a_layernorm.weight", 64)},
      {"1.12", kNemotron, kFault, "the last one lost", "it stays at ones: logits are wrong", "norm_f",
       drop("backbone.norm_f.weight")},
      {"1.12", kMixtral, kHarmless, "in F32, with the same numbers", "BF16 in F32 is exact, loaders cast it",
       "", widen("model.layers.*layernorm.weight")},
      {"1.13", kMoe, kFault, "a head lost", "logits come from uninitialized memory", "lm_head",
       drop("lm_head.weight")},
      {"1.13", kTiny, kFault, "an embedding lost", "nothing is embedded, and the tied head is lost with it",
       "embed_tokens | head-missing", drop("model.embed_tokens.weight")},
      {"1.13", kLlama, kFault, "tied, with another head stored",
       "engines take the embedding and drop the head", "tie_word_embeddings | lm_head",
       set_key("tie_word_embeddings", true)},
      {"1.13", kQwenMixed, kFault, "tied in the text model, not outside",
       "the head is dropped or not, by the reader", "tie_word_embeddings | lm_head",
       set_key("text_config.tie_word_embeddings", true)},
      {"1.13", kGptOss, kFault, "a head of half the width", "it does not multiply with hidden states",
       "lm_head", cut_columns("lm_head.weight", 96)},
      {"1.13", kTiny, kHarmless, "tied, and the same head stored", "either is the same matrix", "",
       add_copy("model.embed_tokens", "lm_head")},
      {"1.13", kLlama, kHarmless, "the default written out of the config", "llama does not tie by default",
       "", erase_key("tie_word_embeddings")},
  };
}

std::vector<Planted> other_tensors() {
  return {
      {"1.15", kLlama, kFault, "norms of queries and keys",
       "vLLM finds no parameter; transformers runs without them", "q_norm",
       all_of({add_bf16("model.layers.0.self_attn.q_norm.weight", {64}),
               add_bf16("model.layers.1.self_attn.q_norm.weight", {64}),
               add_bf16("model.layers.2.self_attn.q_norm.weight", {64})})},
      {"1.15", kMoe, kFault, "a shared expert", "it is not run: the model is another family's",
       "shared_expert", add_copy("model.layers.0.mlp.experts.0.", "model.layers.0.mlp.shared_expert.")},
      {"1.15", kLlama, kFault, "the value head of a reward model", "vLLM finds no parameter for it", "v_head",
       add_bf16("v_head.summary.weight", {1, 256})},
      {"1.15", kLlama, kFault, "names of a compiled module",
       "no parameter has these names: all stays uninitialized", "_orig_mod",
       rename("model.", "_orig_mod.model.")},
      {"1.15", kMixtral, kFault, "an adapter that was not merged", "its part of the weight is not added",
       "lora_A",
       all_of({add_bf16("model.layers.1.self_attn.q_proj.lora_A.weight", {8, 256}),
               add_bf16("model.layers.1.self_attn.q_proj.lora_B.weight", {256, 8})})},
      {"1.15", kLlama, kHarmless, "frequencies of old exports",
       "loaders of this family skip rotary_emb.inv_freq", "",
       all_of({add_f32("model.layers.0.self_attn.rotary_emb.inv_freq", 1, {1}),
               add_f32("model.layers.1.self_attn.rotary_emb.inv_freq", 1, {1}),
               add_f32("model.layers.2.self_attn.rotary_emb.inv_freq", 1, {1})})},
      {"1.16", kLlama, kFault, "queries of one layer lost", "the projection stays uninitialized",
       "layers.1.self_attn.q_proj", drop("model.layers.1.self_attn.q_proj.weight")},
      {"1.16", kMoe, kFault, "the output of one layer's attention lost", "the projection stays uninitialized",
       "layers.1.self_attn.o_proj", drop_below("model.layers.1.self_attn.o_proj.")},
      {"1.16", kGptOss, kFault, "sinks of one layer lost", "attention is normalized with random sinks",
       "layers.1.self_attn.sinks", drop("model.layers.1.self_attn.sinks")},
      {"1.16", kQwenMixed, kFault, "a decay of linear attention lost", "the state decays at random",
       "layers.1 A_log", drop("model.language_model.layers.1.linear_attn.A_log")},
      {"1.16", kQwenMixed, kFault, "the gate of the shared expert lost",
       "the shared expert is weighed at random", "layers.2.mlp.shared_expert_gate",
       drop("model.language_model.layers.2.mlp.shared_expert_gate.weight")},
      {"1.16", kDeepSeek, kFault, "the correction of one router lost", "experts are chosen otherwise",
       "layers.3 e_score_correction_bias", drop("model.layers.3.mlp.gate.e_score_correction_bias")},
      {"1.16", kNemotron, kFault, "the skip of a state space lost", "it stays at random", "layers.2.mixer.D",
       drop("backbone.layers.2.mixer.D")},
  };
}

std::vector<Planted> unknown_families() {
  return {
      {"1.17", kUnknown, kFault, "more layers than stored", "a layer stays uninitialized",
       "num_hidden_layers | layers-missing", set_key("num_hidden_layers", 4)},
      {"1.17", kUnknown, kFault, "another width than the embedding's",
       "hidden states have the width of the embedding", "hidden_size", set_key("hidden_size", 512)},
      {"1.17", kUnknown, kFault, "another vocabulary than the embedding's",
       "tokens are embedded past its end", "vocab_size", set_key("vocab_size", 4096)},
      {"1.17", kUnknown, kFault, "keys of one layer half as many",
       "its siblings have other shapes: it does not load", "layers.1.self_attn.k_proj",
       resize_rows("model.layers.1.self_attn.k_proj.weight", 64)},
      {"1.17", kUnknown, kFault, "a norm that other layers have lost in one", "it stays uninitialized",
       "layers.1.input_layernorm", drop("model.layers.1.input_layernorm.weight")},
      {"1.17", kUnknown, kHarmless, "keys that nobody knows", "only its own code reads them", "",
       all_of({set_key("tunnels", 7), set_key("queen_size", "large")})},
  };
}

}  // namespace

std::vector<Planted> planted_tensors() {
  std::vector<Planted> all;
  for (const auto& part : {biases_and_routers(), norms_and_head(), other_tensors(), unknown_families()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace twofour
