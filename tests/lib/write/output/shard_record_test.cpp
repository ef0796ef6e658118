#include "lib/write/output/shard_record.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/write/output/manifest_writer.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "lib/jobs/convert/conversion.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace shard_record_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// Converts the wanted files and returns what is known of them.
std::vector<ShardRecord> run_files(const Checkpoint& source, const Plan& plan, const fs::path& directory,
                                   std::vector<bool> wanted, int jobs = 2) {
  std::vector<ShardRecord> records;
  ConvertOptions options;
  options.jobs = jobs;
  Progress progress;
  fs::create_directories(directory);
  Conversion conversion(source, plan, options, directory, progress, std::move(wanted),
                        [&](ShardRecord&& r) { records.push_back(std::move(r)); });
  conversion.run();
  return records;
}

std::string manifest_of(const Checkpoint& source, const Plan& plan, std::span<const ShardRecord> records) {
  std::string text;
  format_manifest(source, plan, join_records(plan, records), {"1", "c"},
                  [&](std::string_view piece) { text += piece; });
  return text;
}

/// Two layers of experts of which gate and up have scales of their own, and tensors that pass through.
void write_source(const fs::path& directory) {
  Tensors tensors;
  ExpertSet experts = random_experts(3, 32, 64);
  experts.gate[1].global = 0.125f;
  experts.up[2].global = 0.5f;
  add_experts(tensors, "model.layers.0.mlp.experts", experts);
  add_experts(tensors, "model.layers.1.mlp.experts", random_experts(3, 32, 64, 7));
  add_bf16(tensors, "model.norm.weight", {64});
  add_bf16(tensors, "model.layers.0.input_layernorm.weight", {64});
  write_checkpoint(directory, {tensors}, R"({"num_experts": 3})");
}

/// A recipe of every kind, with files so small that what belongs together stands in several.
std::vector<OneRule> recipes() {
  std::vector<OneRule> all(8);
  all[1].to = "v7-packed";
  all[2].to = "g8";
  all[3].to = "nvfp4";
  all[3].dialect = "compressed-tensors";
  all[4].to = "bf16";
  all[5].to = "prune";
  all[5].pattern = "2:4";
  all[6].to = "fp8";
  all[6].dialect = "compressed-tensors";
  all[6].granularity = "row";
  all[7].to = "quantize";
  all[7].dialect = "modelopt";
  all[7].pattern = "2:4";
  for (OneRule& r : all) r.max_shard_size = 3000;
  return all;
}

void write_float_source(const fs::path& directory) {
  Tensors tensors;
  for (int layer = 0; layer < 2; ++layer) {
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
      add_bf16(tensors, "model.layers." + std::to_string(layer) + ".mlp." + name + ".weight", {64, 64},
               static_cast<unsigned>(layer + 3));
    }
  }
  add_bf16(tensors, "model.norm.weight", {64});
  for (TensorData& t : tensors) {
    for (size_t i = 1; i < t.bytes.size(); i += 2) t.bytes[i] &= 0xBF;  // below 2: neither NaN nor infinite
  }
  write_checkpoint(directory, {tensors});
}

}  // namespace

TEST_CASE("files converted one by one, each from nothing, are those of one run, and so is the manifest") {
  const Scratch scratch;
  write_source(scratch / "nvfp4");
  write_float_source(scratch / "floats");
  size_t straddling = 0;
  for (const OneRule& recipe : recipes()) {
    CAPTURE(recipe.to);
    const bool floats = recipe.to == "quantize";
    const Checkpoint source = open_source(scratch / (floats ? "floats" : "nvfp4"));
    for (const bool pieces : {false, true}) {
      if (pieces && !with_layout(recipe.to, []<class L>() {})) continue;
      MemoryLimits limits;
      if (pieces) limits.piece = 1;
      const Plan plan = make_plan(source, recipe, limits);
      REQUIRE(plan.files.size() > 3);
      for (size_t t = 0; t < plan.transformations.size(); ++t) {
        const auto parts = plan.parts_of(t);
        straddling += std::any_of(parts.begin(), parts.end(), [&](size_t i) {
          return plan.tensors[i].file != plan.tensors[parts.front()].file;
        });
      }
      const auto whole =
          run_files(source, plan, scratch / "whole", std::vector<bool>(plan.files.size(), true));
      std::vector<ShardRecord> single;
      for (size_t f = plan.files.size(); f-- > 0;) {
        std::vector<bool> wanted(plan.files.size());
        wanted[f] = true;
        const auto found = run_files(source, plan, scratch / "single", wanted, 1);
        REQUIRE(found.size() == 1);
        CHECK(found[0].file == f);
        const std::string text = format_shard_record(plan, found[0]);
        CHECK(text.find('\n') == std::string::npos);
        CHECK((parse_shard_record("line", plan, text) == found[0]));
        single.push_back(parse_shard_record("line", plan, text));
      }
      CHECK((read_tree(scratch / "single") == read_tree(scratch / "whole")));
      CHECK((manifest_of(source, plan, single) == manifest_of(source, plan, whole)));
      Progress progress;
      const auto wrong = check_shards(scratch / "single", plan, single, progress);
      CHECK(std::all_of(wrong.begin(), wrong.end(), [](auto& w) { return w.empty(); }));
      fs::remove_all(scratch / "whole");
      fs::remove_all(scratch / "single");
    }
  }
  CHECK(straddling > 10);
}

