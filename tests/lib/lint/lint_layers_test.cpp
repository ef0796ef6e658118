#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/lint/lint.h"
#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"
#include "tests/support/scratch.h"

// Rules for layers of any family, for drafts, and for heads that are tied to embeddings.

namespace lint_layers_test {

using namespace twofour;
using namespace spoil;

namespace {

/// "rule: place: message" of each finding above a note, a line each.
std::string findings_of(Base base, const Change& change, bool headers_only = true) {
  const Scratch scratch;
  std::mt19937 random(1);
  Save save = base_checkpoint(base);
  change(save, random);
  write_planted(save, scratch / "checkpoint");
  Progress progress;
  std::string text;
  for (const LintFinding& f :
       lint(scratch / "checkpoint", {.headers_only = headers_only}, progress).findings) {
    if (f.severity != Severity::kNote)
      text += fmt::format("{}: {}: {}\n", lint_rules()[f.rule].id, f.name, f.message);
  }
  return text;
}

/// How the one finding begins; "": there is none.
void check_one(Base base, const char* what, const Change& change, const std::string& finding) {
  CAPTURE(std::string(what));
  const std::string found = findings_of(base, change);
  CHECK(found.substr(0, finding.size()) == finding);
  CHECK(std::count(found.begin(), found.end(), '\n') == (finding.empty() ? 0 : 1));
}

}  // namespace

TEST_CASE("models of no known family are held against themselves") {
  const auto one = [](const char* what, const Change& change, const std::string& finding) {
    check_one(Base::kUnknown, what, change, finding);
  };
  one(
      "as it is", [](Save&, auto&) {}, "");
  one("another width", set_key("hidden_size", 320), "config-shape: hidden_size: expected 256 as model.embed");
  one("fewer tokens", set_key("vocab_size", 100), "config-shape: vocab_size: expected 320 as");
  one("an embedding with a few rows more", set_key("vocab_size", 316), "padded-vocabulary: vocab_size");
  one("fewer layers", set_key("num_hidden_layers", 2), "layers-extra: num_hidden_layers: expected 3");
  one("more heads", set_key("num_attention_heads", 8), "config-shape: num_attention_heads: expected 4");
  one("more heads of keys", set_key("num_key_value_heads", 4),
      "config-shape: num_key_value_heads: expected 2");
  one("wider heads", set_key("head_dim", 128), "config-shape: head_dim: expected 64");
  one("values of one layer alone", resize_rows("model.layers.2.self_attn.v_proj.weight", 64),
      "config-shape: model.layers.2.self_attn.v_proj: expected [128, 256] (as in other layers), found [64, "
      "256]");
  one("a norm of half the width", resize_rows("model.layers.1.post_attention_layernorm.weight", 128),
      "config-shape: model.layers.1.post_attention_layernorm: expected [256] (as in other layers)");
  one("a head of half the width", cut_columns("lm_head.weight", 128),
      "config-shape: lm_head.weight: expected [320, 256] (as in the embedding)");
  one("a linear lost",
      all_of({drop("model.layers.2.self_attn.q_proj.weight"), ignore_no_more("layers.2.self_attn.q_proj")}),
      "tensor-missing: model.layers.2.self_attn.q_proj: expected it as in 2 other layers");
  one("a bias of other rows", add_bf16("model.layers.1.self_attn.k_proj.bias", {64}),
      "config-shape: model.layers.1.self_attn.k_proj.bias: expected [128] as the rows of its weights");
}

TEST_CASE("layers of other types may have other sizes") {
  // All of one layer fits together.
  check_one(Base::kUnknown, "half the keys and values",
            all_of({resize_rows("model.layers.2.self_attn.k_proj.weight", 64),
                    resize_rows("model.layers.2.self_attn.v_proj.weight", 64)}),
            "");
  check_one(Base::kUnknown, "a type of its own",
            all_of({resize_rows("model.layers.2.self_attn.k_proj.weight", 64),
                    set_key("layer_types", Json::array({"sliding", "sliding", "full"}))}),
            "");
}

TEST_CASE("drafts have what a layer of the model has, inputs and a norm, and are counted") {
  const auto mixed = [](const char* what, const Change& change, const std::string& finding) {
    check_one(Base::kQwenMixed, what, change, finding);
  };
  mixed(
      "a norm before the projection lost", drop("mtp.pre_fc_norm_hidden.weight"),
      "tensor-missing: mtp.pre_fc_norm_hidden.weight: expected [256] as every model of qwen3_5_moe_text has");
  mixed("the last norm lost", drop("mtp.norm.weight"),
        "tensor-missing: mtp.norm.weight: expected [256] as every model of qwen3_5_moe_text has");
  mixed("a part of the layer lost", drop("mtp.layers.0.self_attn.k_norm.weight"),
        "tensor-missing: mtp.layers.0.self_attn.k_norm.weight: expected [64] as every model of");
  mixed("a part of another size", resize_rows("mtp.layers.0.self_attn.k_proj.weight", 64),
        "config-shape: mtp.layers.0.self_attn.k_proj.weight: expected [128, 256] "
        "(num_key_value_heads*head_dim");
  mixed("none counted", set_key("text_config.mtp_num_hidden_layers", 0),
        "layers-extra: mtp_num_hidden_layers: expected 1, because mtp.layers.0");
  mixed("two counted", set_key("text_config.mtp_num_hidden_layers", 2),
        "mtp-missing: mtp_num_hidden_layers: expected 2 layers for multi-token prediction, found 1");
  check_one(Base::kDeepSeek, "behind the others and not counted", erase_key("num_nextn_predict_layers"),
            "layers-extra: num_nextn_predict_layers: expected 1, because model.layers.5");
}

TEST_CASE("a head that is tied and is another matrix is found by its bytes") {
  const Change tie = set_key("tie_word_embeddings", true);
  CHECK(findings_of(Base::kLlama, tie, false)
            .starts_with("head-differs: tie_word_embeddings: expected false, because"));
  CHECK(findings_of(Base::kLlama, tie, true) == "");  // by headers alone it may be the same
  CHECK(findings_of(Base::kTiny, add_copy("model.embed_tokens", "lm_head"), false) == "");
  CHECK(findings_of(Base::kLlama, all_of({tie, cut_columns("lm_head.weight", 128)}), true)
            .find("head-differs") != std::string::npos);
}

}  // namespace lint_layers_test
