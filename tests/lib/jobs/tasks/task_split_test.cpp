#include "lib/jobs/tasks/split.h"

#include <doctest/doctest.h>

#include <numeric>
#include <set>

#include "lib/synth/synth.h"
#include "lib/write/methods/layout_matrix.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace task_split_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// Every file goes to one task and only one.
void check_complete(const TaskSplit& split, const Plan& plan, size_t tasks) {
  REQUIRE(split.files.size() == tasks);
  REQUIRE(split.bytes.size() == tasks);
  std::vector<uint32_t> all;
  for (const auto& files : split.files) {
    CHECK(std::is_sorted(files.begin(), files.end()));
    all.insert(all.end(), files.begin(), files.end());
  }
  std::sort(all.begin(), all.end());
  std::vector<uint32_t> expected(plan.files.size());
  std::iota(expected.begin(), expected.end(), 0u);
  CHECK(all == expected);
}

/// The bytes that a task reads and writes, counted anew: `source` bytes of each target, once, and of each
/// copy.
uint64_t count_bytes(const Checkpoint& source, const Plan& plan, const std::vector<uint32_t>& files) {
  uint64_t bytes = 0;
  std::set<size_t> read;
  for (const uint32_t f : files) {
    bytes += plan.files[f].size();
    for (size_t i = 0; i < plan.files[f].tensor_count; ++i) {
      const OutputTensor& t = plan.tensors[plan.files[f].first_tensor + i];
      const Transformation& writer = *plan.transformations[t.transformation];
      if (writer.keeps()) bytes += t.info.bytes();
      const auto* matrix = dynamic_cast<const LayoutMatrix*>(&writer);
      if (matrix == nullptr || !read.insert(t.transformation).second) continue;
      for (const SourceRows& rows : matrix->target.sources) {
        const Nvfp4Linear& m = source.nvfp4_modules()[rows.module];
        bytes += source.tensors()[m.codes].bytes() + source.tensors()[m.block_scale].bytes();
      }
    }
  }
  return bytes;
}

Plan plan_of(const Checkpoint& source, uint64_t max_shard_size, const std::string& layout = "v7") {
  OneRule recipe;
  recipe.to = layout;
  recipe.max_shard_size = max_shard_size;
  return make_plan(source, recipe);
}

}  // namespace

TEST_CASE("a plan's files are dealt out completely, in balance, and the same each time") {
  const Scratch scratch;
  SynthOptions options;
  options.shape = "tiny";
  options.layers = 12;
  options.vocab = 64;  // no file that outweighs all others
  Progress progress;
  synth(scratch / "src", options, progress);
  const Checkpoint source = Checkpoint::open(scratch / "src");
  const Plan plan = plan_of(source, 20'000);
  REQUIRE(plan.files.size() > 20);
  for (const size_t tasks : {1, 2, 3, 7, 64, 1000}) {
    CAPTURE(tasks);
    const TaskSplit split = split_tasks(source, plan, tasks), again = split_tasks(source, plan, tasks);
    check_complete(split, plan, tasks);
    CHECK(split.files == again.files);
    uint64_t largest = 0, sum = 0;
    for (size_t t = 0; t < tasks; ++t) {
      CHECK(split.bytes[t] == count_bytes(source, plan, split.files[t]));
      largest = std::max(largest, split.bytes[t]);
      sum += split.bytes[t];
    }
    CHECK(split.largest() == largest);
    CHECK(split.balance() ==
          doctest::Approx(static_cast<double>(largest * tasks) / static_cast<double>(sum)));
    CHECK(split.overhead() >= 1);
    std::vector<uint32_t> all(plan.files.size());
    std::iota(all.begin(), all.end(), 0u);
    CHECK(split.alone == count_bytes(source, plan, all));
    if (tasks <= 7) CHECK(split.balance() < 1.15);
  }
}

TEST_CASE("a matrix with parts in two files is read once where both are one task's") {
  const Scratch scratch;
  Tensors tensors;
  add_experts(tensors, "model.layers.0.mlp.experts", random_experts(2, 32, 64));
  write_checkpoint(scratch / "src", {tensors});
  const Checkpoint source = Checkpoint::open(scratch / "src");
  const Plan plan = plan_of(source, 1);  // a file a tensor
  REQUIRE(plan.files.size() == plan.tensors.size());
  const TaskSplit one = split_tasks(source, plan, 1), many = split_tasks(source, plan, plan.files.size());
  CHECK(one.overhead() == 1);
  CHECK(one.bytes[0] == one.alone);
  uint64_t read = 0, written = 0;
  for (const TensorInfo& t : source.tensors()) read += t.dtype == DType::kF32 ? 0 : t.bytes();
  for (const OutputFile& f : plan.files) written += f.size();
  CHECK(one.alone == read + written);
  // With a task for each file, comp is written apart from the rest, and its source read once more.
  CHECK(many.overhead() > 1);
  CHECK(many.largest() < one.largest() * 2 / 3);  // less than w13 whole
  for (size_t t = 0; t < many.files.size(); ++t) {
    CHECK(many.bytes[t] == count_bytes(source, plan, many.files[t]));
  }
}

TEST_CASE("plans of every kind are dealt out") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {experts_stored_as("modelopt", "model.layers.0.mlp.experts", 2, 32, 64)});
  OneRule bf16;
  bf16.to = "bf16";
  convert(scratch / "src", scratch / "bf16", bf16);
  for (const char* layout : {"v7", "v7-packed", "g8", "bf16", "prune", "fp8", "quantize"}) {
    CAPTURE(layout);
    const bool quantizes = std::string(layout) == "quantize";
    const Checkpoint source = Checkpoint::open(scratch / (quantizes ? "bf16" : "src"));
    OneRule recipe;
    recipe.to = layout;
    recipe.max_shard_size = 1000;
    if (recipe.to == "prune") recipe.pattern = "2:4";
    const Plan plan = make_plan(source, recipe);
    const TaskSplit split = split_tasks(source, plan, 3);
    check_complete(split, plan, 3);
    for (const uint64_t bytes : split.bytes) CHECK(bytes > 0);
  }
}

}  // namespace task_split_test
