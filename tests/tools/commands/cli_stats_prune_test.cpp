#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <random>
#include <set>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/recipe/statistics/check_statistics.h"
#include "tests/support/conversion.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/statistics_builder.h"
#include "tests/tools/commands/stats_model.h"

namespace cli_stats_prune_test {

using namespace twofour;
using namespace stats_model;

TEST_CASE("a budget prunes what costs the model least a byte, and only quantizes the rest") {
  const Scratch scratch;
  write_model(scratch / "src");
  StatisticsBuilder b;
  unsigned seed = 20;
  const std::map<std::string, int64_t> linears = {
      {"self_attn.q_proj", 64}, {"self_attn.k_proj", 64}, {"self_attn.v_proj", 64}, {"self_attn.o_proj", 96},
      {"mlp.gate_proj", 64},    {"mlp.up_proj", 64},      {"mlp.down_proj", 80}};
  for (const auto& [leaf, k] : linears) {
    b.add({kLayer + leaf}, k, 500, "hessian", ++seed);
    std::vector<float> fisher = StatisticsBuilder::sums(k, 200, ++seed);
    // What is dear in sums of inputs is cheap here: q, k and v.
    const float weight = leaf == "mlp.down_proj" ? 50.0f : leaf == "self_attn.o_proj" ? 3.0f : 0.1f;
    for (float& x : fisher) x *= weight;
    b.add_floats(kLayer + leaf + ".fisher_hessian", {k, k}, fisher);
  }
  b.write(scratch / "stats");
  statistics().write(scratch / "plain");
  StatisticsBuilder partly;
  partly.add({kLayer + "mlp.down_proj"}, 80, 500, "hessian", 40);
  partly.add_floats(kLayer + "mlp.down_proj.fisher_hessian", {80, 80}, StatisticsBuilder::sums(80, 200, 41));
  partly.write(scratch / "partly");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string();
  const auto quantize = [&](const std::string& to, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"quantize", src, (scratch / to).string(), "--stats", stats};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  };
  REQUIRE(quantize("all", {"--pattern", "2:4"}).code == 0);
  REQUIRE(quantize("none", {}).code == 0);
  // What each unit costs, from the reports of both runs.
  std::map<std::string, double> cost, bytes;
  const auto expected_of = [&](const std::string& run, double sign) {
    const Json manifest = parse_json("twofour.json", read_text(scratch / run / "twofour.json"));
    for (const Json& m : manifest["modules"]) {
      const auto name = m["name"].get<std::string>();
      const bool qkv = name.find("self_attn.") != name.npos && !name.ends_with("o_proj");
      const std::string unit = qkv                                                        ? "qkv"
                               : name.ends_with("gate_proj") || name.ends_with("up_proj") ? "gu"
                                                                                          : name;
      cost[unit] += sign * m["quality"]["expected_loss"].get<double>();
      bytes[unit] += 0.5625 / 2 *  // of two runs
                     m["shape"][1].get<double>() * m["shape"][2].get<double>();
    }
  };
  expected_of("all", 1);
  expected_of("none", -1);
  REQUIRE(cost.size() == 4);
  const Json curve =
      json_of(quantize("x", {"--pattern", "2:4", "--budget", "0.6", "--dry-run", "--json"}))["budget"];
  CHECK(!fs::exists(scratch / "x"));
  REQUIRE(curve["units"].size() == 4);
  double before = 0, share = 0, loss = 0;
  for (const Json& u : curve["units"]) {
    const auto first = u["modules"][0].get<std::string>();
    const std::string unit = u["modules"].size() == 3 ? "qkv" : u["modules"].size() == 2 ? "gu" : first;
    CHECK(u["pruned_loss"].get<double>() - u["dense_loss"].get<double>() ==
          doctest::Approx(cost.at(unit)).epsilon(1e-4));
    CHECK(u["bytes"].get<double>() == bytes.at(unit));
    const double a_byte = cost.at(unit) / bytes.at(unit);
    CHECK(a_byte >= before);
    before = a_byte;
    share += u["bytes"].get<double>();
    loss += cost.at(unit);
    CHECK(u["loss"].get<double>() == doctest::Approx(loss).epsilon(1e-4));
    const bool fits = u["share"].get<double>() <= 0.6;
    CHECK(u["pruned"].get<bool>() == fits);
  }
  CHECK(curve["units"].back()["share"].get<double>() == 1);
  CHECK(curve["units"].back()["name"] == kLayer + "mlp.down_proj");
  std::set<std::string> names;
  for (const Json& u : curve["units"]) names.insert(u["name"].get<std::string>());
  CHECK(names.contains(kLayer + "self_attn.k_proj+q_proj+v_proj"));
  CHECK(names.contains(kLayer + "mlp.gate_proj+up_proj"));

