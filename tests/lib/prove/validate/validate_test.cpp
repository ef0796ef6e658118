#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/synth/synth.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace validate_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kBlock = "model.layers.0.mlp.experts";

/// A source of every kind of thing, as small as can be, and its artifact.
struct Pair {
  Pair() {
    Tensors tensors;
    add_experts(tensors, kBlock, random_experts(1, 16, 16));
    add_bf16(tensors, "model.norm.weight", {16});
    write_checkpoint(source, {tensors},
                     R"({"num_experts": 1, "quantization_config": {"quant_method": "modelopt"}})");
    write_text(source / "tokenizer.json", "{}");
    fs::create_directory(source / "sub");
    write_text(source / "sub/notes.txt", "notes");
    convert(source, artifact);
  }
  const Scratch scratch;
  const fs::path source = scratch / "src", artifact = scratch / "out";
  fs::path weights() const { return artifact / "model-00001-of-00001.safetensors"; }
};

/// True if validation finds something or cannot even read the artifact: exit code 1 or 2, never 0.
bool finds(const std::function<ValidateReport()>& run) {
  try {
    return !run().differences.empty();
  } catch (const Error&) {
    return true;
  }
}
bool finds_alone(const Pair& p) {
  return finds([&] { return validate(p.artifact); });
}
bool finds_from_source(const Pair& p) {
  return finds([&] { return validate_from(p.source, p.artifact, 0); });
}

/// Position of a tensor's first byte in its file.
uint64_t offset_of(const fs::path& artifact, const std::string& name) {
  const Checkpoint c = Checkpoint::open(artifact);
  const auto at = c.find(name);
  REQUIRE_MESSAGE(at.has_value(), name);
  return c.shard_of(*at).data_begin + c.tensors()[*at].begin;
}

}  // namespace

TEST_CASE("a sound artifact has no differences, with its source and without") {
  const Pair p;
  const ValidateReport alone = validate(p.artifact), proven = validate_from(p.source, p.artifact);
  CHECK_MESSAGE(alone.differences.empty(), text_of(alone.differences));
  CHECK_MESSAGE(proven.differences.empty(), text_of(proven.differences));
  CHECK(alone.tensors == 9);  // four of w13, four of w2, the norm
  CHECK(proven.tensors == 9);
  CHECK(proven.source_tensors == 10);
  CHECK(alone.bytes == proven.bytes);
  REQUIRE(proven.layers.size() == 1);
  CHECK(proven.layers[0].exact);
}

TEST_CASE("one flipped bit in any tensor is found and named, with the source and without") {
  const Pair p;
  for (const auto& [name, tensor] : read_tensors(p.artifact)) {
    for (const size_t byte : {size_t{0}, tensor.bytes.size() / 2, tensor.bytes.size() - 1}) {
      for (int bit = 0; bit < 8; ++bit) {
        CAPTURE(name);
        CAPTURE(byte);
        CAPTURE(bit);
        const uint64_t at = offset_of(p.artifact, name) + byte;
        flip_bit(p.weights(), at, bit);
        const auto alone = findings_of(validate(p.artifact).differences, "hash");
        REQUIRE(alone.size() == 1);
        CHECK(alone[0].where == name);
        const auto derived = findings_of(validate_from(p.source, p.artifact, 0).differences, "bytes");
        REQUIRE(derived.size() == 1);
        CHECK(derived[0].where == name);
        flip_bit(p.weights(), at, bit);
      }
    }
  }
  CHECK(!finds_alone(p));
  CHECK(!finds_from_source(p));
}

TEST_CASE("a wrong byte of any part of any layout, padding too, is found and named from the source") {
  Tensors tensors;
  add_experts(tensors, kBlock, random_experts(2, 48, 80));
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors}, R"({"num_experts": 2})");
  for (const std::string layout : {"v7", "v7-packed", "g8"}) {
    const fs::path out = scratch / layout;
    OneRule recipe;
    recipe.to = layout;
    convert(scratch / "src", out, recipe);
    for (const auto& [name, tensor] : read_tensors(out)) {
      const uint64_t begin = offset_of(out, name);
      for (size_t byte = 0; byte < tensor.bytes.size(); byte += 197) {  // prime: all rows and columns in turn
        CAPTURE(layout);
        CAPTURE(name);
        CAPTURE(byte);
        flip_bit(out / "model-00001-of-00001.safetensors", begin + byte, 6);
        const ValidateReport report = validate_from(scratch / "src", out, 0);
        const auto bytes = findings_of(report.differences, "bytes");
        REQUIRE(bytes.size() == 1);
        CHECK(bytes[0].where == name);
        CHECK(findings_of(report.differences, "hash").size() == 1);
        flip_bit(out / "model-00001-of-00001.safetensors", begin + byte, 6);
      }
    }
    CHECK(validate_from(scratch / "src", out, 0).differences.empty());
  }
}