TEST_CASE("a file that is not as its record says is reported, and only that") {
  const Scratch scratch;
  write_source(scratch / "src");
  const Checkpoint source = open_source(scratch / "src");
  const Plan plan = make_plan(source, recipes()[0]);
  const auto records = run_files(source, plan, scratch / "out", std::vector<bool>(plan.files.size(), true));
  REQUIRE(records.size() > 3);
  const auto path = [&](size_t r) { return scratch / "out" / plan.files[records[r].file].name; };
  flip_bit(path(0), plan.files[records[0].file].size() - 1, 3);
  fs::remove(path(1));
  fs::resize_file(path(2), fs::file_size(path(2)) - 1);
  flip_bit(path(3), 20, 0);  // in the header
  Progress progress;
  const auto wrong = check_shards(scratch / "out", plan, records, progress);
  CHECK(wrong[0].find("expected hash") != std::string::npos);
  CHECK(wrong[1].find("cannot open") != std::string::npos);
  CHECK(wrong[2].find("bytes, found") != std::string::npos);
  CHECK(wrong[3].find("expected the header that was planned") != std::string::npos);
  for (size_t r = 4; r < wrong.size(); ++r) CHECK(wrong[r].empty());
}

TEST_CASE("records that are missing, contradict each other or belong elsewhere are refused") {
  const Scratch scratch;
  write_source(scratch / "src");
  const Checkpoint source = open_source(scratch / "src");
  const Plan plan = make_plan(source, recipes()[0]);
  auto records = run_files(source, plan, scratch / "out", std::vector<bool>(plan.files.size(), true));
  const auto refused = [&](const char* message) {
    CHECK_THROWS_WITH_AS(join_records(plan, records), doctest::Contains(message), Error);
  };
  const auto sound = records;
  records.push_back(records.front());  // twice the same is no harm
  CHECK((manifest_of(source, plan, records) == manifest_of(source, plan, sound)));
  records.back().outputs.back().low ^= 1;
  refused("expected one record, found two that differ");
  records = sound;
  records.pop_back();
  refused("expected a record of it, found none");
  records = sound;
  const auto with_result =
      std::find_if(records.begin(), records.end(), [](const ShardRecord& r) { return !r.results.empty(); });
  REQUIRE(with_result != records.end());
  const auto result = *with_result->results.begin();
  with_result->results.erase(result.first);
  refused("expected a record of what was found, found none");
  (with_result == records.begin() ? records.back() : records.front()).results.insert(result);
  refused("expected results of the matrices that begin in it, found others");

  const std::string text = format_shard_record(
      plan,
      *std::find_if(sound.begin(), sound.end(), [](const ShardRecord& r) { return !r.results.empty(); }));
  const auto unread = [&](const std::string& changed) {
    CAPTURE(changed);
    CHECK_THROWS_WITH_AS(parse_shard_record("line", plan, changed), doctest::Contains("line: expected"),
                         Error);
  };
  for (size_t length = 0; length < text.size(); length += 7) unread(text.substr(0, length));
  OneRule other = recipes()[0];
  other.max_shard_size = 100'000;
  CHECK_THROWS_AS(parse_shard_record("line", make_plan(source, other), text), Error);
  for (const char* key : {"\"file\"", "\"header\"", "\"outputs\"", "\"results\"", "\"transformation\"",
                          "\"slices\"", "\"quality\""}) {
    std::string changed = text;
    const size_t at = changed.find(key);
    if (at == std::string::npos) continue;
    unread(changed.replace(at, 3, "\"zz"));
  }
  unread("[]");
  unread("{\"file\": 5}");
}

}  // namespace shard_record_test
