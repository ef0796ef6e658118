#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>

#include "formats/atom.h"
#include "formats/error.h"
#include "kernels/pack/prune.h"
#include "lib/base/io/file.h"
#include "lib/look/inspect/inspect.h"
#include "lib/recipe/artifact/manifest.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace prune_checkpoint_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

constexpr const char* kGoldens[] = {"modelopt-qwen3", "compressed-tensors-qwen3", "modelopt-mixtral-uneven"};
constexpr const char* kPatterns[] = {"2:4", "4:8-paired"};

fs::path golden(const char* name) { return fs::path(TWOFOUR_GOLDEN_DIR) / name / "src"; }

OneRule prune_recipe(const std::string& pattern) {
  OneRule recipe;
  recipe.to = "prune";
  recipe.pattern = pattern;
  return recipe;
}

/// Codes of one module as they should be left, [e, n, k] in the order stored.
std::vector<uint8_t> expected_codes(const ReadTensor& codes, bool k_outer, const std::string& pattern) {
  std::vector<uint8_t> out(codes.bytes.size());
  const size_t rank = codes.shape.size();
  const auto width = static_cast<size_t>(codes.shape[rank - 1]);
  const size_t line = k_outer ? width : 1;
  const size_t lines = pattern == "2:4" ? 2 : 4;
  for (size_t i = 0; i < out.size(); ++i) {
    if (i / line % lines != 0) continue;
    uint32_t chunk = 0;
    for (size_t j = 0; j < lines; ++j) chunk |= uint32_t{codes.bytes[i + j * line]} << 8 * j;
    const uint32_t kept = lines == 2 ? expand_2_4(select_2_4(chunk)) : mask_4_8(chunk, select_4_8(chunk));
    for (size_t j = 0; j < lines; ++j) out[i + j * line] = static_cast<uint8_t>(kept >> 8 * j);
  }
  return out;
}

/// Holds a pruned checkpoint against its source: codes of `pruned` modules as expected, all else as it was.
void check_pruned(const fs::path& source, const fs::path& out, const std::string& pattern,
                  const std::function<bool(const std::string&)>& is_pruned) {
  const ReadTensors before = read_tensors(source), after = read_tensors(out);
  const Checkpoint c = Checkpoint::open(source);
  REQUIRE(before.size() == after.size());
  size_t pruned = 0;
  for (const auto& [name, tensor] : before) {
    CAPTURE(name);
    REQUIRE(after.count(name) == 1);
    ReadTensor expected = tensor;
    for (const Nvfp4Linear& m : c.nvfp4_modules()) {
      if (c.tensors()[m.codes].name != name || !is_pruned(m.name)) continue;
      expected.bytes = expected_codes(tensor, m.k_outer, pattern);
      ++pruned;
    }
    CHECK((after.at(name) == expected));
  }
  CHECK(pruned > 0);
  const ValidateReport report = validate_from(source, out);
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
  CHECK(report.weights.size() == pruned);
  CHECK(report.source_tensors == before.size());
  CHECK(validate(out).differences.empty());
}

void check_complies(const fs::path& out, const std::string& pattern, const std::string& modules) {
  const Checkpoint c = Checkpoint::open(out);
  const auto report = inspect(c, {NamePattern(modules)}, true, 1);
  REQUIRE(!report.modules.empty());
  for (const ModuleGroup& m : report.modules) {
    CAPTURE(m.name);
    if (pattern == "2:4") CHECK(m.stats->quads_2_4 == m.stats->quads);
    if (pattern != "2:4") CHECK(m.stats->octets_4_8_paired == m.stats->octets);
  }
}

/// A model with stacks of experts, one turned and one not.
void write_stacks(const fs::path& path, int64_t i, int64_t h) {
  std::vector<Nvfp4Matrix> up, down;
  for (unsigned e = 0; e < 3; ++e) {
    up.push_back(random_matrix(2 * i, h, 10 + e, 0.25f * static_cast<float>(e + 1)));
    down.push_back(random_matrix(h, i, 20 + e));
  }
  Tensors tensors;
  add_stack(tensors, "model.layers.0.mlp.experts.gate_up_proj", up, true, {3});
  add_stack(tensors, "model.layers.0.mlp.experts.down_proj", down, false, {});
  add_bf16(tensors, "model.norm.weight", {16});
  write_checkpoint(path, {tensors});
}

}  // namespace

