#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "formats/json.h"
#include "lib/recipe/statistics/check_statistics.h"
#include "tests/support/conversion.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/statistics_builder.h"
#include "tests/tools/commands/stats_model.h"

namespace cli_stats_check_test {

using namespace twofour;
using namespace stats_model;

TEST_CASE("what says how statistics are used is refused without them") {
  const Scratch scratch;
  write_model(scratch / "src");
  const std::string src = (scratch / "src").string(), nvfp4 = (scratch / "nvfp4").string(),
                    none = (scratch / "none").string();
  REQUIRE(run_program({"quantize", src, nvfp4}).code == 0);
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"prune", nvfp4, none, "--sweeps", "3"},
           {"prune", nvfp4, none, "--method", "joint"},
           {"prune", nvfp4, none, "--strict-stats"},
           {"prune", nvfp4, none, "--pattern", "4:8-paired", "--method", "wanda"},
           {"quantize", src, none, "--sweeps", "3"},
           {"quantize", src, none, "--shrink", "0.5"},
           {"quantize", src, none, "--scale-search", "7"},
           {"prune", nvfp4, none, "--shrink", "0.5"},
           {"prune", nvfp4, none, "--scale-search", "7"},
           {"quantize", src, none, "--method", "gptq"}}) {
    CAPTURE(words.back());
    const Outcome o = run_program(words);
    CHECK(o.code == 2);
    CHECK_MESSAGE(o.err.find("expected --stats beside") != std::string::npos, o.err);
    CHECK(!fs::exists(none));
  }
  CHECK(run_program({"prune", nvfp4, none, "--pattern", "4:8-paired", "--method", "magnitude"}).code == 0);
}

TEST_CASE("statistics that do not fit are refused before there is an output") {
  const Scratch scratch;
  write_model(scratch / "src");
  const std::string src = (scratch / "src").string(), out = (scratch / "out").string();
  const auto refused = [&](StatisticsBuilder b, std::vector<std::string> more = {}) {
    b.write(scratch / "stats");
    std::vector<std::string> command{"quantize", src, out, "--stats", (scratch / "stats").string()};
    command.insert(command.end(), more.begin(), more.end());
    const Outcome o = run_program(command);
    CHECK(o.code == 2);
    CHECK(!fs::exists(scratch / "out"));
    return o.err;
  };
  StatisticsBuilder b;
  b.add({"model.layers.7.mlp.down_proj"}, 80, 500);
  CHECK(refused(b).find("statistics of another model?") != std::string::npos);
  b = {};
  b.add({kLayer + "mlp.down_proj"}, 64, 500);
  CHECK(refused(b).find("expected K of 80, found 64") != std::string::npos);
  b = statistics();
  b.metadata["weights"] = "of others";
  CHECK(refused(b, {"--strict-stats"}).find("found a different final norm") != std::string::npos);
  b = statistics();
  const float nan = std::nanf("");
  std::memcpy(&b.tensors[0].bytes[400], &nan, sizeof(nan));
  CHECK(refused(b).find("expected a finite number, found nan") != std::string::npos);
  CHECK(refused(statistics(), {"--method", "joint"})
            .find("expected gptq or rtn if weights are not pruned, found joint") != std::string::npos);
  CHECK(refused(statistics(), {"--pattern", "2:4", "--method", "gptq"})
            .find("expected joint, wanda or magnitude") != std::string::npos);
  CHECK(refused(statistics(), {"--block-scale", "mse"}).find("expected none beside --stats") !=
        std::string::npos);
  CHECK(refused(statistics(0), {"--pattern", "4:8-paired"}).find("expected statistics with tokens") !=
        std::string::npos);
  CHECK(run_program({"quantize", src, out, "--sweeps", "2"}).code == 2);
  CHECK(run_program({"quantize", src, out, "--method", "gptq"}).code == 2);
}

TEST_CASE("too few tokens fall back, counted, and statistics of other weights are a warning") {
  const Scratch scratch;
  write_model(scratch / "src");
  StatisticsBuilder b = statistics(70);
  b.metadata["weights"] = "of others";
  b.write(scratch / "stats");
  const std::string src = (scratch / "src").string(), out = (scratch / "out").string(),
                    stats = (scratch / "stats").string();
  const Outcome made = run_program({"quantize", src, out, "--stats", stats, "--pattern", "2:4"});
  REQUIRE(made.code == 0);
  CHECK(made.err.find(
            "5 of 7 matrices are not chosen by a full Hessian with descent: fewer than 4 tokens an input") !=
        std::string::npos);
  CHECK(made.err.find(
            "2 of 7 matrices are not chosen by a full Hessian with descent: fewer tokens than inputs") !=
        std::string::npos);
  CHECK(made.err.find("[statistics-of-other-weights]") != std::string::npos);
  CHECK(run_program({"validate", out, "--source", src, "--stats", stats}).code == 0);
  const Outcome without = run_program({"validate", out, "--source", src});
  CHECK(without.code == 0);
  CHECK(without.out.find("rows that were solved by statistics were not solved again") != std::string::npos);
  statistics(71).write(scratch / "other");
  CHECK(run_program({"validate", out, "--source", src, "--stats", (scratch / "other").string()}).code == 2);
}

