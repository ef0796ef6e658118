#include <doctest/doctest.h>

#include "tests/support/faults/lint_changed.h"
#include "tests/support/faults/spoil.h"

// Exclusions that match no module: those of general lists are sound, others are typing errors.

namespace unused_patterns_test {

using namespace twofour;

namespace {

bool is_reported(Base base, const std::string& name) {
  return rules_of_change(base, spoil::ignore_also({name})).contains("unused-pattern");
}

}  // namespace

TEST_CASE("exclusions of parts that a model may lack are those of a general list") {
  for (const char* name :
       {"re:.*mtp.*", "re:.*vision.*", "re:.*visual.*", "re:.*vision_tower.*", "re:model[.]visual.*",
        "re:.*audio_tower.*", "re:.*multi_modal_projector.*", "re:.*lm_head", "re:.*draft.*", "re:.*eagle.*",
        "re:.*score$", "re:.*mlp.gate$", "re:.*router.*", "re:.*shared_expert_gate$", "re:.*linear_attn.*",
        "re:.*indexer.*", "model.visual", "vision_tower"}) {
    CAPTURE(std::string(name));
    CHECK_FALSE(is_reported(Base::kLlamaCt, name));
  }
  for (const char* name : {"*mtp*", "*visual*", "*vision_model*", "*lm_head*", "*router*", "*mlp.gate.*",
                           "*block_sparse_moe.gate*", "*output_layer*", "output.*", "proj_out.*",
                           "*kv_b_proj*", "*rotary_emb*", "*linear_attn.conv1d*", "*mixer.conv1d*"}) {
    CAPTURE(std::string(name));
    CHECK_FALSE(is_reported(Base::kLlama, name));
  }
}

TEST_CASE("exclusions may name layers that a model has not") {
  for (const char* name : {"model.layers.99.mlp.up_proj", "model.layers.61"})
    CHECK_FALSE(is_reported(Base::kLlamaCt, name));
  for (const char* name : {"model.layers.99*", "model.layers.99.self_attn*"})
    CHECK_FALSE(is_reported(Base::kLlama, name));
}

TEST_CASE("exclusions may name layers of a draft or a tower that a model lacks, not of one that it has") {
  for (const char* name : {"mtp.layers.0*", "model.mtp.layers.0*", "vision_tower.encoder.layers.3*"})
    CHECK_FALSE(is_reported(Base::kLlama, name));
  CHECK_FALSE(is_reported(Base::kLlamaCt, "mtp.layers.0.mlp.up_proj"));
  CHECK(is_reported(Base::kQwenMixed, "mtp.layers.0.mlp.up_prj*"));
  CHECK(is_reported(Base::kLlama, "model.layers.0.mtp_proj*"));
}

TEST_CASE("exclusions of parts that every model has are typing errors") {
  for (const char* name :
       {"re:.*self_atn.*", "re:.*mlp.dwn_proj", "model.layers.1.mlp.up_prj", "re:model.model.layers.0.*"}) {
    CAPTURE(std::string(name));
    CHECK(is_reported(Base::kLlamaCt, name));
  }
  CHECK(is_reported(Base::kLlama, "*self_atn*"));
}

}  // namespace unused_patterns_test
