#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstring>

#include "tests/support/lint_words.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/stored_weights.h"

// Files, experts and scales in each other's places, in matrices of real size.

namespace lint_exchanged_test {

using namespace twofour;
using namespace twofour::lint_words;

namespace {

constexpr int64_t kN = 2048, kK = 1024, kExperts = 6;

std::string expert(int64_t e, const char* projection) {
  return fmt::format("model.layers.0.mlp.experts.{}.{}_proj", e, projection);
}
void add_float(Tensors& to, const std::string& name, float value) {
  std::vector<uint8_t> bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  to.push_back({name, DType::kF32, {}, std::move(bytes)});
}
/// `of` is the expert whose scale the projection has.
void add_nvfp4(Tensors& to, const std::string& m, int64_t n, int64_t k, int64_t of) {
  StoredTensor(DType::kU8, {n, k / 2}, 1).add_to(to, m + ".weight");
  StoredTensor(DType::kF8E4M3, {n, k / 16}, 2, 0x7F).add_to(to, m + ".weight_scale");
  add_float(to, m + ".weight_scale_2", 1e-3f + 1e-5f * static_cast<float>(of));
}
Tensors experts(int64_t gate_from) {
  Tensors tensors;
  for (int64_t e = 0; e < kExperts; ++e) {
    add_nvfp4(tensors, expert(e, "gate"), kN, kK, (e + gate_from) % kExperts);
    add_nvfp4(tensors, expert(e, "up"), kN, kK, e);
    add_nvfp4(tensors, expert(e, "down"), kK, kN, 10 + e);
  }
  return tensors;
}

LintReport linted(const std::filesystem::path& path) {
  Progress progress;
  return lint(path, {}, progress);
}
std::vector<std::string> of_rule(const LintReport& report, std::string_view rule) {
  std::vector<std::string> found;
  for (const LintFinding& f : report.findings) {
    if (lint_rules()[f.rule].id == rule) found.push_back(f.where() + ": " + f.message);
  }
  return found;
}

}  // namespace

TEST_CASE("experts that have other numbers in gate alone are named") {
  const Scratch scratch;
  write_checkpoint(scratch / "sound", {experts(0)}, "{}");
  CHECK(of_rule(linted(scratch / "sound"), "unequal-global-scales").empty());
  write_checkpoint(scratch / "moved", {experts(1)}, "{}");
  const auto found = of_rule(linted(scratch / "moved"), "unequal-global-scales");
  REQUIRE(!found.empty());
  const std::string words =
      "; gate_proj has the scale of " + expert(1, "up") + ": its experts have other numbers";
  CHECK(found[0].find(words) != std::string::npos);
}

TEST_CASE("a file that was copied over another is lost, and its tensors are") {
  const Scratch scratch;
  const auto save = [&](const char* name, int copied, int over) {
    Tensors all = experts(0);
    const std::vector<Tensors> shards{{all.begin(), all.begin() + 27}, {all.begin() + 27, all.end()}};
    write_checkpoint(scratch / name, shards, "{}");
    if (copied == over) return;
    const auto file = [&](int i) {
      return scratch / name / fmt::format("model-{:05}-of-00002.safetensors", i);
    };
    std::filesystem::copy_file(file(copied), file(over), std::filesystem::copy_options::overwrite_existing);
  };
  save("sound", 1, 1);
  CHECK(of_rule(linted(scratch / "sound"), "missing-shard").empty());
  for (const auto& [copied, over] : {std::pair{1, 2}, std::pair{2, 1}}) {
    const std::string name = fmt::format("c{}", copied);
    save(name.c_str(), copied, over);
    const LintReport report = linted(scratch / name);
    CHECK(of_rule(report, "missing-shard") ==
          std::vector<std::string>{fmt::format(
              "model-{:05}-of-00002.safetensors: expected the tensors that model.safetensors.index.json puts "
              "there, found a copy of model-{:05}-of-00002.safetensors",
              over, copied)});
    for (const char* rule : {"duplicate-tensor", "index-stale-tensor", "index-wrong-file"})
      CHECK(of_rule(report, rule).empty());
  }
}

TEST_CASE("FP8 scales of rows that are stored as [1, N]") {
  for (const bool is_turned : {false, true}) {
    Tensors tensors;
    for (const char* name : {"gate", "up"}) {
      const std::string m = fmt::format("model.layers.0.mlp.{}_proj.weight", name);
      StoredTensor(DType::kF8E4M3, {kN, kK}, 1, 0x7F).add_to(tensors, m);
      std::vector<uint8_t> scales;
      for (int64_t i = 0; i < kN; ++i) scales.insert(scales.end(), {0, 0, 0, 0x3C});
      tensors.push_back({m + "_scale", DType::kF32,
                         is_turned ? std::vector<int64_t>{1, kN} : std::vector<int64_t>{kN, 1}, scales});
    }
    const Scratch scratch;
    write_checkpoint(scratch / "c", {tensors}, "{}");
    const auto found = of_rule(linted(scratch / "c"), "module-shape");
    CHECK(found.size() == (is_turned ? 1 : 0));
    if (is_turned && !found.empty())
      CHECK(found[0] ==
            "model.safetensors: model.layers.0.mlp.gate_proj.weight_scale: expected F32 [2048, 1], a scale "
            "for each row, found F32 [1, 2048], and in 1 more modules");
  }
}

}  // namespace lint_exchanged_test
