#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/base/io/file.h"
#include "tests/support/conversion.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/statistics_builder.h"

namespace cli_budget_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

constexpr int64_t kHidden = 80, kExpert = 96;
constexpr int64_t kTokens = 800, kPairs = 1600;    // a token goes to two experts
constexpr int64_t kSeen[] = {400, 400, 500, 300};  // of the experts
const std::string kBlock = "model.layers.0.mlp.experts";
const std::string kOut = "model.layers.0.self_attn.o_proj";

std::string expert(int e, const char* leaf) { return kBlock + "." + std::to_string(e) + "." + leaf; }

/// A layer of four experts and one linear that all tokens pass, with statistics that have the Fisher sums.
struct Layer {
  Layer() {
    Tensors t;
    unsigned seed = 1;
    add_floats(t, kOut, random_floats(kHidden, kHidden, ++seed));
    for (int e = 0; e < 4; ++e) {
      for (const char* leaf : {"gate_proj", "up_proj"})
        add_floats(t, expert(e, leaf), random_floats(kExpert, kHidden, ++seed));
      add_floats(t, expert(e, "down_proj"), random_floats(kHidden, kExpert, ++seed));
    }
    add_bf16(t, "model.norm.weight", {kHidden}, ++seed);
    write_checkpoint(scratch / "bf16", {t});
    std::vector<std::string> shared;
    for (int e = 0; e < 4; ++e) shared.insert(shared.end(), {expert(e, "gate_proj"), expert(e, "up_proj")});
    add({kOut}, kHidden, kTokens);
    add(shared, kHidden, kPairs);
    for (int e = 0; e < 4; ++e) add({expert(e, "down_proj")}, kExpert, kSeen[e]);
    statistics.write(scratch / "stats");
  }
  void add(const std::vector<std::string>& members, int64_t k, int64_t count) {
    const auto seed = static_cast<unsigned>(statistics.tensors.size());
    statistics.add(members, k, count, "hessian", seed + 10);
    statistics.add_floats(members[0] + ".fisher_hessian", {k, k},
                          StatisticsBuilder::sums(k, count, seed + 50));
  }
  std::string path(const std::string& name) const { return (scratch / name).string(); }
  Outcome run(std::vector<std::string> words, const std::vector<std::string>& more) const {
    words.insert(words.end(), {"--stats", path("stats")});
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  }
  Scratch scratch;
  StatisticsBuilder statistics;
};

Json document_of(const Outcome& o) {
  REQUIRE_MESSAGE(o.code == 0, o.err);
  return parse_json("stdout", o.out);
}

}  // namespace

TEST_CASE("an expert costs a budget what its tokens cost, not what all tokens would") {
  const Layer layer;
  const std::string source = layer.path("bf16");
  const std::vector<std::string> both = {"--also", kOut};
  const auto quantize = [&](const std::string& to, std::vector<std::string> more) {
    more.insert(more.end(), both.begin(), both.end());
    return layer.run({"quantize", source, layer.path(to)}, more);
  };
  REQUIRE(quantize("all", {"--pattern", "2:4"}).code == 0);
  std::map<std::string, double> mean;  // over tokens, of each matrix
  const Json manifest = parse_json("twofour.json", read_text(layer.scratch / "all" / "twofour.json"));
  for (const Json& m : manifest["modules"])
    mean[m["name"].get<std::string>()] = m["quality"]["expected_loss"].get<double>();
  REQUIRE(mean.size() == 13);
  double down = 0, gate_up = 0;
  for (int e = 0; e < 4; ++e) {
    const double share = static_cast<double>(kSeen[e]) / kTokens;
    down += share * mean.at(expert(e, "down_proj"));
    gate_up += share * (mean.at(expert(e, "gate_proj")) + mean.at(expert(e, "up_proj")));
  }
  const std::map<std::string, double> expected = {
      {kOut, mean.at(kOut)}, {kBlock + ".down_proj", down}, {kBlock + ".gate_up_proj", gate_up}};
  const Json units = document_of(
      quantize("x", {"--pattern", "2:4", "--budget", "0.5", "--dry-run", "--json"}))["budget"]["units"];
  REQUIRE(units.size() == 3);
  for (const Json& u : units) {
    CAPTURE(u["name"].get<std::string>());
    CHECK(u["pruned_loss"].get<double>() ==
          doctest::Approx(expected.at(u["name"].get<std::string>())).epsilon(1e-5));
  }
}