  // Pruned matrices are as where all are, the others as where none is; the same for any jobs.
  for (const char* jobs : {"1", "3"}) {
    const std::string out = std::string("out") + jobs;
    const Outcome made = quantize(out, {"--pattern", "2:4", "--budget", "0.6", "-j", jobs});
    REQUIRE_MESSAGE(made.code == 0, made.err);
    const ReadTensors all = read_tensors(scratch / "all"), none = read_tensors(scratch / "none"),
                      some = read_tensors(scratch / out);
    for (const Json& u : curve["units"]) {
      for (const Json& m : u["modules"]) {
        const std::string codes = m.get<std::string>() + ".weight";
        CAPTURE(codes);
        CHECK((some.at(codes) == (u["pruned"].get<bool>() ? all : none).at(codes)));
        CHECK((all.at(codes) != none.at(codes)));
      }
    }
    const Outcome proof =
        run_program({"validate", (scratch / out).string(), "--source", src, "--stats", stats, "--all-rows"});
    CHECK_MESSAGE(proof.code == 0, proof.out);
  }
  const double most = curve["units"][1]["loss"].get<double>();
  const auto by_loss = [&](double x) {
    const Json found = json_of(
        quantize("x", {"--pattern", "2:4", "--max-loss", fmt::format("{:.17g}", x), "--dry-run", "--json"}));
    size_t count = 0;
    for (const Json& u : found["budget"]["units"]) count += u["pruned"].get<bool>();
    return count;
  };
  CHECK(by_loss(most) == 2);
  CHECK(by_loss(most * 0.999) == 1);
  CHECK(by_loss(0) == 0);
  REQUIRE(quantize("nothing", {"--pattern", "2:4", "--budget", "0"}).code == 0);
  CHECK((read_tensors(scratch / "nothing") == read_tensors(scratch / "none")));
  REQUIRE(quantize("everything", {"--pattern", "2:4", "--budget", "1"}).code == 0);
  CHECK((read_tensors(scratch / "everything") == read_tensors(scratch / "all")));

  // prune leaves what the budget does not pay for.
  const auto prune = [&](const std::string& to, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"prune",
                                      (scratch / "none").string(),
                                      (scratch / to).string(),
                                      "--stats",
                                      stats,
                                      "--pattern",
                                      "2:4",
                                      "--also",
                                      "*.self_attn.*"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  };
  const Outcome pruned = prune("pruned", {});
  REQUIRE_MESSAGE(pruned.code == 0, pruned.err);
  const Json units = json_of(prune("x", {"--budget", "0.6", "--dry-run", "--json"}))["budget"]["units"];
  const Outcome made = prune("some-pruned", {"--budget", "0.6"});
  REQUIRE_MESSAGE(made.code == 0, made.err);
  const ReadTensors whole = read_tensors(scratch / "pruned"), some = read_tensors(scratch / "some-pruned"),
                    none = read_tensors(scratch / "none");
  CHECK(units.size() == 3);  // the MLP is one
  size_t count = 0;
  for (const Json& u : units) {
    CHECK(u["dense_loss"] == 0);
    count += u["pruned"].get<bool>();
    for (const Json& m : u["modules"]) {
      const std::string codes = m.get<std::string>() + ".weight";
      CHECK((some.at(codes) == (u["pruned"].get<bool>() ? whole : none).at(codes)));
    }
  }
  CHECK(count > 0);
  CHECK(count < 3);
  const Outcome proof = run_program({"validate", (scratch / "some-pruned").string(), "--source",
                                     (scratch / "none").string(), "--stats", stats, "--all-rows"});
  CHECK_MESSAGE(proof.code == 0, proof.out);
  // The MLP alone, for which there are statistics of one linear in three.
  const Outcome unserved =
      run_program({"prune", (scratch / "none").string(), (scratch / "x").string(), "--stats",
                   (scratch / "partly").string(), "--pattern", "2:4", "--budget", "1"});
  CHECK(unserved.code == 2);
  CHECK_MESSAGE(
      unserved.err.find("expected statistics with tokens for all pruned matrices") != std::string::npos,
      unserved.err);
  const Outcome too_little = prune("x", {"--budget", "0"});
  CHECK(too_little.code == 2);
  CHECK(too_little.err.find("all would stay as it is") != std::string::npos);