TEST_CASE("pruning drops codes of the experts of golden checkpoints and changes nothing else") {
  for (const char* name : kGoldens) {
    for (const char* pattern : kPatterns) {
      CAPTURE(name);
      CAPTURE(pattern);
      const Scratch scratch;
      convert(golden(name), scratch / "out", prune_recipe(pattern));
      const auto is_expert = [](const std::string& m) { return m.find(".experts.") != std::string::npos; };
      check_pruned(golden(name), scratch / "out", pattern, is_expert);
      check_complies(scratch / "out", pattern, "*.experts.*");
      // Configuration and everything else goes along as it is.
      const auto before = read_tree(golden(name)), after = read_tree(scratch / "out");
      for (const auto& [file, text] : before) {
        if (file.ends_with(".safetensors") || file == kIndexName) continue;
        CAPTURE(file);
        REQUIRE(after.count(file) == 1);
        CHECK((after.at(file) == text));
      }
    }
  }
}

TEST_CASE("pruning to 2:4 costs what v7 says it costs, and v7 of the pruned checkpoint is v7 of its source") {
  for (const char* name : kGoldens) {
    CAPTURE(name);
    const Scratch scratch;
    const ConvertResult pruned = convert(golden(name), scratch / "pruned", prune_recipe("2:4"));
    const ConvertResult v7 = convert(golden(name), scratch / "v7");
    Quality a, b;
    for (const Quality& q : qualities(pruned)) a += q;
    for (const Quality& q : qualities(v7)) b += q;
    CHECK(a.quads == b.quads);
    CHECK(a.tied == b.tied);
    if (std::string(name) != "modelopt-mixtral-uneven") {  // v7 folds its block scales
      CHECK(a.retained_energy() == doctest::Approx(b.retained_energy()).epsilon(1e-12));
    }
    convert(scratch / "pruned", scratch / "v7 of pruned");
    CHECK((read_tensors(scratch / "v7 of pruned") == read_tensors(scratch / "v7")));
  }
}

TEST_CASE("stacks of experts are pruned along K, whichever axis is contiguous") {
  const Scratch scratch;
  write_stacks(scratch / "src", 32, 48);
  for (const char* pattern : kPatterns) {
    const fs::path out = scratch / pattern;
    const ConvertResult result = convert(scratch / "src", out, prune_recipe(pattern));
    CHECK(qualities(result).size() == 2);
    check_pruned(scratch / "src", out, pattern, [](const std::string&) { return true; });
    check_complies(out, pattern, "*");
  }
}

TEST_CASE("a pruned checkpoint is the same for any number of jobs, with and without verifying") {
  const Scratch scratch;
  write_stacks(scratch / "stacks", 32, 48);
  for (const fs::path& source : {scratch / "stacks", golden("modelopt-qwen3")}) {
    convert(source, scratch / "expected", prune_recipe("2:4"));
    const auto expected = read_tree(scratch / "expected");
    for (const int jobs : {2, 5}) {
      ConvertOptions options;
      options.jobs = jobs;
      options.verify = jobs == 2;
      options.existing = Existing::kReplace;
      convert(source, scratch / "again", prune_recipe("2:4"), options);
      CHECK((read_tree(scratch / "again") == expected));
    }
    fs::remove_all(scratch / "expected");
  }
}

TEST_CASE("tensors derived in ranges are those derived whole, whatever the number of jobs") {
  // 6 MB of codes in one tensor: a range ends in the middle of an expert.
  std::vector<Nvfp4Matrix> up, down;
  for (unsigned e = 0; e < 3; ++e) {
    up.push_back(random_matrix(2 * 272, 7312, e + 1));
    down.push_back(random_matrix(7312, 272, e + 9));
  }
  for (const bool k_outer : {false, true}) {
    const Scratch scratch;
    Tensors tensors;
    add_stack(tensors, "model.layers.0.mlp.experts.gate_up_proj", up, k_outer, {3});
    add_stack(tensors, "model.layers.0.mlp.experts.down_proj", down, k_outer, {3});
    write_checkpoint(scratch / "src", {tensors});
    for (const char* pattern : kPatterns) {
      ConvertOptions options;
      options.jobs = 3;
      convert(scratch / "src", scratch / "many", prune_recipe(pattern), options);
      convert(scratch / "src", scratch / "one", prune_recipe(pattern));
      CHECK((read_tree(scratch / "many") == read_tree(scratch / "one")));
      const ReadTensors before = read_tensors(scratch / "src"), after = read_tensors(scratch / "one");
      for (const auto& [name, tensor] : after) {
        if (tensor.dtype == DType::kU8)
          CHECK((tensor.bytes == expected_codes(before.at(name), k_outer, pattern)));
      }
      CHECK(validate(scratch / "one").differences.empty());
      fs::remove_all(scratch / "many");
      fs::remove_all(scratch / "one");
    }
  }
}