TEST_CASE("targets and sums beyond reason are refused or reported by what reads them, and by stats check") {
  const Scratch scratch;
  write_model(scratch / "src");
  const std::string src = (scratch / "src").string(), out = (scratch / "out").string(),
                    stats = (scratch / "stats").string(), down = kLayer + "mlp.down_proj";
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const auto with_target = [&](float offset) {
    StatisticsBuilder b = statistics();
    std::vector<float> numbers(64 * 80);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = offset * static_cast<float>(i % 3);
    b.add_floats(down + ".target_offset", {64, 80}, numbers);
    b.write(scratch / "stats");
  };
  const std::string limit = down + ".target_offset: expected targets up to 1024 times the largest weight, ";
  for (const float offset : {1e8f, 1e38f}) {
    with_target(offset);
    for (const auto& more : std::vector<std::vector<std::string>>{
             {}, {"--pattern", "2:4"}, {"--dialect", "compressed-tensors"}}) {
      std::vector<std::string> command{"quantize", src, out, "--stats", stats};
      command.insert(command.end(), more.begin(), more.end());
      const Outcome o = run_program(command);
      CHECK(o.code == 2);
      CHECK_MESSAGE(has(o.err, limit), o.err);
      CHECK(!fs::exists(out));
    }
    const Outcome layout =
        run_program({"convert", src, out, "--to", "g8", "--also", "*.mlp", "--stats", stats});
    CHECK(layout.code == 2);
    CHECK_MESSAGE(has(layout.err, limit), layout.err);
    const Outcome checked = run_program({"stats", "check", stats, src});
    CHECK(checked.code == 2);
    CHECK_MESSAGE(has(checked.err, limit), checked.err);
  }
  // Nearer ones are taken, with a warning where little of the weights is left.
  for (const auto& [offset, is_far] : {std::pair{0.5f, false}, {500.0f, true}}) {
    with_target(offset);
    const Outcome o = run_program({"quantize", src, out, "--stats", stats, "--json", "--force"});
    REQUIRE_MESSAGE(o.code == 0, o.err);
    CHECK(has(o.out, "far-target") == is_far);
    CHECK(run_program({"stats", "check", stats, src}).code == 0);
    CHECK(run_program({"validate", out, "--source", src, "--stats", stats, "--all-rows"}).code == 0);
  }
  // Inputs of zeros, in 500 tokens.
  StatisticsBuilder zeros = statistics();
  for (auto& t : zeros.tensors) {
    if (t.name == down + ".hessian") std::fill(t.bytes.begin(), t.bytes.end(), uint8_t{0});
  }
  zeros.write(scratch / "stats");
  const Outcome o = run_program({"quantize", src, out, "--stats", stats, "--force"});
  REQUIRE_MESSAGE(o.code == 0, o.err);
  CHECK_MESSAGE(has(o.err,
                    "1 of 7 matrices are not chosen by a full Hessian with descent: inputs that are all 0 "
                    "(the first: " +
                        down + ": inputs that are all 0, in 500 tokens)"),
                o.err);
  CHECK(has(o.err, "[few-statistics]"));
  const Outcome checked = run_program({"stats", "check", stats, src, "--json"});
  CHECK(checked.code == 1);
  CHECK(parse_json("stdout", checked.out)["without_inputs"] == 1);
}

TEST_CASE("stats inspects, checks and merges") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "a");
  StatisticsBuilder few = statistics(70);
  few.write(scratch / "b");
  const std::string src = (scratch / "src").string(), a = (scratch / "a").string(),
                    b = (scratch / "b").string(), out = (scratch / "out").string();
  const Outcome shown = run_program({"stats", "inspect", a, "--json"});
  REQUIRE_MESSAGE(shown.code == 0, shown.err);
  CHECK(parse_json("stdout", shown.out)["entries"].size() == 4);
  CHECK(run_program({"stats", "check", a, src}).code == 0);
  const Outcome checked = run_program({"stats", "check", b, src, "--json"});
  CHECK(checked.code == 1);
  const Json counts = parse_json("stdout", checked.out);
  CHECK(counts["few_tokens"] == 5);
  CHECK(counts["fewer_tokens_than_inputs"] == 2);
  CHECK(run_program({"stats", "merge", out, a, b}).code == 0);
  CHECK(run_program({"stats", "check", out, src}).code == 0);
  CHECK(run_program({"stats", "merge", out + "2", a}).code == 2);
  CHECK(run_program({"stats", "inspect", a, b}).code == 2);
  CHECK(run_program({"stats", "inspect", src + "/model.safetensors"}).code == 2);
}

}  // namespace cli_stats_check_test