TEST_CASE("one flipped bit in any byte of any file but the manifest is found from the source") {
  const Pair p;
  size_t bytes = 0;
  for (const auto& [name, text] : read_tree(p.artifact)) {
    if (name == kManifestName) continue;
    for (size_t i = 0; i < text.size(); ++i, ++bytes) {
      const int bit = static_cast<int>(i % 8);
      flip_bit(p.artifact / name, i, bit);
      CHECK_MESSAGE(finds_from_source(p), fmt::format("{}: byte {}", name, i));
      flip_bit(p.artifact / name, i, bit);
    }
  }
  CHECK(bytes > 2000);
  CHECK(!finds_from_source(p));
}

TEST_CASE("one flipped bit in any byte of the manifest is found without the source") {
  const Pair p;
  const std::string text = read_text(p.artifact / kManifestName);
  const auto damage_of = [&](const std::string& changed) {
    write_text(p.scratch / "changed.json", changed);
    return integrity_error(InputFile(p.scratch / "changed.json"));
  };
  CHECK(damage_of(text).empty());
  for (size_t i = 0; i < text.size(); ++i) {
    const int bit = static_cast<int>(i % 8);
    flip_bit(p.artifact / kManifestName, i, bit);
    CHECK_MESSAGE(finds_alone(p), fmt::format("byte {}", i));
    flip_bit(p.artifact / kManifestName, i, bit);
  }
  for (const size_t size : {text.size() - 1, text.size() - 5, text.size() / 2, size_t{3}, size_t{0}}) {
    CHECK(!damage_of(text.substr(0, size)).empty());
  }
  CHECK(!damage_of(text + "\n").empty());
  CHECK(!finds_alone(p));
}

TEST_CASE("the message says which weight a wrong byte belongs to") {
  Tensors tensors;
  add_experts(tensors, kBlock, random_experts(3, 48, 80));
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  convert(scratch / "src", scratch / "out");
  // meta [3, 80/8, 96]: expert 2, row 7 is k 56 to 63, column 50 is n = 50.
  const std::string name = kBlock + ".w13_meta";
  const uint64_t at = offset_of(scratch / "out", name) + (2 * 10 + 7) * 96 + 50;
  flip_bit(scratch / "out/model-00001-of-00001.safetensors", at, 0);
  const auto found = findings_of(validate_from(scratch / "src", scratch / "out").differences, "bytes");
  REQUIRE(found.size() == 1);
  CHECK(found[0].where == name);
  CHECK_MESSAGE(
      found[0].message.starts_with(
          "1 bytes differ from those derived from the source, the first at expert 2, row 7, column 50 "
          "(n 50, k 56): expected 0x"),
      found[0].message);
}

TEST_CASE("running a layer shows weights that differ from the pruned source") {
  const fs::path source = fs::path(TWOFOUR_GOLDEN_DIR) / "modelopt-qwen3/src";
  const Scratch scratch;
  convert(source, scratch / "out");
  const uint64_t at = offset_of(scratch / "out", kBlock + ".w2_comp");
  for (uint64_t byte = 0; byte < uint64_t{4 * 12 * 96}; ++byte) {
    flip_bit(scratch / "out/model-00001-of-00001.safetensors", at + byte, 1);
  }
  const ValidateReport report = validate_from(source, scratch / "out");
  REQUIRE(report.layers.size() == 1);
  CHECK(!report.layers[0].exact);
  CHECK(report.layers[0].relative_error > 0.5);
  CHECK(findings_of(report.differences, "layer-output").size() == 1);
}

TEST_CASE("a layer with terms that the reference does not apply is no proof, and a note says so") {
  const Scratch scratch;
  Tensors tensors;
  add_experts(tensors, kBlock, random_experts(1, 16, 16));
  add_bf16(tensors, kBlock + ".0.up_proj.bias", {16});
  write_checkpoint(scratch / "src", {tensors});
  OneRule prune;
  prune.to = "prune";
  prune.pattern = "2:4";
  for (const OneRule& recipe : {OneRule{}, prune}) {
    const fs::path out = scratch / recipe.to;
    convert(scratch / "src", out, recipe);
    const ValidateReport report = validate_from(scratch / "src", out);
    CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
    CHECK(report.layers.empty());
    const auto notes = findings_of(report.notes, "layer-not-run");
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].where == kBlock);
    CHECK(notes[0].message.find(kBlock + ".0.up_proj.bias: expected linears with weights only") !=
          std::string::npos);
  }
}