TEST_CASE(
    "a budget takes masks, the pattern of prune without words, and plans; a budget for nothing is said") {
  const Layer layer;
  const std::string source = layer.path("bf16"), nvfp4 = layer.path("nvfp4");
  REQUIRE(run_program({"quantize", source, nvfp4}).code == 0);
  Tensors masks;
  for (int e = 0; e < 4; ++e) {
    for (const char* leaf : {"gate_proj", "up_proj", "down_proj"}) {
      const bool is_down = std::string_view(leaf) == "down_proj";
      std::vector<uint8_t> mask(kHidden * kExpert);
      for (size_t i = 0; i < mask.size(); ++i) mask[i] = i / 4 % 2 == 0 ? i % 2 == 0 : i % 4 < 2;
      masks.push_back(
          {expert(e, leaf) + ".mask", DType::kU8,
           is_down ? std::vector<int64_t>{kHidden, kExpert} : std::vector<int64_t>{kExpert, kHidden}, mask});
    }
  }
  write_safetensors(layer.scratch / "masks", masks, {});
  const std::vector<std::string> half = {"--budget", "0.7", "--mask", layer.path("masks")};
  int made = 0;
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"quantize", source, "--pattern", "2:4", "--include", "*experts*"},
        {"convert", source, "--to", "v7"},
        {"convert", nvfp4, "--to", "v7"},
        {"prune", nvfp4}}) {
    CAPTURE(made);
    const std::string out = layer.path("masked" + std::to_string(++made));
    std::vector<std::string> command = words;
    command.insert(command.begin() + 2, out);
    // One layer is one unit of layouts and of prune.
    auto budget = half;
    if (words[0] != "quantize") budget[1] = "1";
    const Outcome o = layer.run(command, budget);
    REQUIRE_MESSAGE(o.code == 0, o.err);
    const Outcome proof = layer.run({"validate", out, "--source", words[1]}, {"--mask", layer.path("masks")});
    CHECK_MESSAGE(proof.code == 0, (proof.out + proof.err));
  }

  const auto with_half = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--budget", "0.7", "--max-shard-size", "20kB"});
    return layer.run(words, {});
  };
  REQUIRE(with_half({"quantize", source, layer.path("alone"), "--pattern", "2:4"}).code == 0);
  const Outcome planned = with_half(
      {"plan", source, layer.path("tasks"), "--to", "quantize", "--pattern", "2:4", "-o", layer.path("p")});
  REQUIRE_MESSAGE(planned.code == 0, planned.err);
  for (const char* task : {"1/2", "0/2"}) {
    const Outcome done = run_program({"convert", "--plan", layer.path("p"), "--task", task});
    REQUIRE_MESSAGE(done.code == 0, done.err);
  }
  REQUIRE(run_program({"merge", layer.path("tasks")}).code == 0);
  CHECK((read_tree(layer.path("tasks")) == read_tree(layer.path("alone"))));

  const Outcome small =
      layer.run({"quantize", source, layer.path("small"), "--pattern", "2:4"}, {"--budget", "0.01"});
  CHECK(small.code == 0);
  CHECK_MESSAGE(small.err.find("too little [nothing-pruned]") != std::string::npos, small.err);
  const Outcome unused = layer.run({"convert", nvfp4, layer.path("g8"), "--to", "g8"}, {});
  CHECK(unused.code == 0);
  CHECK_MESSAGE(unused.err.find("[statistics-unused]") != std::string::npos, unused.err);
}

TEST_CASE("a block in another format than NVFP4 is left out by its name") {
  const Layer layer;
  Tensors t;
  unsigned seed = 30;
  for (const char* l : {"0", "1"}) {
    const std::string mlp = std::string("model.layers.") + l + ".mlp.";
    for (const char* leaf : {"gate_proj", "up_proj"})
      add_floats(t, mlp + leaf, random_floats(kExpert, kHidden, ++seed));
    add_floats(t, mlp + "down_proj", random_floats(kHidden, kExpert, ++seed));
  }
  write_checkpoint(layer.scratch / "dense", {t});
  for (const char* to : {"v7", "g8"}) {
    const std::string out = layer.path(std::string("out") + to);
    const Outcome o =
        run_program({"convert", layer.path("dense"), out, "--to", to, "--exclude", "model.layers.1.mlp"});
    CHECK_MESSAGE(o.code == 0, o.err);
    CHECK(read_tensors(out).contains("model.layers.1.mlp.down_proj.weight"));
    CHECK(!read_tensors(out).contains("model.layers.0.mlp.down_proj.weight"));
    CHECK(run_program({"validate", out, "--source", layer.path("dense")}).code == 0);
  }
  const Outcome none = run_program(
      {"convert", layer.path("dense"), layer.path("x"), "--to", "v7", "--exclude", "model.layers.7.mlp"});
  CHECK(none.code == 2);
  CHECK_MESSAGE(none.err.find("--exclude 'model.layers.7.mlp'") != std::string::npos, none.err);
}

}  // namespace cli_budget_test
