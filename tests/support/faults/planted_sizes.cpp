#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"

// Numbers of config.json against what is stored: clauses 1.1 to 1.9 and 1.14.

namespace twofour {
namespace {

using namespace spoil;
using enum Base;
constexpr Expect kFault = Expect::kFault, kHarmless = Expect::kHarmless;

/// An MLP of kLlamaCt pruned to half of its width: gate and up to half of their rows, down to half of its
/// columns.
Change halve_mlp(const std::string& mlp) {
  return all_of(
      {resize_rows(mlp + "gate_proj.weight_packed", 256), resize_rows(mlp + "gate_proj.weight_scale", 256),
       resize_rows(mlp + "up_proj.weight_packed", 256), resize_rows(mlp + "up_proj.weight_scale", 256),
       cut_columns(mlp + "down_proj.weight_packed", 128), cut_columns(mlp + "down_proj.weight_scale", 16)});
}

std::vector<Planted> widths() {
  return {
      {"1.1", kMoe, kFault, "twice as wide",
       "every linear is allocated twice as wide as its tensor: the load fails", "hidden_size",
       set_key("hidden_size", 512)},
      {"1.1", kLlama, kFault, "half as wide", "every parameter is half as wide as its tensor: the load fails",
       "hidden_size", set_key("hidden_size", 128)},
      {"1.1", kGptOss, kFault, "of the published model", "the config is another size's: the load fails",
       "hidden_size", set_key("hidden_size", 2880)},
      {"1.1", kQwenMixed, kFault, "nested, of the published model",
       "the text model is built eight times as wide", "hidden_size",
       set_key("text_config.hidden_size", 2048)},
      {"1.1", kNemotron, kFault, "the latent width in its place", "norms and mamba are built half as wide",
       "hidden_size", set_key("hidden_size", 128)},
      {"1.1", kMixtral, kHarmless, "another initializer range", "it is used before training alone", "",
       set_key("initializer_range", 0.01)},
      {"1.1", kMoe, kHarmless, "named once more by an old alias", "readers take hidden_size", "",
       set_key("n_embd", 256)},
      {"1.2", kLlama, kFault, "twice as wide", "gate and up are allocated with twice the rows",
       "intermediate_size", set_key("intermediate_size", 1024)},
      {"1.2", kMoe, kFault, "of experts, of the published model", "experts are allocated six times as wide",
       "moe_intermediate_size", set_key("moe_intermediate_size", 768)},
      {"1.2", kDeepSeek, kFault, "of dense layers, the published one",
       "the first layers are allocated too wide", "intermediate_size", set_key("intermediate_size", 18432)},
      {"1.2", kDeepSeek, kFault, "of experts doubled", "routed and shared experts are allocated too wide",
       "moe_intermediate_size", set_key("moe_intermediate_size", 256)},
      {"1.2", kQwenMixed, kFault, "of the shared expert doubled", "the shared expert is allocated too wide",
       "shared_expert_intermediate_size", set_key("text_config.shared_expert_intermediate_size", 256)},
      {"1.2", kLlamaCt, kFault, "one layer pruned to half",
       "its tensors fit no parameter of the one width in the config", "layers.1.mlp",
       halve_mlp("model.layers.1.mlp.")},
      {"1.2", kMoe, kHarmless, "of dense layers that there are not",
       "no layer is dense, so nothing has this width", "", set_key("intermediate_size", 6144)},
      {"1.3", kMoe, kFault, "of the published model",
       "the embedding is allocated with more rows than are stored", "vocab_size",
       set_key("vocab_size", 151936)},
      {"1.3", kLlama, kFault, "fewer than rows", "loaders compare the rows and stop", "vocab_size",
       set_key("vocab_size", 250)},
      {"1.3", kTiny, kFault, "an embedding that lost its last rows", "the last tokens have no embedding",
       "embed_tokens | vocab_size", resize_rows("model.embed_tokens.weight", 60)},
      {"1.3", kNemotron, kFault, "a head that lost its last rows", "the last tokens have no logits",
       "lm_head | vocab_size", resize_rows("lm_head.weight", 250)},
      {"1.3", kQwenRow, kFault, "nested, of the published model", "embedding and head are allocated too long",
       "vocab_size", set_key("text_config.vocab_size", 248320)},
      {"1.3", kLlama, kFault, "a tokenizer of another model", "tokens without a row of the embedding",
       "tokenizer.json",
       [](Save& s, auto&) {
         s.files["tokenizer.json"] =
             R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 99999999}, "merges": []}})";
       }},
      {"1.3", kMixtral, kHarmless, "a padding token", "it pads batches and is masked", "",
       set_key("pad_token_id", 1)},
  };
}