TEST_CASE(
    "few tokens run through few experts of few layers, the same for one seed, and what is left out is "
    "counted") {
  const Scratch scratch;
  Tensors tensors;
  constexpr size_t kLayers = 9;
  for (size_t l = 0; l < kLayers; ++l) {
    const std::string block = fmt::format("model.layers.{}.mlp.experts", l);
    add_experts(tensors, block, random_experts(6, 16, 16));
    if (l == 3) add_bf16(tensors, block + ".0.up_proj.bias", {16});
  }
  write_checkpoint(scratch / "src", {tensors}, R"({"num_experts": 6, "num_experts_per_tok": 5})");
  OneRule prune;
  prune.to = "prune";
  prune.pattern = "2:4";
  for (const OneRule& recipe : {OneRule{}, prune}) {
    convert(scratch / "src", scratch / recipe.to, recipe);
    const auto run = [&](uint64_t seed, int64_t layers, int64_t experts) {
      Progress progress;
      ValidateOptions options;
      options.seed = seed;
      options.layers = layers;
      options.experts = experts;
      return validate(scratch / recipe.to, scratch / "src", options, progress);
    };
    const auto names = [](const ValidateReport& r) {
      std::string text;
      for (const LayerReport& l : r.layers) text += l.block.substr(13, 1);
      return text;
    };
    const ValidateReport few = run(0, 4, 4), again = run(0, 4, 4), all = run(0, 0, 0);
    REQUIRE(few.layers.size() == 4);
    CHECK(few.coverage.found == kLayers);
    CHECK(few.coverage.not_sampled == 4);
    REQUIRE(few.coverage.not_run.size() == 1);
    CHECK(few.coverage.not_run[0].block == "model.layers.3.mlp.experts");
    CHECK(names(few).front() == '0');
    CHECK(names(few).back() == '8');
    CHECK(names(few) == names(again));
    std::set<std::string> drawn;
    for (uint64_t seed = 0; seed < 8; ++seed) drawn.insert(names(run(seed, 4, 4)));
    CHECK(drawn.size() > 1);
    for (size_t i = 0; i < 4; ++i) {
      CHECK(few.layers[i].tokens == 2);
      CHECK(few.layers[i].experts_used == 4);  // each of both tokens goes to all of them
      CHECK(few.layers[i].relative_error == again.layers[i].relative_error);
    }
    CHECK(names(all) == "01245678");
    CHECK(all.coverage.not_sampled == 0);
    CHECK(all.layers[0].experts_used > 4);
    CHECK(names(run(0, 1, 4)) == "0");
  }
}

TEST_CASE("validation says the same with any number of threads") {
  const fs::path source = fs::path(TWOFOUR_GOLDEN_DIR) / "modelopt-mixtral-uneven/src";
  const Scratch scratch;
  convert(source, scratch / "out");
  for (const char* damaged : {"", "w13_comp", "w2_global_scale"}) {
    if (*damaged != 0) {
      const std::string name = std::string("model.layers.0.block_sparse_moe.experts.") + damaged;
      flip_bit(scratch / "out/model-00001-of-00001.safetensors", offset_of(scratch / "out", name) + 3, 1);
    }
    const ValidateReport one = validate_from(source, scratch / "out", 2, 1),
                         many = validate_from(source, scratch / "out", 2, 3);
    CHECK(text_of(one.differences) == text_of(many.differences));
    CHECK(text_of(validate(scratch / "out", 2, 1).differences) ==
          text_of(validate(scratch / "out", 2, 3).differences));
    CHECK(one.differences.empty() == (*damaged == 0));
    REQUIRE(one.layers.size() == 1);
    REQUIRE(many.layers.size() == 1);
    CHECK(one.layers[0].exact == many.layers[0].exact);
    CHECK(one.layers[0].relative_error == many.layers[0].relative_error);
    REQUIRE(one.weights.size() == many.weights.size());
    for (size_t t = 0; t < one.weights.size(); ++t) {
      CHECK(one.weights[t].quality.kept_energy == many.weights[t].quality.kept_energy);
      CHECK(one.weights[t].zero_share == many.weights[t].zero_share);
    }
  }
}