  const auto refused = [&](const std::vector<std::string>& more) {
    const Outcome o = quantize("y", more);
    CHECK(o.code == 2);
    CHECK(!fs::exists(scratch / "y"));
    return o.err;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != text.npos; };
  CHECK(
      has(refused({"--budget", "0.5"}), "--budget: expected --pattern or a layout that holds one beside it"));
  CHECK(has(refused({"--pattern", "2:4", "--budget", "1.5"}), "a share from 0 to 1"));
  CHECK(has(refused({"--pattern", "2:4", "--max-loss", "-1"}), "a finite number, 0 or more"));
  const Outcome plain = run_program({"quantize", src, (scratch / "y").string(), "--stats",
                                     (scratch / "plain").string(), "--pattern", "2:4", "--budget", "0.5"});
  CHECK(plain.code == 2);
  CHECK(has(plain.err, "expected fisher_hessian"));
  CHECK(has(plain.err, "stats collect --fisher makes such a file"));
}

TEST_CASE(
    "prune --stats solves NVFP4 again under its own scales and leaves all else; magnitude is as without") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string();
  for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
    CAPTURE(dialect);
    const std::string nvfp4 = (scratch / dialect).string();
    REQUIRE(run_program({"quantize", src, nvfp4, "--dialect", dialect, "--input-scale", "constant"}).code ==
            0);
    const ReadTensors before = read_tensors(nvfp4);
    for (const std::string pattern : {"2:4", "4:8-paired"}) {
      CAPTURE(pattern);
      const std::string out = nvfp4 + pattern.substr(0, 1);
      const Outcome made = run_program({"prune", nvfp4, out, "--pattern", pattern, "--stats", stats});
      REQUIRE_MESSAGE(made.code == 0, made.err);
      CHECK(made.out.find("outputs of 3 of 3 matrices by their statistics") != std::string::npos);
      const ReadTensors after = read_tensors(out);
      REQUIRE(after.size() == before.size());
      size_t changed = 0;
      for (const auto& [name, t] : before) {
        CAPTURE(name);
        REQUIRE(after.contains(name));
        CHECK(after.at(name).dtype == t.dtype);
        CHECK((after.at(name).shape == t.shape));
        const bool solved = name.find("mlp.") != name.npos && t.bytes.size() > 4;
        if (!solved) CHECK((after.at(name) == t));
        changed += !(after.at(name) == t);
      }
      CHECK(changed == 6);
      CHECK(read_text(out + "/config.json") == read_text(nvfp4 + "/config.json"));
      const Outcome proof = run_program({"validate", out, "--source", nvfp4, "--stats", stats, "--all-rows"});
      CHECK_MESSAGE(proof.code == 0, proof.out);
      const double loss = loss_of(out, kLayer + "mlp.down_proj");
      CHECK(loss > 0);
      CHECK(loss < 0.2);
    }
    const std::string plain = nvfp4 + "-plain", same = nvfp4 + "-same";
    REQUIRE(run_program({"prune", nvfp4, plain}).code == 0);
    REQUIRE(run_program({"prune", nvfp4, same, "--stats", stats, "--method", "magnitude"}).code == 0);
    CHECK((read_tensors(plain) == read_tensors(same)));
  }
}

