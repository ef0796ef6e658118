#include "tests/support/faults/faults.h"

namespace twofour {
namespace {

using Random = std::mt19937;

/// Changes config.json.
auto config(std::function<void(Json&)> change) {
  return [change = std::move(change)](Save& s, Random&) { s.edit("config.json", change); };
}

}  // namespace

std::vector<Fault> model_faults() {
  return {
      {"impossible-setting", "more experts of a token than there are",
       config([](Json& j) { j["num_experts_per_tok"] = 9; })},
      {"impossible-setting", "no expert of a token", config([](Json& j) { j["num_experts_per_tok"] = 0; })},
      {"impossible-setting", "a class of another family",
       config([](Json& j) { j["architectures"] = Json::array({"LlamaForCausalLM"}); })},
      {"odd-setting", "an epsilon of 0", config([](Json& j) { j["rms_norm_eps"] = 0; })},
      {"odd-setting", "a base of positions as text", config([](Json& j) { j["rope_theta"] = "10000"; })},
      {"layers-extra", "a layer less in the config", config([](Json& j) { j["num_hidden_layers"] = 1; })},
      {"layer-kind", "experts where the config has none",
       config([](Json& j) { j["mlp_only_layers"] = Json::array({1}); })},
      {"config-shape", "another width", config([](Json& j) { j["hidden_size"] = 128; })},
      {"config-shape", "another width of experts", config([](Json& j) { j["moe_intermediate_size"] = 64; })},
      {"config-shape", "more experts than there are", config([](Json& j) { j["num_experts"] = 16; })},
      {"config-shape", "a vector too long",
       [](Save& s, Random&) {
         TensorData& t = s.at("model.layers.1.input_layernorm.weight");
         t.shape[0] *= 2;
         t.bytes.resize(2 * t.bytes.size(), 0x3F);
       }},
      {"padded-vocabulary", "an embedding with more rows", config([](Json& j) { j["vocab_size"] = 61; })},
      {"config-switch", "biases that are not there", config([](Json& j) { j["attention_bias"] = true; })},
      {"head-differs", "another head beside the embedding",
       [](Save& s, Random&) {
         TensorData head = s.at("model.embed_tokens.weight");
         head.name = "lm_head.weight";
         head.bytes[head.bytes.size() / 2] ^= 1;
         s.add(head);
         s.edit("config.json", [](Json& j) { j["tie_word_embeddings"] = true; });
       }},
      {"tensor-missing", "a norm",
       [](Save& s, Random& r) {
         s.erase(std::string("model.layers.") + (r() % 2 ? "0" : "1") + ".post_attention_layernorm.weight");
       }},
      {"tensor-unknown", "a norm of another family",
       [](Save& s, Random&) {
         s.add({"model.layers.0.pre_feedforward_layernorm.weight",
                DType::kBF16,
                {64},
                std::vector<uint8_t>(128, 0x3F)});
       }},
  };
}

}  // namespace twofour
