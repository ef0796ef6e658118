#include "lib/recipe/selection/input_scales.h"
#include "lib/source/config/configured_quantization.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/lint/lint.h"
#include "tests/lib/write/methods/input_scale_model.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_weights.h"

namespace input_scales_test {

using namespace twofour;
using namespace input_scale_model;

TEST_CASE("NVFP4 of either dialect gets the input scales that a rule's words give, in either dialect") {
  const Scratch scratch;
  Multipliers filled = source_scales();  // expert 1 takes the largest of the others
  for (const char* leaf : {"gate_proj", "up_proj"})
    filled[kExperts + "1." + leaf] = filled[kExperts + "2.up_proj"];
  filled[kExperts + "1.down_proj"] = filled[kExperts + "2.down_proj"];
  const Multipliers given = [] {
    Multipliers some = all_of(0);
    float next = 1.0f / 32;
    for (auto& [name, scale] : some) scale = (next *= 2);
    return some;
  }();
  struct Case {
    const char* words;
    bool one;
    const char* spare;
    Multipliers expected;
  };
  const std::vector<Case> cases = {
      {"none", false, "", all_of(0)},
      {"none", false, "experts.1.", all_of(0)},
      {"constant", false, "", all_of(1)},
      {"constant=1.0", false, ".", all_of(1)},
      {"constant=0.25", false, "experts.1.", all_of(0.25f)},
      {"constant=0.25", true, "", all_of(0.25f)},
      {"neighbours", false, "experts.1.", fused(filled)},
      {"neighbours", true, "experts.1.", one_a_layer(fused(filled))},
      {"neighbours", false, "", fused(source_scales())},
      {"given", false, ".", fused(given)},
      {"given", true, "experts.1.", one_a_layer(fused(given))},
      {"", true, "", one_a_layer(fused(source_scales()))},
      {"keep", true, "", one_a_layer(fused(source_scales()))},
  };
  for (const char* from : kDialects) {
    for (const Case& one : cases) {
      const Multipliers before = source_scales(one.spare);
      const bool any = std::string(one.spare) != ".";
      write_checkpoint(scratch / "a", {nvfp4_tensors(from, before)}, config_of(from, any).dump());
      for (const char* to : kDialects) {
        CAPTURE(from);
        CAPTURE(to);
        CAPTURE(one.words);
        CAPTURE(one.spare);
        CAPTURE(one.one);
        Recipe recipe = keep_with(to, one.words, one.one);
        if (std::string(one.words) == "given") recipe.rules[0].input_scales = amax_of(given);
        convert_with(scratch, recipe);
        CHECK(stored_scales(scratch / "b", to, before) == one.expected);
        check_config(scratch / "b", to, one.expected);
        // Weights stay as they are.
        const ReadTensors a = read_tensors(scratch / "a"), b = read_tensors(scratch / "b");
        for (const auto& [name, scale] : before) {
          const auto codes = [&](const ReadTensors& in, const char* dialect) {
            return in.at(name + (dialect == kDialects[0] ? ".weight" : ".weight_packed")).bytes;
          };
          CHECK(codes(a, from) == codes(b, to));
          CHECK(a.at(name + ".weight_scale") == b.at(name + ".weight_scale"));
        }
        std::filesystem::remove_all(scratch / "b");
      }
      std::filesystem::remove_all(scratch / "a");
    }
  }
}

TEST_CASE("keep leaves input scales as they are, gate and up unequal too, and so does no word") {
  for (const std::string words : {"", "keep"}) {
    for (const std::string dialect : kDialects) {
      const Scratch scratch;
      Multipliers scales = source_scales();
      scales[kExperts + "2.gate_proj"] = 1.0f / 3;
      write_checkpoint(scratch / "a", {nvfp4_tensors(dialect, scales)}, config_of(dialect, true).dump());
      const Checkpoint source = Checkpoint::open(scratch / "a");
      Progress progress;
      convert(source, make_plan(source, keep_with("source", words)), scratch / "b", {}, progress);
      CHECK(validate_from(scratch / "a", scratch / "b").differences.empty());
      CHECK(read_tensors(scratch / "a") == read_tensors(scratch / "b"));
    }
  }
}

TEST_CASE("modules that have the scale that they are to get keep its very bits") {
  // 1 / (1 / x) is another number for some x.
  float odd = 3;
  while (1 / (1 / odd) == odd) odd = std::nextafter(odd, 4.0f);
  const Scratch scratch;
  Multipliers scales = source_scales("experts.1.");
  Tensors tensors = nvfp4_tensors("compressed-tensors", scales);
  for (TensorData& t : tensors) {
    if (t.name.ends_with(".input_global_scale")) std::memcpy(t.bytes.data(), &odd, sizeof(odd));
  }
  write_checkpoint(scratch / "a", {tensors}, config_of("compressed-tensors", true).dump());
  convert_with(scratch, keep_with("compressed-tensors", "neighbours"));
  const ReadTensors b = read_tensors(scratch / "b");
  CHECK(b.at(kExperts + "0.up_proj.input_global_scale").as<float>()[0] == odd);
  CHECK(b.at(kExperts + "1.up_proj.input_global_scale").as<float>()[0] == 1 / (1 / odd));
}

TEST_CASE("scales of 0, as calibration leaves them, are missing ones to neighbours") {
  for (const std::string dialect : kDialects) {
    const Scratch scratch;
    Tensors tensors = nvfp4_tensors(dialect, source_scales("experts.1.down_proj"));
    if (dialect == "modelopt")
      add_scalar(tensors, kExperts + "1.down_proj.input_scale", 0, {});
    else
      add_scalar(tensors, kExperts + "1.down_proj.input_global_scale", INFINITY, {1});
    write_checkpoint(scratch / "a", {tensors}, config_of(dialect, true).dump());
    convert_with(scratch, keep_with("source", "neighbours"));
    CHECK(stored_scales(scratch / "b", dialect, source_scales()).at(kExperts + "1.down_proj") ==
          source_scales().at(kExperts + "2.down_proj"));
  }
}

TEST_CASE("what words cannot give is refused by name") {
  const Scratch scratch;
  write_checkpoint(scratch / "a", {nvfp4_tensors("modelopt", source_scales("down_proj"))},
                   config_of("modelopt", true).dump());
  SUBCASE("neighbours without any in the layer") {
    const std::string message = refusal(scratch, keep_with("modelopt", "neighbours"));
    CHECK(contains(message, kExperts + "0.down_proj: expected an input scale in its projection of the layer "
                                       "(--input-scale neighbours), found none"));
  }
  SUBCASE("a module that the file lacks") {
    Multipliers some = all_of(1);
    some.erase(kExperts + "2.up_proj");
    Recipe recipe = keep_with("modelopt", "given");
    recipe.rules[0].input_scales = amax_of(some);
    CHECK(contains(refusal(scratch, recipe), kExperts + "2.up_proj: expected " + kExperts +
                                                 "2.up_proj.amax in the file of input scales, found none"));
  }
  SUBCASE("a module that the source lacks") {
    Multipliers more = all_of(1);
    more[kExperts + "3.up_proj"] = 1;
    Recipe recipe = keep_with("modelopt", "given");
    recipe.rules[0].input_scales = amax_of(more);
    CHECK(contains(refusal(scratch, recipe),
                   kExperts + "3.up_proj.amax in the file of input scales: expected a linear of "));
  }
  SUBCASE("a linear that no rule takes may be in the file") {
    Multipliers more = all_of(1);
    more["lm_head"] = 1;
    Recipe recipe = keep_with("modelopt", "given");
    recipe.rules[0].input_scales = amax_of(more);
    CHECK(refusal(scratch, recipe).empty());
  }
  SUBCASE("words that no option has") {
    for (const char* words :
         {"constants", "constant:1", "constant=", "constant=0", "constant=-1", "constant=nan", "constant=inf",
          "constant=1e-45", "constant=1x", "from", "all"}) {
      CAPTURE(words);
      CHECK(contains(message_of([&] { keep_with("modelopt", words); }), "expected "));
    }
  }
  SUBCASE("one scale a layer of none") {
    CHECK(contains(refusal(scratch, keep_with("modelopt", "none", true)),
                   "--one-input-scale-a-layer: expected input scales, found --input-scale none"));
    CHECK(contains(refusal(scratch, keep_with("modelopt", "neighbours")), "found none"));
  }
}

TEST_CASE(
    "input scales that are no numbers are refused where words look at them, and do not matter elsewhere") {
  const Scratch scratch;
  for (const float bad : {-1.0f, std::numeric_limits<float>::quiet_NaN(), -0.5f}) {
    Tensors tensors = nvfp4_tensors("modelopt", source_scales("experts.1.down_proj"));
    add_scalar(tensors, kExperts + "1.down_proj.input_scale", bad, {});
    write_checkpoint(scratch / "a", {tensors}, config_of("modelopt", true).dump());
    CHECK(contains(refusal(scratch, keep_with("modelopt", "neighbours")),
                   "1.down_proj.input_scale: expected a positive finite input scale, found "));
    for (const char* words : {"none", "constant=0.5"}) {
      CAPTURE(words);
      convert_with(scratch, keep_with("modelopt", words));
    }
    std::filesystem::remove_all(scratch / "a");
  }
  Tensors tensors = nvfp4_tensors("modelopt", source_scales("experts.1.down_proj"));
  add_scalar(tensors, kExperts + "1.down_proj.input_scale", 1, {});
  tensors.back().dtype = DType::kBF16;
  tensors.back().bytes.resize(2);
  write_checkpoint(scratch / "a", {tensors}, config_of("modelopt", true).dump());
  CHECK(contains(refusal(scratch, keep_with("modelopt", "neighbours")),
                 "1.down_proj.input_scale: expected F32 [] or [1], found BF16 []"));
}

TEST_CASE("a rule with input scales that keeps no NVFP4, and stacks, are refused") {
  const Scratch scratch;
  Tensors t;
  add_floats(t, kLayer + "mlp.down_proj", random_floats(32, 32, 2));
  write_checkpoint(scratch / "a", {t}, config_of("modelopt", true).dump());
  CHECK(contains(refusal(scratch, keep_with("source", "none")),
                 "--input-scale: expected NVFP4 among the modules that stay, found none"));
  Tensors stack;
  const ExpertSet set = random_experts(2, 32, 64);
  std::vector<Nvfp4Matrix> both;
  for (size_t e = 0; e < 2; ++e) both.push_back(stack_rows(set.gate[e], set.up[e]));
  add_stack(stack, kLayer + "mlp.experts.gate_up_proj", both, false, {});
  add_stack(stack, kLayer + "mlp.experts.down_proj", set.down, false, {});
  Json config = config_of("modelopt", false);
  config["model_type"] = "llama4_text";
  write_checkpoint(scratch / "s", {stack}, config.dump());
  const Checkpoint source = Checkpoint::open(scratch / "s");
  CHECK(contains(message_of([&] { make_plan(source, keep_with("source", "constant")); }), "found a stack"));
}

}  // namespace input_scales_test