TEST_CASE("masks of others prune floats and NVFP4, with statistics and without; bad ones are refused") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string();
  REQUIRE(run_program({"quantize", src, (scratch / "nvfp4").string()}).code == 0);
  const std::map<std::string, std::pair<int64_t, int64_t>> mlp = {
      {"gate_proj", {80, 64}}, {"up_proj", {80, 64}}, {"down_proj", {64, 80}}};
  const auto write_masks = [&](const std::string& file, size_t group, bool boolean) {
    std::mt19937 random(7);
    Tensors masks;
    for (const auto& [leaf, shape] : mlp) {
      std::vector<uint8_t> mask(static_cast<size_t>(shape.first * shape.second));
      for (size_t i = 0; i < mask.size(); i += group) {
        std::array<uint8_t, 4> four = {1, 1, 0, 0};
        std::shuffle(four.begin(), four.end(), random);
        for (size_t j = 0; j < group; ++j) mask[i + j] = four[j * 4 / group];
      }
      masks.push_back({kLayer + "mlp." + leaf + (boolean ? "" : ".mask"),
                       boolean ? DType::kBool : DType::kU8,
                       {shape.first, shape.second},
                       mask});
    }
    write_safetensors(scratch / file, masks, {});
    return masks;
  };
  for (const bool pairs : {false, true}) {
    const std::string pattern = pairs ? "4:8-paired" : "2:4", file = pairs ? "masks8" : "masks4";
    const Tensors masks = write_masks(file, pairs ? 8 : 4, pairs);
    const std::string mask = (scratch / file).string();
    for (const std::string command : {"quantize", "prune"}) {
      for (const bool solved : {false, true}) {
        CAPTURE(pattern);
        CAPTURE(command);
        CAPTURE(solved);
        const std::string from = command == "prune" ? (scratch / "nvfp4").string() : src,
                          out = (scratch / (command + file + (solved ? "s" : ""))).string();
        std::vector<std::string> words = {command, from, out, "--pattern", pattern, "--mask", mask};
        if (command == "quantize") words.insert(words.end(), {"--include", "*.mlp.*"});
        if (solved) words.insert(words.end(), {"--stats", stats});
        const Outcome made = run_program(words);
        REQUIRE_MESSAGE(made.code == 0, made.err);
        const ReadTensors after = read_tensors(out), before = read_tensors(scratch / "nvfp4");
        for (const TensorData& m : masks) {
          const std::string module = m.name.substr(0, m.name.find(".mask"));
          const auto& codes = after.at(module + ".weight").bytes;
          const auto& old = before.at(module + ".weight").bytes;
          size_t dropped = 0, nonzero = 0, kept_as_before = 0, kept = 0;
          for (size_t i = 0; i < m.bytes.size(); ++i) {
            const unsigned code = codes[i / 2] >> i % 2 * 4 & 15u, was = old[i / 2] >> i % 2 * 4 & 15u;
            dropped += m.bytes[i] == 0 && (code & 7u) != 0;
            nonzero += m.bytes[i] == 1 && (code & 7u) != 0;
            kept += m.bytes[i] == 1;
            kept_as_before += m.bytes[i] == 1 && code == was;
          }
          CHECK(dropped == 0);
          CHECK(nonzero > kept / 2);
          if (command == "prune" && !solved) {
            CHECK(kept_as_before == kept);
            CHECK((after.at(module + ".weight_scale") == before.at(module + ".weight_scale")));
          }
        }
        std::vector<std::string> proof = {"validate", out, "--source", from, "--mask", mask};
        if (solved) proof.insert(proof.end(), {"--stats", stats, "--all-rows"});
        const Outcome proven = run_program(proof);
        CHECK_MESSAGE(proven.code == 0, (proven.out + proven.err));
        CHECK(run_program({"validate", out, "--source", from}).code == 2);
      }
    }
  }
  const auto refused = [&](const Tensors& masks, const std::vector<std::string>& more) {
    write_safetensors(scratch / "bad", masks, {});
    std::vector<std::string> words = {
        "quantize",  src,          (scratch / "none").string(), "--mask", (scratch / "bad").string(),
        "--include", "*.down_proj"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = run_program(words);
    CHECK(o.code == 2);
    CHECK(!fs::exists(scratch / "none"));
    return o.err;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != text.npos; };
  const std::vector<std::string> prune = {"--pattern", "2:4"};
  const std::string down = kLayer + "mlp.down_proj.mask";
  std::vector<uint8_t> good(64 * 80);
  for (size_t i = 0; i < good.size(); ++i) good[i] = i % 4 < 2;
  CHECK(has(refused({{down, DType::kU8, {64, 80}, good}}, {}),
            "expected a layout, rule or command with a pattern"));
  CHECK(has(refused({{down, DType::kU8, {80, 64}, good}}, prune), "expected [64, 80], found U8 [80, 64]"));
  CHECK(has(refused({{down, DType::kF8E4M3, {64, 80}, good}}, prune), "expected a mask, U8 or BOOL [N, K]"));
  CHECK(has(refused({{kLayer + "mlp.up_proj", DType::kU8, {64, 80}, good}}, prune), "expected a mask of"));
  CHECK(has(refused({{"another", DType::kU8, {64, 80}, good}}, prune), "expected masks of linears of"));
  auto three = good;
  three[2] = 1;
  CHECK(has(refused({{down, DType::kU8, {64, 80}, three}}, prune),
            "row 0, k 0: expected two of four to stay, found 3 of 4"));
  auto two = good;
  two[83] = 2;
  CHECK(has(refused({{down, DType::kU8, {64, 80}, two}}, prune), "row 1, k 3: expected 0 or 1, found 2"));
  for (size_t i = 0; i < good.size(); ++i) good[i] = i % 2;
  CHECK(has(refused({{down, DType::kU8, {64, 80}, good}}, {"--pattern", "4:8-paired"}),
            "expected two pairs of four to stay, found 4 of 8, not in pairs"));
}

}  // namespace cli_stats_prune_test
