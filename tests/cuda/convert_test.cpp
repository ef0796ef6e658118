#include "lib/convert/convert.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "formats/layouts/layouts.h"
#include "lib/synth/synth.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/device/device.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kBlock = "model.layers.0.mlp.experts";

/// Pieces of 128 or 1024 along the axis that a layout is cut at, and strips of few rows.
MemoryLimits tiny_limits() {
  MemoryLimits limits;
  limits.piece = 1;
  return limits;
}

void check_equal(const ConvertResult& found, const ConvertResult& expected) {
  CHECK(text_of(found.findings) == text_of(expected.findings));
  CHECK(found.bytes_read == expected.bytes_read);
  REQUIRE(found.quality.size() == expected.quality.size());
  for (size_t i = 0; i < found.quality.size(); ++i) {
    const Quality &a = found.quality[i], &b = expected.quality[i];
    CHECK(a.energy == b.energy);
    CHECK(a.kept_energy == b.kept_energy);
    CHECK(a.quads == b.quads);
    CHECK(a.tied == b.tied);
    CHECK(a.fold_energy == b.fold_energy);
    CHECK(a.fold_error == b.fold_error);
  }
}

/// Converts to a layout on the CPU and on the device, for some jobs, whole and in pieces: the directories
/// must be equal, file for file.
template <class Layout>
void check_layout(const fs::path& source, const Selection& selection) {
  CAPTURE(std::string(Layout::name));
  const Scratch scratch;
  Recipe recipe;
  recipe.layout = Layout::name;
  recipe.selection = selection;
  const ConvertResult cpu = convert(source, scratch / "cpu", recipe);
  const auto expected = read_tree(scratch / "cpu");
  for (const int jobs : {1, 3}) {
    for (const bool pieces : {false, true}) {
      CAPTURE(jobs);
      CAPTURE(pieces);
      ConvertOptions options;
      options.jobs = jobs;
      options.device = Device::cuda;
      const ConvertResult cuda =
          convert(source, scratch / "cuda", recipe, options, pieces ? tiny_limits() : MemoryLimits{});
      if (!pieces) check_equal(cuda, cpu);
      const auto found = read_tree(scratch / "cuda");
      REQUIRE(found.size() == expected.size());
      for (const auto& [name, text] : expected) {
        CAPTURE(name);
        REQUIRE(found.count(name));
        CHECK((found.at(name) == text));
      }
      fs::remove_all(scratch / "cuda");
    }
  }
}

void check_source(const fs::path& source, bool gated = true, const Selection& selection = {}) {
  for_each_layout([&]<class L>() {
    if (gated || !L::pairs_gate_and_up) check_layout<L>(source, selection);
  });
}

void check_tensors(const Tensors& tensors, bool gated = true) {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  check_source(scratch / "src", gated);
}

}  // namespace

TEST_CASE("golden and generated checkpoints convert to the same directory on the device") {
  if (no_gpu()) return;
  for (const char* name : {"modelopt-qwen3", "compressed-tensors-qwen3", "modelopt-mixtral-uneven"}) {
    CAPTURE(name);
    check_source(fs::path(TWOFOUR_GOLDEN_DIR) / name / "src");
  }
  const Scratch scratch;
  Progress progress;
  synth(scratch / "synth", {}, progress);
  check_source(scratch / "synth");
}

TEST_CASE("experts of odd shapes, however they are stored, convert to the same directory on the device") {
  if (no_gpu()) return;
  for (const char* how : {"modelopt", "compressed-tensors", "not gated", "stack", "stack, k outer",
                          "stack, interleaved", "stack, interleaved, k outer"}) {
    CAPTURE(how);
    check_tensors(experts_stored_as(how, kBlock, 3, 16, 32), std::string(how) != "not gated");
    check_tensors(experts_stored_as(how, kBlock, 2, 48, 16), std::string(how) != "not gated");
    check_tensors(experts_stored_as(how, kBlock, 2, 80, 336), std::string(how) != "not gated");
  }
}

