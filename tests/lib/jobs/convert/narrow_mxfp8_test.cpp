#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "lib/base/names/pattern.h"
#include "lib/lint/lint.h"
#include "lib/source/dialects/loader_lookup.h"
#include "lib/source/dialects/scheme.h"
#include "tests/support/conversion.h"
#include "tests/support/edits.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_weights.h"

// MXFP8 of K = 32 has one scale a row, and is no FP8 with a scale a row.

namespace narrow_mxfp8_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kLayer = "model.layers.0.", kDown = kLayer + "mlp.down_proj";
using Shape = std::vector<int64_t>;

/// Attention and MLP of a model of width 32, so that K is 32, but for the 64 of down.
Tensors narrow_model(DType type) {
  Tensors t;
  unsigned seed = 1;
  for (const char* leaf : {"q_proj", "k_proj", "v_proj", "o_proj"})
    add_floats(t, kLayer + "self_attn." + leaf, random_floats(32, 32, ++seed), type);
  for (const char* leaf : {"gate_proj", "up_proj"})
    add_floats(t, kLayer + "mlp." + leaf, random_floats(64, 32, ++seed), type);
  add_floats(t, kDown, random_floats(32, 64, ++seed), type);
  for (int e = 0; e < 2; ++e) {
    const std::string expert = fmt::format("model.layers.1.mlp.experts.{}.", e);
    for (const char* leaf : {"gate_proj", "up_proj"})
      add_floats(t, expert + leaf, random_floats(32, 32, ++seed), type);
    add_floats(t, expert + "down_proj", random_floats(32, 32, ++seed), type);
  }
  add_floats(t, "lm_head", random_floats(1, 32, ++seed), type);
  return t;
}

std::string faults_of(const fs::path& path) {
  Progress progress;
  std::string found;
  for (const LintFinding& f : lint(path, {}, progress).findings) {
    if (f.severity != Severity::kNote)
      found += fmt::format("{} {}: {}\n", lint_rules()[f.rule].id, f.where(), f.message);
  }
  return found;
}

/// A module of FP8 with these scales, and the engines' name of its format.
std::string named(int64_t n, int64_t k, const char* suffix, DType type, const Shape& shape) {
  const Scratch scratch;
  Tensors t;
  fp8_weights({n, k}, 3).add_to(t, kDown + ".weight");
  random_scales(type, shape, 4).add_to(t, kDown + suffix);
  const Checkpoint c = open_checkpoint(scratch, t);
  return scheme_label(as_configured(scheme_of(c, only(find_weight_modules(c)))));
}

}  // namespace

TEST_CASE("MXFP8 of K = 32 is read back, linted and proven as MXFP8 in both dialects") {
  for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
    for (const DType type : {DType::kBF16, DType::kF32}) {
      CAPTURE(dialect);
      const Scratch scratch;
      write_checkpoint(scratch / "a", {narrow_model(type)}, R"({"num_hidden_layers": 2})");
      OneRule rule;
      rule.to = "mxfp8";
      rule.dialect = dialect;
      rule.selection.also = parse_patterns({"*"});
      convert(scratch / "a", scratch / "b", rule);
      const ValidateReport report = validate_from(scratch / "a", scratch / "b"),
                           alone = validate(scratch / "b");
      CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
      CHECK_MESSAGE(findings_of(alone.notes, "engine-lookup").empty(), text_of(alone.notes));
      // Zeros of floats may be found. Blocks of zeros have scales, and are not looked at.
      const std::string faults = faults_of(scratch / "b");
      CHECK_MESSAGE((faults.empty() || faults == faults_of(scratch / "a")), faults);
      const Checkpoint c = Checkpoint::open(scratch / "b");
      const std::vector<Linear> linears = find_weight_modules(c);
      CHECK(linears.size() == 14);
      for (const Linear& m : linears) {
        CAPTURE(m.name);
        CHECK(scheme_label(as_configured(scheme_of(c, m))) == "MXFP8");
        CHECK((c.tensors()[*m.scale].shape == Shape{m.n, m.k / 32}));
      }
      // In the other dialect and back: same bytes.
      OneRule other;
      other.to = "nvfp4";
      other.dialect = dialect == "modelopt" ? "compressed-tensors" : "modelopt";
      convert(scratch / "b", scratch / "c", other);
      other.dialect = dialect;
      convert(scratch / "c", scratch / "d", other);
      CHECK((read_tensors(scratch / "d") == read_tensors(scratch / "b")));
      CHECK_MESSAGE(validate_from(scratch / "b", scratch / "c").differences.empty(), "");
    }
  }
}

TEST_CASE("one byte of scale for 32 weights is MXFP8, whatever the shape, and FP8 a row stays what it is") {
  for (const DType power : {DType::kU8, DType::kF8E8M0}) {
    for (const char* suffix : {".weight_scale", ".weight_scale_inv"}) {
      CHECK(named(48, 32, suffix, power, {48, 1}) == "MXFP8");
      CHECK(named(48, 32, suffix, power, {48}) == "MXFP8");
      CHECK(named(48, 64, suffix, power, {48, 2}) == "MXFP8");
      CHECK(named(48, 64, suffix, power, {48, 1}) == "FP8 with a scale a row");
      CHECK(named(48, 32, suffix, power, {}) == "FP8 with a scale a tensor");
      CHECK(named(48, 32, suffix, power, {1}) == "FP8 with a scale a tensor");
    }
    CHECK(named(1, 32, ".weight_scale", power, {1, 1}) == "MXFP8");
  }
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    CHECK(named(48, 32, ".weight_scale", type, {48, 1}) == "FP8 with a scale a row");
    CHECK(named(48, 32, ".weight_scale", type, {48}) == "FP8 with a scale a row");
    CHECK(named(1, 32, ".weight_scale", type, {1, 1}) == "FP8 with a scale a tensor");
  }
}

TEST_CASE("lint takes one byte a row for MXFP8 where K is 32") {
  for (const Shape& shape : {Shape{48, 1}, Shape{48}}) {
    for (const DType power : {DType::kU8, DType::kF8E8M0}) {
      const Scratch scratch;
      Tensors t;
      fp8_weights({48, 32}, 3).add_to(t, kDown + ".weight");
      StoredTensor scales(power, shape, 4);
      for (size_t i = 0; i < scales.bytes.size(); ++i) scales.bytes[i] = static_cast<uint8_t>(100 + i % 20);
      scales.add_to(t, kDown + ".weight_scale");
      const Json weights = {{"num_bits", 8},
                            {"type", "float"},
                            {"strategy", "group"},
                            {"group_size", 32},
                            {"scale_dtype", "torch.uint8"},
                            {"symmetric", true},
                            {"dynamic", false}};
      const Json config = {
          {"quantization_config",
           {{"quant_method", "compressed-tensors"},
            {"format", "mxfp8-quantized"},
            {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}}}};
      open_checkpoint(scratch, t, config.dump());
      CHECK(faults_of(scratch / "c") == "");
    }
  }
}

}  // namespace narrow_mxfp8_test
