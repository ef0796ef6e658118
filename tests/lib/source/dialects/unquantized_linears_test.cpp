#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "lib/source/dialects/dialect_rows.h"
#include "lib/source/dialects/output_dialect.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/scratch.h"

namespace unquantized_linears_test {

using namespace twofour;

namespace {

using Names = std::vector<std::string>;
const std::string kLayer = "model.layers.0.";

Names listed(const std::vector<WrittenModule>& modules, const Json& config = Json::object(),
             const OutputDialect& to = modelopt_dialect(), const Json& entry = {{"quant_algo", "NVFP4"}}) {
  const Scratch scratch;
  Tensors t;
  add_bf16(t, "model.embed_tokens.weight", {32, 64});
  write_checkpoint(scratch / "a", {t}, config.dump());
  const Checkpoint source = Checkpoint::open(scratch / "a");
  WrittenModel model{.entries = {entry}};
  model.modules = modules;
  model.source = &source;
  return unquantized_linears(model, to);
}

WrittenModule quantized(const std::string& name) { return {name, 0}; }

}  // namespace

TEST_CASE("linears of floats are named, quantized ones are not") {
  CHECK(listed({{"lm_head"}, {kLayer + "mlp.gate"}, quantized(kLayer + "mlp.down_proj")}) ==
        Names{"lm_head", kLayer + "mlp.gate"});
}

TEST_CASE("a block of experts in floats is one glob, one with some quantized is named") {
  const std::string experts = kLayer + "mlp.experts.";
  CHECK(
      listed({{experts + "0.up_proj"}, {experts + "1.up_proj"}, {"model.layers.1.mlp.experts.0.up_proj"}}) ==
      Names{kLayer + "mlp.experts*", "model.layers.1.mlp.experts*"});
  CHECK(listed({{experts + "0.up_proj"}, quantized(experts + "1.up_proj")}) == Names{experts + "0.up_proj"});
}

TEST_CASE("latent attention in floats is one glob, one with some quantized is named") {
  const std::string attention = kLayer + "self_attn.";
  CHECK(listed({{attention + "kv_b_proj"},
                {attention + "indexer.wq_b"},
                {attention + "o_proj"},
                {kLayer + "mlp.gate"}}) == Names{kLayer + "self_attn*", kLayer + "mlp.gate"});
  CHECK(listed({{attention + "kv_b_proj"}, quantized(attention + "o_proj")}) ==
        Names{attention + "kv_b_proj"});
  CHECK(listed({{attention + "kv_b_proj"}}, Json::object(), deepseek_dialect()) ==
        Names{attention + "kv_b_proj"});
  CHECK(listed({{attention + "kv_b_proj"}}, Json::object(), modelopt_dialect(), {{"quant_algo", "MXFP8"}}) ==
        Names{attention + "kv_b_proj"});
  CHECK(listed({{attention + "q_proj"}, {attention + "o_proj"}}) ==
        Names{attention + "q_proj", attention + "o_proj"});
}

TEST_CASE("a tied head without a tensor is named, since loaders make a linear of it") {
  const Json tied = {{"tie_word_embeddings", true}};
  CHECK(listed({{kLayer + "mlp.gate"}}, tied) == Names{"lm_head", kLayer + "mlp.gate"});
  CHECK(listed({{kLayer + "mlp.gate"}}, {{"tie_word_embeddings", false}}) == Names{kLayer + "mlp.gate"});
}

}  // namespace unquantized_linears_test
