#include <doctest/doctest.h>
#include <fmt/format.h>

#include "formats/error.h"
#include "lib/lint/lint.h"
#include "lib/lint/rules/levels.h"
#include "lib/synth/synth.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

// Nothing is wrong with what synth writes: every shape in every dialect, with weights and in its full sizes.

namespace lint_synth_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// Findings above a note under a profile, a line each.
std::string alarms(const fs::path& path, bool headers_only, std::string_view profile = "") {
  Progress progress;
  std::string text;
  const LintOptions options{
      .jobs = 2, .headers_only = headers_only, .levels = levels_of({.profile = std::string(profile)})};
  for (const LintFinding& f : lint(path, options, progress).findings) {
    if (f.severity != Severity::kNote)
      text += fmt::format("{}: {}: {}\n", lint_rules()[f.rule].id, f.where(), f.message);
  }
  return text;
}

/// Enough for each kind of layer that a shape has: dense ones first, full attention in each fourth.
constexpr int kLayers = 8;

}  // namespace

TEST_CASE("nothing is found in what synth writes, whatever the shape and the dialect") {
  for (const std::string& shape : synth_shapes()) {
    for (const std::string& dialect : synth_dialects(shape)) {
      for (const bool tiny_shards : {false, true}) {
        CAPTURE(shape);
        CAPTURE(dialect);
        CAPTURE(tiny_shards);
        const Scratch scratch;
        SynthOptions options;
        options.shape = shape;
        options.dialect = dialect;
        options.layers = kLayers;
        options.small = true;
        options.vocab = 320;
        options.seed = tiny_shards ? 2 : 1;
        if (tiny_shards) options.max_shard_size = 1'000'000;
        Progress progress;
        synth(scratch / "checkpoint", options, progress);
        CHECK(alarms(scratch / "checkpoint", false) == "");
        if (tiny_shards) CHECK(alarms(scratch / "checkpoint", false, "serve") == "");
      }
    }
  }
}

TEST_CASE("a tokenizer of synth has a token for each row") {
  const Scratch scratch;
  SynthOptions options;
  options.shape = "tiny";
  options.vocab = 2048;
  Progress progress;
  synth(scratch / "checkpoint", options, progress);
  CHECK(alarms(scratch / "checkpoint", false) == "");
}

TEST_CASE("nothing is found in headers of full size, whatever the shape and the dialect") {
  for (const std::string& shape : synth_shapes()) {
    // INT4 of compressed-tensors states the shape of codes as a tensor, which is a hole in a file of headers.
    if (shape == "kimi-k2-thinking" || shape == "glm-5.3") continue;
    for (const std::string& dialect : synth_dialects(shape)) {
      CAPTURE(shape);
      CAPTURE(dialect);
      const Scratch scratch;
      SynthOptions options;
      options.shape = shape;
      options.dialect = dialect;
      options.layers = kLayers;
      if (synth_least_experts(shape) > 0) options.experts = 2 * synth_least_experts(shape);
      options.headers_only = true;
      Progress progress;
      synth(scratch / "checkpoint", options, progress);
      CHECK(alarms(scratch / "checkpoint", true) == "");
      CHECK(alarms(scratch / "checkpoint", true, "serve") == "");
    }
  }
}

TEST_CASE("nothing is found in what conversions make of synth's shapes") {
  for (const char* shape : {"tiny", "llama", "mixtral", "deepseek-v3", "gpt-oss", "qwen3.6-35b-a3b"}) {
    const Scratch scratch;
    SynthOptions options;
    options.shape = shape;
    options.layers = 4;
    options.small = true;
    options.vocab = 320;
    Progress progress;
    synth(scratch / "source", options, progress);
    for (const char* to : {"bf16", "nvfp4", "fp8", "v7", "g8"}) {
      CAPTURE(shape);
      CAPTURE(to);
      OneRule recipe;
      recipe.to = to;
      fs::remove_all(scratch / "artifact");
      try {
        convert(scratch / "source", scratch / "artifact", recipe);
      } catch (const Error&) {
        continue;  // no layout of what is not NVFP4
      }
      CHECK(alarms(scratch / "artifact", false) == "");
    }
  }
}

}  // namespace lint_synth_test