std::vector<Planted> layers_and_heads() {
  return {
      {"1.4", kMoe, kFault, "one fewer than stored", "the last layer is dropped from the forward pass",
       "num_hidden_layers | layers.3", set_key("num_hidden_layers", 3)},
      {"1.4", kMoe, kFault, "of the published model", "44 layers stay uninitialized",
       "num_hidden_layers | layers-missing", set_key("num_hidden_layers", 48)},
      {"1.4", kDeepSeek, kFault, "the draft counted as a layer", "the draft runs as the last layer",
       "num_hidden_layers | layers.5", set_key("num_hidden_layers", 6)},
      {"1.4", kGptOss, kFault, "types of fewer layers", "the third layer has no kind of attention",
       "layer_types", set_key("layer_types", Json::array({"sliding_attention", "full_attention"}))},
      {"1.4", kQwenMixed, kFault, "full attention where linear attention is stored",
       "the layer is built with tensors that the files do not have", "layer_types | layers.0",
       edit_key("text_config.layer_types", [](Json& types) { types[0] = "full_attention"; })},
      {"1.4", kNemotron, kFault, "a pattern of fewer layers", "the pattern says how many layers are built",
       "hybrid_override_pattern", set_key("hybrid_override_pattern", "MEMEM")},
      {"1.4", kLlama, kFault, "the middle one lost", "a whole layer stays uninitialized",
       "layers.1 | layers-missing", drop_below("model.layers.1.")},
      {"1.4", kMoe, kHarmless, "windows of layers that have none",
       "use_sliding_window is absent, so it is not read", "", set_key("max_window_layers", 28)},
      {"1.5", kLlama, kFault, "twice the query heads", "q_proj is allocated with twice the rows",
       "num_attention_heads", set_key("num_attention_heads", 8)},
      {"1.5", kLlama, kFault, "twice the key heads", "k_proj and v_proj are allocated with twice the rows",
       "num_key_value_heads", set_key("num_key_value_heads", 4)},
      {"1.5", kMoe, kFault, "heads twice as wide", "all projections are allocated with twice the rows",
       "head_dim", set_key("head_dim", 128)},
      {"1.5", kMixtral, kFault, "twice the query heads, half as wide",
       "q_proj fits and k_proj does not: a head has hidden size by heads numbers",
       "num_attention_heads | k_proj | num_key_value_heads", set_key("num_attention_heads", 8)},
      {"1.5", kDeepSeek, kFault, "another rank of keys and values",
       "kv_a_proj and kv_b_proj are allocated otherwise", "kv_lora_rank", set_key("kv_lora_rank", 512)},
      {"1.5", kDeepSeek, kFault, "another width of values", "kv_b_proj and o_proj are allocated otherwise",
       "v_head_dim", set_key("v_head_dim", 128)},
      {"1.5", kQwenMixed, kFault, "no gate of attention's output", "q_proj is taken for half as many rows",
       "attn_output_gate | q_proj", set_key("text_config.attn_output_gate", false)},
      {"1.5", kLlama, kHarmless, "no width of heads", "it defaults to hidden size by heads, which it is", "",
       erase_key("head_dim")},
  };
}