TEST_CASE("tensors and files that are missing, extra or of another shape are found") {
  const Pair p;
  const auto expect = [&](const char* id, const std::string& where) {
    const ValidateReport report = validate_from(p.source, p.artifact);
    for (const Finding& f : findings_of(report.differences, id)) {
      if (f.where == where) return;
    }
    FAIL_CHECK(id << " " << where << " not among: " << text_of(report.differences));
  };
  fs::remove(p.artifact / "tokenizer.json");
  expect("missing-file", "tokenizer.json");
  write_text(p.artifact / "tokenizer.json", "{} ");
  expect("file", "tokenizer.json");
  fs::remove_all(p.artifact / "sub");
  expect("missing-file", "sub/notes.txt");
  fs::remove(p.artifact / kIndexName);
  expect("missing-file", kIndexName);
  write_safetensors(p.artifact / "more.safetensors", {{"extra", DType::kU8, {1}, {0}}});
  expect("extra-file", "more.safetensors");
  CHECK(findings_of(validate(p.artifact).differences, "not-in-manifest").size() == 1);
  fs::remove(p.artifact / "config.json");
  expect("missing-file", "config.json");
  write_safetensors(p.weights(), {{"model.norm.weight", DType::kBF16, {2}, {0, 0, 0, 0}}});
  expect("header", "model-00001-of-00001.safetensors");
  expect("tensor", "model.norm.weight");
  expect("tensor", kBlock + ".w13_comp");
  CHECK(findings_of(validate(p.artifact).differences, "missing-tensor").size() == 8);
}

TEST_CASE("a file that twofour.json lists and the source does not give is found") {
  const Pair p;
  const auto extra = [&] {
    std::string names;
    for (const Finding& f : findings_of(validate_from(p.source, p.artifact).differences, "extra-file")) {
      names += f.where + " ";
    }
    return names;
  };
  CHECK(extra().empty());
  fs::remove(p.source / "tokenizer.json");
  CHECK(extra() == "tokenizer.json ");
  write_text(p.artifact / "modeling.py", "import os");
  CHECK(extra() == "modeling.py tokenizer.json ");
  std::string manifest = read_text(p.artifact / kManifestName);
  const std::string files = "\"files\": {";
  manifest.insert(manifest.find(files) + files.size(),
                  fmt::format("\n\"modeling.py\": \"{}\",", hash_text("import os").hex()));
  write_sealed(p.artifact / kManifestName, manifest);
  CHECK(validate(p.artifact).differences.empty());
  CHECK(extra() == "modeling.py tokenizer.json ");
}

TEST_CASE("another source than the artifact's own is found") {
  const Pair p;
  Tensors tensors;
  add_experts(tensors, kBlock, random_experts(1, 16, 16, 99));
  add_bf16(tensors, "model.norm.weight", {16});
  write_checkpoint(p.scratch / "other", {tensors});
  CHECK(!validate_from(p.scratch / "other", p.artifact).differences.empty());
}

TEST_CASE("a directory that twofour did not write is no artifact") {
  const Pair p;
  CHECK_THROWS_WITH_AS(validate(p.source),
                       doctest::Contains("expected a twofour artifact, found no twofour.json"), Error);
  CHECK_THROWS_AS(validate(p.scratch / "nowhere"), Error);
  write_text(p.artifact / kManifestName, "{}");
  CHECK_THROWS_WITH_AS(validate(p.artifact), doctest::Contains("expected a twofour manifest"), Error);
}

TEST_CASE("validation finds the figures of the conversion, made another way, to the last bit") {
  const Scratch scratch;
  SynthOptions options;
  Progress progress;
  synth(scratch / "synth", options, progress);
  std::vector<fs::path> sources = {scratch / "synth"};
  for (const char* name : {"modelopt-qwen3", "compressed-tensors-qwen3", "modelopt-mixtral-uneven"}) {
    sources.push_back(fs::path(TWOFOUR_GOLDEN_DIR) / name / "src");
  }
  Tensors tensors;
  add_experts(tensors, kBlock, random_experts(3, 208, 336));
  write_checkpoint(scratch / "random", {tensors});
  sources.push_back(scratch / "random");
  for (const fs::path& source : sources) {
    CAPTURE(source.string());
    const ConvertResult result = convert(source, scratch / "out");
    const ValidateReport report = validate_from(source, scratch / "out");
    REQUIRE(report.weights.size() == qualities(result).size());
    for (size_t t = 0; t < report.weights.size(); ++t) {
      const Quality a = report.weights[t].quality, b = qualities(result)[t];
      CHECK(a.energy == b.energy);
      CHECK(a.kept_energy == b.kept_energy);
      CHECK(a.quads == b.quads);
      CHECK(a.tied == b.tied);
    }
    fs::remove_all(scratch / "out");
  }
}

}  // namespace validate_test
