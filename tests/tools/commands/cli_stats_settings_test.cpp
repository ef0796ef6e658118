#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "formats/half.h"
#include "lib/base/io/file.h"
#include "lib/recipe/statistics/check_statistics.h"
#include "tests/support/conversion.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/statistics_builder.h"
#include "tests/tools/commands/stats_model.h"

namespace cli_stats_settings_test {

using namespace twofour;
using namespace stats_model;

TEST_CASE(
    "statistics are shrunk and scales searched by default, as the recipe says, and a proof holds both") {
  const Scratch scratch;
  write_model(scratch / "src");
  const std::string src = (scratch / "src").string();
  const auto part = [](const std::string& text, const std::string& begin) {
    const size_t at = text.find(begin);
    return at == text.npos ? std::string()
                           : text.substr(at, text.find_first_of(",}", at + begin.size()) - at);
  };
  for (const std::string weighting : {"plain", "guided"}) {
    StatisticsBuilder b = statistics();
    b.metadata["weighting"] = weighting;
    b.write(scratch / "stats");
    const std::string stats = (scratch / "stats").string();
    for (const std::string pattern : {"", "2:4", "4:8-paired"}) {
      CAPTURE(weighting);
      CAPTURE(pattern);
      const bool guided = weighting == "guided";
      const std::string own = pattern.empty() ? (guided ? "0.2" : "0.5") : (guided ? "0.05" : "0.1");
      const std::string other = "0";
      std::map<std::string, std::string> texts;
      const auto quantize = [&](const std::string& name, const std::vector<std::string>& more) {
        const std::string out = (scratch / (weighting + pattern + name)).string();
        std::vector<std::string> command{"quantize", src, out, "--stats", stats, "-j", "1"};
        if (!pattern.empty()) command.insert(command.end(), {"--pattern", pattern});
        command.insert(command.end(), more.begin(), more.end());
        const Outcome made = run_program(command);
        REQUIRE_MESSAGE(made.code == 0, made.err);
        texts[out] = read_text(fs::path(out) / "twofour.json");
        return out;
      };
      const auto proves = [&](const std::string& out) {
        return run_program({"validate", out, "--source", src, "--stats", stats, "--all-rows"}).code;
      };
      const std::string by_default = quantize("default", {}),
                        said = quantize("said", {"--shrink", own, "--scale-search", "7"}),
                        unshrunk = quantize("shrink", {"--shrink", other}),
                        narrow = quantize("narrow", {"--scale-search", "2"});
      CHECK((read_tensors(by_default) == read_tensors(said)));
      CHECK((read_tensors(by_default) != read_tensors(unshrunk)));
      CHECK((read_tensors(by_default) != read_tensors(narrow)));
      CHECK(part(texts[by_default], "\"scale_search\":") == "\"scale_search\":7");
      CHECK(std::stod(part(texts[by_default], "\"shrink\":").substr(9)) == std::stod(own));
      for (const std::string& out : {by_default, unshrunk, narrow}) CHECK(proves(out) == 0);
      // An artifact that says another shrink or search than it was made with.
      for (const auto& [out, key, value] : {std::tuple{unshrunk, "\"shrink\":", own},
                                            {by_default, "\"shrink\":", other},
                                            {narrow, "\"scale_search\":", std::string("7")},
                                            {by_default, "\"scale_search\":", std::string("2")}}) {
        std::string text = texts[out];
        const std::string then = part(text, key);
        REQUIRE(!then.empty());
        text.replace(text.find(then), then.size(), key + value);
        write_sealed(fs::path(out) / "twofour.json", text);
        CHECK(proves(out) == 1);
        write_text(fs::path(out) / "twofour.json", texts[out]);
      }
      // Without both words an artifact is what 0.2.0 would have made.
      const std::string old = quantize("old", {"--shrink", "0", "--scale-search", "2"});
      std::string text = texts[old];
      for (const char* key : {"\"shrink\":", "\"scale_search\":"}) {
        const std::string then = part(text, key) + ",";
        text.erase(text.find(then), then.size());
      }
      write_sealed(fs::path(old) / "twofour.json", text);
      CHECK(proves(old) == 0);
    }
  }
}

TEST_CASE("squares of inputs alone choose each weight for itself, by weights that are not damped") {
  const Scratch scratch;
  write_model(scratch / "src");
  const std::string down = kLayer + "mlp.down_proj";
  StatisticsBuilder b;
  b.add({down}, 80, 1000, "sum_squares", 5);
  // Inputs 16 to 31 were never seen, nor was input 3.
  for (size_t i = 0; i < 80; ++i) {
    if (i == 3 || (i >= 16 && i < 32))
      std::fill_n(b.tensors[0].bytes.begin() + 4 * static_cast<int64_t>(i), 4, uint8_t{0});
  }
  b.write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string(),
                    out = (scratch / "out").string(), none = (scratch / "none").string();
  REQUIRE(run_program({"quantize", src, out, "--stats", stats, "--include", down}).code == 0);
  CHECK(run_program({"validate", out, "--source", src, "--stats", stats, "--all-rows"}).code == 0);
  std::vector<float> squares(80);
  std::memcpy(squares.data(), b.tensors[0].bytes.data(), 320);
  const auto stored = read_tensors(scratch / "src").at(down + ".weight").bytes;  // BF16
  std::vector<float> weights;
  for (size_t i = 0; i < stored.size(); i += 2)
    weights.push_back(std::bit_cast<float>(static_cast<uint32_t>(stored[i] | stored[i + 1] << 8) << 16));
  const ReadTensors made = read_tensors(out);
  const auto& codes = made.at(down + ".weight").bytes;
  const auto& scales = made.at(down + ".weight_scale").bytes;
  float global = 0;
  std::memcpy(&global, made.at(down + ".weight_scale_2").bytes.data(), 4);
  constexpr double kUnits[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const auto value_of = [](unsigned code) {  // of E4M3
    return code < 8 ? std::ldexp(double(code), -9) : std::ldexp(8.0 + (code & 7), int(code >> 3) - 10);
  };
  size_t above = 0;
  for (size_t block = 0; block < 64 * 5; ++block) {
    const float* w = &weights[block * 16];
    double least = 1e300, largest = 0;
    const auto loss_of = [&](unsigned scale) {
      double sum = 0;
      for (size_t i = 0; i < 16; ++i) {
        const size_t column = block % 5 * 16 + i;
        const double step = value_of(scale) * double{global};
        double best = 1e300;
        for (const double unit : kUnits)
          best = std::min(best, std::abs(std::abs(double{w[i]}) - unit * step));
        sum += best * best * (block % 5 == 1 ? 1 : double{squares[column]} / 1000);
      }
      return sum;
    };
    for (size_t i = 0; i < 16; ++i) largest = std::max(largest, std::abs(double{w[i]}));
    unsigned base = 1;
    for (unsigned c = 1; c <= 126; ++c) {
      if (std::abs(value_of(c) * double{global} - largest / 6) <
          std::abs(value_of(base) * double{global} - largest / 6))
        base = c;
    }
    for (unsigned c = base < 13 ? 1 : base - 12; c <= std::min(126u, base + 7); ++c)
      least = std::min(least, loss_of(c));
    CAPTURE(block);
    REQUIRE(loss_of(scales[block]) <= least * (1 + 1e-5));
    above += scales[block] > base + 2;
    for (size_t i = 0; i < 16; ++i) {
      const unsigned code = codes[block * 8 + i / 2] >> 4 * (i % 2) & 7;
      const double step = value_of(scales[block]) * double{global},
                   own = std::abs(std::abs(double{w[i]}) - kUnits[code] * step);
      for (const double unit : kUnits)
        REQUIRE(own <= std::abs(std::abs(double{w[i]}) - unit * step) * (1 + 1e-5) + 1e-12);
    }
  }
  CHECK(above > 0);
}

TEST_CASE("rules take methods and sweeps for convert --stats, and make what the commands make") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string(),
                    recipe = (scratch / "recipe.yaml").string();
  const auto run = [&](const std::string& rules, const std::string& from, const std::string& to) {
    std::ofstream(recipe) << "format: 1\ndialect: modelopt\nrules:\n" << rules;
    return run_program({"convert", from, to, "--recipe", recipe, "--stats", stats});
  };
  const std::string by_rules = (scratch / "rules").string(), by_flags = (scratch / "flags").string();
  const Outcome made = run(
      "  - {match: mlp, to: nvfp4, pattern: '2:4', method: joint, sweeps: 1, shrink: 0.3, scale_search: 4}\n"
      "  - {match: '*', to: nvfp4, method: rtn}\n",
      src, by_rules);
  REQUIRE_MESSAGE(made.code == 0, made.err);
  REQUIRE(run_program({"quantize", src, by_flags, "--pattern", "2:4", "--sweeps", "1", "--shrink", "0.3",
                       "--scale-search", "4", "--include", "*.mlp.*", "--stats", stats})
              .code == 0);
  const ReadTensors mixed = read_tensors(by_rules);
  for (const auto& [name, t] : read_tensors(by_flags)) {
    CAPTURE(name);
    if (name.find(".mlp.") != name.npos) CHECK((mixed.at(name) == t));
  }
  const Outcome proof = run_program({"validate", by_rules, "--source", src, "--stats", stats, "--all-rows"});
  CHECK_MESSAGE(proof.code == 0, proof.out);
  const std::string pruned = (scratch / "pruned").string();
  const std::string nvfp4 = (scratch / "nvfp4").string();
  REQUIRE(run_program({"quantize", src, nvfp4}).code == 0);
  REQUIRE(run("  - {match: mlp, to: keep, pattern: '4:8-paired'}\n", nvfp4, pruned).code == 0);
  REQUIRE(run_program({"prune", nvfp4, pruned + "2", "--pattern", "4:8-paired", "--stats", stats}).code == 0);
  CHECK((read_tensors(pruned) == read_tensors(pruned + "2")));

  const auto refused = [&](const std::string& rules) {
    const Outcome o = run(rules, src, (scratch / "none").string());
    CHECK(o.code == 2);
    CHECK(!fs::exists(scratch / "none"));
    return o.err;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != text.npos; };
  CHECK(
      has(refused("  - {match: mlp, to: nvfp4, method: joint}\n"), "gptq, rtn or magnitude without pattern"));
  CHECK(has(refused("  - {match: mlp, to: nvfp4, sweeps: 65}\n"), "a whole number from 0 to 64"));
  CHECK(has(refused("  - {match: mlp, to: nvfp4, scale_search: 17}\n"), "a whole number from 0 to 16"));
  for (const char* shrink : {"-0.1", "1.01", "nan", "half", "0.5x"}) {
    CHECK(has(refused(fmt::format("  - {{match: mlp, to: nvfp4, shrink: {}}}\n", shrink)),
              "rules[0].shrink: expected a number from 0 to 1, found"));
    CHECK(run_program({"quantize", src, (scratch / "none").string(), "--stats", stats,
                       fmt::format("--shrink={}", shrink)})
              .code == 2);
  }
  CHECK(has(refused("  - {match: mlp, to: bf16, sweeps: 1}\n"),
            "expected it only with to: keep, fp8, mxfp8, mxfp6, mxfp4, nvfp4, v7, v7-packed or g8"));
  CHECK(has(refused("  - {match: mlp, to: bf16}\n"),
            "--stats: expected a rule to: nvfp4, fp8, mxfp8, mxfp6, mxfp4, v7"));
  CHECK(has(refused("  - {match: mlp, to: keep, method: joint}\n"), "expected it only with pattern"));
  // Without statistics or masks nothing chooses pairs.
  const Outcome pairs =
      run_program({"quantize", src, (scratch / "none").string(), "--pattern", "4:8-paired"});
  CHECK(pairs.code == 2);
  CHECK(has(pairs.err, "expected --stats or --mask beside 4:8-paired, found neither"));
}

}  // namespace cli_stats_settings_test
