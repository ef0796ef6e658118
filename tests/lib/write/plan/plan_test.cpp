#include "lib/write/plan/plan.h"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <limits>
#include <tuple>

#include "formats/error.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace plan_test {

using namespace twofour;

TEST_CASE("sizes are decimal, with or without a unit") {
  CHECK(parse_size("1") == 1);
  CHECK(parse_size("1234") == 1234);
  CHECK(parse_size("10B") == 10);
  CHECK(parse_size("20kB") == 20'000);
  CHECK(parse_size("20KB") == 20'000);
  CHECK(parse_size("500MB") == 500'000'000);
  CHECK(parse_size("5GB") == 5'000'000'000);
  CHECK(parse_size("1.5GB") == 1'500'000'000);
  CHECK(parse_size("2TB") == 2'000'000'000'000);
  for (const char* text : {"", "GB", ".", "0", "0.5", "-1", "5 GB", "5GiB", "5gb", "1.2.3GB", "1e9", "0x10",
                           "99999999999999999999", "99999999999TB"}) {
    CAPTURE(std::string(text));
    CHECK_THROWS_WITH_AS(parse_size(text), doctest::Contains("expected a size such as 5GB or 500MB"), Error);
  }
}

TEST_CASE("a tensor is never split, and one above the limit has a file of its own") {
  const Scratch scratch;
  Tensors tensors;
  add_experts(tensors, "model.layers.0.mlp.experts", random_experts(2, 16, 32));
  add_bf16(tensors, "model.embed_tokens.weight", {64, 32});
  add_bf16(tensors, "model.norm.weight", {32});
  write_checkpoint(scratch / "src", {tensors});
  const Checkpoint source = Checkpoint::open(scratch / "src");
  OneRule recipe;
  recipe.max_shard_size = 1000;
  const Plan plan = make_plan(source, recipe);
  size_t next = 0;
  for (const OutputFile& f : plan.files) {
    CHECK(f.first_tensor == next);
    CHECK((f.data_bytes <= 1000 || f.tensor_count == 1));
    next += f.tensor_count;
  }
  CHECK(next == plan.tensors.size());
}

TEST_CASE("another number of experts than config.json says is refused, once for each block") {
  Tensors tensors;
  add_experts(tensors, "model.layers.0.mlp.experts", random_experts(2, 16, 32));
  add_experts(tensors, "model.layers.1.mlp.experts", random_experts(3, 16, 32));
  for (const char* to : {"v7", "prune", "bf16", "nvfp4", "fp8"}) {
    CAPTURE(to);
    OneRule rule;
    rule.to = to;
    if (rule.to == "prune") rule.pattern = "2:4";
    if (rule.to == "nvfp4") rule.dialect = "compressed-tensors";
    const auto refusal = [&](const char* config) {
      const Scratch scratch;
      write_checkpoint(scratch / "src", {tensors}, config);
      return message_of([&] { make_plan(Checkpoint::open(scratch / "src"), rule); });
    };
    CHECK(contains(refusal(R"({"num_experts": 2})"),
                   "model.layers.1.mlp.experts: expected 2 experts (config.json), found 3"));
    CHECK(contains(refusal(R"({"text_config": {"n_routed_experts": 3}})"), "model.layers.0.mlp.experts: "));
    for (const char* sound :
         {"{}", R"({"moe_num_experts": [2, 3]})", R"({"num_experts": 2, "more_experts": 3})",
          R"({"block_configs": [{"num_experts": 2}, {"num_experts": 3}]})"})
      CHECK(refusal(sound).find("(config.json)") == std::string::npos);
  }
}

TEST_CASE("input scales as calibration leaves them where no token came by are a warning") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::string block = "model.layers.0.mlp.experts";
  for (const auto& [dialect, name, never, wrong] :
       {std::tuple{"modelopt", ".input_scale", 0.0f, kInfinity},
        std::tuple{"compressed-tensors", ".input_global_scale", kInfinity, 0.0f}}) {
    const Scratch scratch;
    const auto source_with = [&, name = name, dialect = dialect](const char* directory, float scale) {
      Tensors tensors = experts_stored_as(dialect, block, 3, 16, 32);
      const auto bits = std::bit_cast<std::array<uint8_t, sizeof(float)>>(scale);
      for (const char* module : {".1.up_proj", ".2.down_proj"})
        tensors.push_back({block + module + name, DType::kF32, {1}, {bits.begin(), bits.end()}});
      write_checkpoint(scratch / directory, {tensors});
      return Checkpoint::open(scratch / directory);
    };
    const auto found = findings_of(make_plan(source_with("src", never), {}).findings, "zero-input-scales");
    REQUIRE(found.size() == 1);
    CHECK(found[0].severity == Severity::kWarning);
    CHECK(found[0].message.starts_with("2 input scales are 0"));
    CHECK(found[0].message.ends_with("the first " + block + ".1.up_proj" + name));
    for (const float bad : {wrong, -1.0f, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      CAPTURE(bad);
      CHECK_THROWS_AS(make_plan(source_with("bad", bad), {}), Error);
    }
  }
}

TEST_CASE("workers are as many as the promised memory holds, and at least one") {
  const Scratch scratch;
  Tensors tensors;
  add_experts(tensors, "model.layers.0.mlp.experts", random_experts(2, 16, 32));
  write_checkpoint(scratch / "src", {tensors});
  const Checkpoint source = Checkpoint::open(scratch / "src");
  MemoryLimits limits;
  limits.buffers = 5 * ((1u << 20) + kDirectBuffer);  // a worker counts for at least 1 MiB and its I/O
  const Plan plan = make_plan(source, {}, limits);
  CHECK(plan.workers(1) == 1);
  CHECK(plan.workers(4) == 4);
  CHECK(plan.workers(64) == 5);
  CHECK(plan.peak_memory(64) == plan.peak_memory(5));
  CHECK(plan.peak_memory(64) < (512u << 20));
  limits.buffers = 1;
  CHECK(make_plan(source, {}, limits).workers(64) == 1);
}

}  // namespace plan_test