TEST_CASE("matrices cut along K or N and read in strips convert to the same directory on the device") {
  if (no_gpu()) return;
  Tensors tensors;
  add_experts(tensors, kBlock, random_experts(2, 48, 2576));
  add_experts(tensors, "model.layers.1.mlp.experts", random_experts(2, 2064, 16, 100));
  add_experts(tensors, "model.layers.2.mlp.experts", random_experts(1, 1104, 2096, 200));
  check_tensors(tensors);
}

TEST_CASE("unequal global scales fold to the same bytes, figures and findings on the device") {
  if (no_gpu()) return;
  ExpertSet experts = random_experts(4, 48, 80);
  const float gate[] = {0.5f, 0.3f, 1e-6f, 0.7f}, up[] = {0.5f, 0.7f, 1.0f, 0.69f};
  for (size_t e = 0; e < 4; ++e) experts.gate[e].global = gate[e], experts.up[e].global = up[e];
  Tensors tensors;
  add_experts(tensors, kBlock, experts);
  check_tensors(tensors);
}

TEST_CASE("a dense MLP and a single linear convert to the same directory on the device") {
  if (no_gpu()) return;
  Tensors tensors;
  add_modelopt(tensors, "model.layers.0.mlp.gate_proj", random_matrix(112, 80, 1));
  add_modelopt(tensors, "model.layers.0.mlp.up_proj", random_matrix(112, 80, 2));
  add_modelopt(tensors, "model.layers.0.mlp.down_proj", random_matrix(80, 112, 3));
  add_modelopt(tensors, "model.layers.0.self_attn.o_proj", random_matrix(80, 48, 4));
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  Selection selection;
  selection.also = parse_patterns({"model.layers.0.self_attn.o_proj"});
  check_source(scratch / "src", true, selection);
}

TEST_CASE("bad block scales are refused on the device in the CPU's words") {
  if (no_gpu()) return;
  for (const char* how : {"modelopt", "stack", "stack, interleaved, k outer"}) {
    for (const int bad : {0x7F, 0x80, 0xFF}) {
      CAPTURE(how);
      CAPTURE(bad);
      Tensors tensors = experts_stored_as(how, kBlock, 3, 80, 48);
      for (TensorData& t : tensors) {
        const bool stack = std::string(how) != "modelopt";
        if (t.name.ends_with("weight_scale") && (stack || t.name.find(".1.") != std::string::npos))
          t.bytes[t.bytes.size() / 2 + 7] = static_cast<uint8_t>(bad);
      }
      const Scratch scratch;
      write_checkpoint(scratch / "src", {tensors});
      const auto refusal = [&](Device device) -> std::string {
        ConvertOptions options;
        options.device = device;
        return message_of([&] { convert(scratch / "src", scratch / "out", {}, options); });
      };
      const std::string expected = refusal(Device::cpu);
      CHECK_MESSAGE(
          expected.find("expected block scales that are not negative and not NaN") != std::string::npos,
          expected);
      CHECK(refusal(Device::cuda) == expected);
      CHECK(!fs::exists(scratch / "out"));
    }
  }
}

TEST_CASE("a plan counts page-locked stages and what CUDA itself takes of the host") {
  const Scratch scratch;
  Tensors tensors;
  add_experts(tensors, kBlock, random_experts(1, 1104, 2096));
  write_checkpoint(scratch / "src", {tensors});
  const Checkpoint source = Checkpoint::open(scratch / "src");
  const Plan plan = make_plan(source, {});
  for (const int jobs : {1, 4}) {
    const auto stages = static_cast<uint64_t>(jobs) * plan.tilings[0].stage;
    CHECK(plan.workers(jobs, Device::cuda) == jobs);
    CHECK(plan.peak_memory(jobs, Device::cuda) >= plan.peak_memory(jobs) + stages);
  }
  CHECK(plan.workers(1000, Device::cuda) < plan.workers(1000));
  CHECK(plan.peak_memory(1000, Device::cuda) <= uint64_t{512} << 20);
}