TEST_CASE("modules are chosen as for v7, and others pass through") {
  const Scratch scratch;
  OneRule recipe = prune_recipe("2:4");
  recipe.selection.also = parse_patterns({"*.self_attn.o_proj"});
  convert(golden("modelopt-qwen3"), scratch / "also", recipe);
  check_pruned(golden("modelopt-qwen3"), scratch / "also", "2:4", [](const std::string&) { return true; });
  recipe.selection.also.clear();
  recipe.selection.exclude = parse_patterns({"*"});
  CHECK_THROWS_AS(convert(golden("modelopt-qwen3"), scratch / "none", recipe), Error);
  recipe.selection.exclude = parse_patterns({"nothing"});
  CHECK_THROWS_AS(convert(golden("modelopt-qwen3"), scratch / "none", recipe), Error);
  CHECK(!fs::exists(scratch / "none"));
}

TEST_CASE("a block scale that is not valid is refused, named, and leaves nothing behind") {
  for (const int bad : {0x7F, 0x80, 0xFF}) {
    const Scratch scratch;
    ExpertSet experts = random_experts(2, 32, 32);
    experts.up[1].scales[17] = static_cast<uint8_t>(bad);
    Tensors tensors;
    add_experts(tensors, "model.layers.0.mlp.experts", experts);
    write_checkpoint(scratch / "src", {tensors});
    const std::string message =
        message_of([&] { convert(scratch / "src", scratch / "out", prune_recipe("2:4")); });
    CHECK(message ==
          fmt::format("model.safetensors: model.layers.0.mlp.experts.1.up_proj.weight_scale: expected block "
                      "scales that are not negative and not NaN, found byte 0x{:02X} at 17",
                      bad));
    CHECK(!fs::exists(scratch / "out"));
  }
}

TEST_CASE("one flipped bit in any tensor of a pruned checkpoint is found and named") {
  const Scratch scratch;
  write_stacks(scratch / "src", 16, 16);
  convert(scratch / "src", scratch / "out", prune_recipe("4:8-paired"));
  const Checkpoint c = Checkpoint::open(scratch / "out");
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const TensorInfo& t = c.tensors()[i];
    const uint64_t begin = c.shard_of(i).data_begin + t.begin;
    for (const uint64_t byte : {uint64_t{0}, t.bytes() / 2, t.bytes() - 1}) {
      flip_bit(c.shard_of(i).file.path(), begin + byte, 2);
      for (const ValidateReport& report :
           {validate(scratch / "out"), validate_from(scratch / "src", scratch / "out")}) {
        REQUIRE(!report.differences.empty());
        for (const Finding& f : report.differences) CHECK(f.where == t.name);
      }
      CHECK(findings_of(validate_from(scratch / "src", scratch / "out").differences, "bytes").size() == 1);
      flip_bit(c.shard_of(i).file.path(), begin + byte, 2);
    }
  }
}

TEST_CASE("the manifest says what was pruned, how, and from what") {
  const Scratch scratch;
  convert(golden("compressed-tensors-qwen3"), scratch / "out", prune_recipe("4:8-paired"));
  const Manifest manifest = read_manifest(scratch / "out" / kManifestName, 100);
  CHECK(manifest.recipe.rules[0].to == "prune");
  CHECK(manifest.recipe.rules[0].pattern == "4:8-paired");
  CHECK(manifest.shapes.size() == 12);
  const Json json = parse_json("manifest", read_text(scratch / "out" / kManifestName));
  const Json& module = json["modules"][0];
  CHECK(module["quality"]["retained_energy"].get<double>() < 1);
  const Json& source = module["sources"][0];
  CHECK(source["global_scale_bits"].size() == 1);
  const ReadTensors before = read_tensors(golden("compressed-tensors-qwen3"));
  const std::string name = source["module"].get<std::string>();
  CHECK(source["codes_xxh3_128"] == hash_bytes(before.at(name + ".weight_packed").bytes).hex());
  CHECK(source["scales_xxh3_128"] == hash_bytes(before.at(name + ".weight_scale").bytes).hex());
}

}  // namespace prune_checkpoint_test