std::vector<Planted> experts() {
  return {
      {"1.6", kMoe, kFault, "half of those stored",
       "the router has more rows than the parameter, half are dropped", "num_experts | experts-extra",
       set_key("num_experts", 8)},
      {"1.6", kMoe, kFault, "of the published model", "112 experts a layer stay uninitialized",
       "num_experts | experts-missing", set_key("num_experts", 128)},
      {"1.6", kMixtral, kFault, "twice those stored", "half of the experts stay uninitialized",
       "num_local_experts | experts-missing", set_key("num_local_experts", 8)},
      {"1.6", kGptOss, kFault, "more than the stacks hold", "stacks are allocated for 32 and 4 are stored",
       "num_local_experts", set_key("num_local_experts", 32)},
      {"1.6", kQwenMixed, kFault, "nested, more than stored", "most experts stay uninitialized",
       "num_experts | experts-missing", set_key("text_config.num_experts", 256)},
      {"1.6", kMoe, kFault, "one of the middle lost in one layer", "its parameters stay uninitialized",
       "layers.2 experts", drop_below("model.layers.2.mlp.experts.7.")},
      {"1.6", kMoe, kHarmless, "the count under a second name", "both names say the same", "",
       set_key("num_local_experts", 16)},
      {"1.7", kMoe, kFault, "no expert", "no expert runs, so the layer adds nothing", "num_experts_per_tok",
       set_key("num_experts_per_tok", 0)},
      {"1.7", kMoe, kFault, "more than experts", "topk over fewer experts fails", "num_experts_per_tok",
       set_key("num_experts_per_tok", 17)},
      {"1.7", kGptOss, kFault, "more than stacked experts", "topk over fewer experts fails",
       "num_experts_per_tok", set_key("num_experts_per_tok", 5)},
      {"1.7", kQwenMixed, kFault, "a negative count", "topk refuses it", "num_experts_per_tok",
       set_key("text_config.num_experts_per_tok", -1)},
      {"1.7", kDeepSeek, kFault, "more groups than there are", "topk over groups fails", "topk_group",
       set_key("topk_group", 3)},
      {"1.7", kDeepSeek, kFault, "groups that experts cannot be parted into",
       "4 experts have no 3 equal groups", "n_group", set_key("n_group", 3)},
      {"1.7", kMoe, kHarmless, "another loss of balance", "it is used in training alone", "",
       set_key("router_aux_loss_coef", 0.5)},
      {"1.8", kDeepSeek, kFault, "fewer than stored",
       "layers 1 and 2 are built with experts that are not stored", "first_k_dense_replace",
       set_key("first_k_dense_replace", 1)},
      {"1.8", kDeepSeek, kFault, "more than stored", "layer 3 is built without its experts",
       "first_k_dense_replace", set_key("first_k_dense_replace", 4)},
      {"1.8", kDeepSeek, kFault, "experts in each second layer alone", "layer 3 is built without its experts",
       "moe_layer_freq", set_key("moe_layer_freq", 2)},
      {"1.8", kMoe, kFault, "experts in each second layer alone", "layers 0 and 2 are built dense",
       "decoder_sparse_step", set_key("decoder_sparse_step", 2)},
      {"1.8", kTiny, kFault, "a layer of experts among the dense ones", "layer 0 is built dense",
       "mlp_only_layers", set_key("mlp_only_layers", Json::array({0}))},
      {"1.8", kMoe, kHarmless, "neither key, as defaults are the same", "each layer has experts by default",
       "", all_of({erase_key("mlp_only_layers"), erase_key("decoder_sparse_step")})},
      {"1.9", kDeepSeek, kFault, "stored and not counted",
       "vLLM finds no parameter for the tensors of layer 5", "num_nextn_predict_layers | layers.5",
       set_key("num_nextn_predict_layers", 0)},
      {"1.9", kDeepSeek, kFault, "two counted, one stored", "the second draft stays uninitialized",
       "num_nextn_predict_layers", set_key("num_nextn_predict_layers", 2)},
      {"1.9", kDeepSeek, kFault, "without the projection of its input",
       "the draft's input stays uninitialized", "layers.5 eh_proj", drop("model.layers.5.eh_proj.weight")},
      {"1.9", kQwenMixed, kFault, "counted and lost", "speculative decoding runs an uninitialized draft",
       "mtp", drop_below("mtp.")},
      {"1.9", kQwenMixed, kFault, "without the projection of its input",
       "the draft's input stays uninitialized", "mtp.fc", drop("mtp.fc.weight")},
      {"1.9", kTiny, kHarmless, "none, and so it says", "no engine looks for a draft", "",
       set_key("num_nextn_predict_layers", 0)},
  };
}

std::vector<Planted> types() {
  return {
      {"1.14", kMoe, kFault, "a width in quotes", "arithmetic with text fails", "hidden_size",
       set_key("hidden_size", "256")},
      {"1.14", kLlama, kFault, "a fraction of layers", "range() refuses it", "num_hidden_layers",
       set_key("num_hidden_layers", 3.5)},
      {"1.14", kMixtral, kFault, "an epsilon in quotes", "the norm adds text to a number", "rms_norm_eps",
       set_key("rms_norm_eps", "1e-05")},
      {"1.14", kLlama, kFault, "a vocabulary written as a float", "a size of an allocation must be whole",
       "vocab_size", set_key("vocab_size", 256.0)},
      {"1.14", kGptOss, kFault, "true in place of a count", "True is 1 in Python: one expert runs",
       "num_experts_per_tok", set_key("num_experts_per_tok", true)},
      {"1.14", kDeepSeek, kFault, "a negative width", "an allocation of negative size fails",
       "moe_intermediate_size", set_key("moe_intermediate_size", -128)},
      {"1.14", kMoe, kFault, "a count that no 64 bits hold", "readers stop or wrap around", "num_experts",
       set_key("num_experts", Json::raw_number("18446744073709551617"))},
      {"1.14", kLlama, kHarmless, "a whole number as a float where floats are", "Python takes both", "",
       set_key("rope_theta", 500000)},
      {"1.14", kLlama, kHarmless, "no width of heads, said by null",
       "null is the default: hidden size by heads", "", set_key("head_dim", nullptr)},
  };
}

}  // namespace

std::vector<Planted> planted_sizes() {
  std::vector<Planted> all;
  for (const auto& part : {widths(), layers_and_heads(), experts(), types()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace twofour
