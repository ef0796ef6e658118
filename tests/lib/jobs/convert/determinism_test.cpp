#include <doctest/doctest.h>
#include <fmt/format.h>

#include "formats/layouts/layouts.h"
#include "lib/synth/synth.h"
#include "lib/write/methods/layout_matrix.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace determinism_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// Experts whose matrices are cut along K under small limits: [48, 2576] and [2576, 48], 2576 = 2 * 1024 + 33
/// groups of 16.
void write_wide(const fs::path& directory) {
  Tensors tensors;
  add_experts(tensors, "model.layers.0.mlp.experts", random_experts(2, 48, 2576));
  add_experts(tensors, "model.layers.1.mlp.experts", random_experts(2, 2064, 16, 100));
  add_bf16(tensors, "model.norm.weight", {2576});
  write_checkpoint(directory, {tensors}, R"({"num_experts": 2})");
}

/// Stacks whose rows take several row blocks, gate and up in turn, one stack with K outermost.
void write_stacks(const fs::path& directory) {
  std::vector<Nvfp4Matrix> gate_up, down;
  for (unsigned e = 0; e < 2; ++e) {
    gate_up.push_back(random_matrix(2208, 1040, 10 + e, 0.5f));
    down.push_back(random_matrix(1040, 1104, 20 + e, 0.25f));
  }
  Tensors tensors;
  add_stack(tensors, "model.layers.0.mlp.experts.gate_up_proj", gate_up, false, {2});
  add_stack(tensors, "model.layers.0.mlp.experts.down_proj", down, true, {1});
  add_bf16(tensors, "model.layers.0.mlp.experts.gate_up_proj_bias", {2, 2208});
  add_bf16(tensors, "model.embed_tokens.weight", {3000, 1040});  // copied in more than one piece
  write_checkpoint(directory, {tensors});
}

MemoryLimits tiny_limits() {
  MemoryLimits limits;
  limits.piece = 1;
  return limits;
}

void check_same(const std::map<std::string, std::string>& found,
                const std::map<std::string, std::string>& expected) {
  REQUIRE(found.size() == expected.size());
  for (const auto& [name, text] : expected) {
    CAPTURE(name);
    REQUIRE(found.count(name));
    CHECK((found.at(name) == text));
  }
}

/// Whole output directories of every layout for jobs 1, 2 and 5, every instruction set, with and without
/// verifying, whole and in pieces: all must be the same, file for file.
void check_same_for_any_run(const fs::path& source) {
  const Scratch scratch;
  for_each_layout([&]<class L>() {
    CAPTURE(std::string(L::name));
    OneRule recipe;
    recipe.to = L::name;
    convert(source, scratch / "first", recipe);
    const auto expected = read_tree(scratch / "first");
    int run = 0;
    for (const Isa isa : available_isas()) {
      for (const int jobs : {1, 2, 5}) {
        for (const bool pieces : {false, true}) {
          CAPTURE(isa_name(isa));
          CAPTURE(jobs);
          CAPTURE(pieces);
          ConvertOptions options;
          options.isa = isa;
          options.jobs = jobs;
          options.verify = run++ % 2 == 0;
          convert(source, scratch / "next", recipe, options, pieces ? tiny_limits() : MemoryLimits{});
          check_same(read_tree(scratch / "next"), expected);
          fs::remove_all(scratch / "next");
        }
      }
    }
    const ValidateReport report = validate_from(source, scratch / "first", 1);
    CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
    fs::remove_all(scratch / "first");
  });
}

}  // namespace

TEST_CASE("golden checkpoints give the same directory for any jobs, instruction set, pieces and verifying") {
  for (const char* name : {"modelopt-qwen3", "compressed-tensors-qwen3", "modelopt-mixtral-uneven"}) {
    CAPTURE(name);
    check_same_for_any_run(fs::path(TWOFOUR_GOLDEN_DIR) / name / "src");
  }
}

TEST_CASE("matrices cut along K give the same directory as whole ones") {
  const Scratch scratch;
  write_wide(scratch / "src");
  const Checkpoint source = Checkpoint::open(scratch / "src");
  const Plan whole = make_plan(source, {}), pieces = make_plan(source, {}, tiny_limits());
  const auto matrices = whole.transformations.of<LayoutMatrix>();
  REQUIRE(matrices.size() == 4);
  for (size_t t = 0; t < 4; ++t) {
    if (matrices[t]->target.shape.k <= 2048) continue;  // the others' K is 48 and 16
    CHECK(matrices[t]->tiling.k_step == matrices[t]->target.shape.k);
    CHECK(pieces.transformations.of<LayoutMatrix>()[t]->tiling.k_step == 1024);
  }
  check_same_for_any_run(scratch / "src");
}

TEST_CASE("stacks read in strips and turned give the same directory as whole ones") {
  const Scratch scratch;
  write_stacks(scratch / "src");
  const Checkpoint source = Checkpoint::open(scratch / "src");
  const Plan plan = make_plan(source, {}), pieces = make_plan(source, {}, tiny_limits());
  const auto matrices = plan.transformations.of<LayoutMatrix>();
  REQUIRE(matrices.size() == 2);
  for (const size_t t : {0, 1}) {  // down is turned, gate and up are not
    const LayoutMatrix& m = *matrices[t];
    if (m.target.name.ends_with("w13")) CHECK(m.tiling.strip_rows < m.target.shape.n);
    CHECK(pieces.transformations.of<LayoutMatrix>()[t]->tiling.k_step < m.target.shape.k);
  }
  check_same_for_any_run(scratch / "src");
}

TEST_CASE("a generated model gives the same directory for any jobs, instruction set, pieces and verifying") {
  const Scratch scratch;
  SynthOptions options;
  options.dialect = "compressed-tensors";
  options.max_shard_size = 50'000;
  Progress progress;
  synth(scratch / "src", options, progress);
  check_same_for_any_run(scratch / "src");
}

TEST_CASE("the size of shards changes where tensors stand and nothing of what they hold") {
  const fs::path source = fs::path(TWOFOUR_GOLDEN_DIR) / "modelopt-qwen3/src";
  const Scratch scratch;
  convert(source, scratch / "one");
  const ReadTensors expected = read_tensors(scratch / "one");
  for (const uint64_t size : {uint64_t{20'000}, uint64_t{1}}) {
    CAPTURE(size);
    const fs::path out = scratch / fmt::format("{}", size);
    OneRule recipe;
    recipe.max_shard_size = size;
    convert(source, out, recipe);
    const Checkpoint c = Checkpoint::open(out);
    CHECK(c.findings().empty());
    CHECK(c.shards().size() > 3);
    for (const Shard& s : c.shards()) {
      CHECK((s.data_bytes() <= size || s.tensor_count == 1));
      CHECK(s.name.ends_with(fmt::format("-of-{:05}.safetensors", c.shards().size())));
    }
    CHECK((read_tensors(out) == expected));
    CHECK(validate_from(source, out).differences.empty());
  }
}

TEST_CASE("a source is known by its contents: a copy elsewhere gives the same directory") {
  const fs::path source = fs::path(TWOFOUR_GOLDEN_DIR) / "modelopt-mixtral-uneven/src";
  const Scratch scratch;
  fs::copy(source, scratch / "another name", fs::copy_options::recursive);
  convert(source, scratch / "a");
  convert(scratch / "another name", scratch / "b");
  check_same(read_tree(scratch / "b"), read_tree(scratch / "a"));
}

}  // namespace determinism_test
