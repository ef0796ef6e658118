#include <doctest/doctest.h>
#include <fmt/format.h>

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "lib/base/io/file.h"
#include "lib/source/linears/linears.h"
#include "tests/support/conversion.h"
#include "tests/support/models/decoder_files.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/statistics_builder.h"

namespace cli_size_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr int64_t kTokens = 600;

/// Sums for an entry, with numbers that differ between entries.
std::vector<float> fisher_of(const std::string& name, int64_t k) {
  return StatisticsBuilder::sums(k, kTokens, static_cast<unsigned>(name.size() * 7 + static_cast<size_t>(k)));
}

struct SizeFiles : DecoderFiles {
  explicit SizeFiles(const std::string& name) : DecoderFiles(name) {
    write_calibration("tokens.safetensors");
    StatisticsBuilder fisher, plain;
    for (const Linear& m : find_weight_modules(Checkpoint::open(scratch / "model"))) {
      if (m.is_table || m.name.find("lm_head") != m.name.npos || m.name.ends_with(".gate")) continue;
      for (StatisticsBuilder* s : {&fisher, &plain}) s->add({m.name}, m.k, kTokens, "hessian", 3);
      fisher.add_floats(m.name + ".fisher_hessian", {m.k, m.k}, fisher_of(m.name, m.k));
    }
    fisher.write(scratch / "fisher");
    plain.write(scratch / "plain");
  }
  Outcome compress(const std::string& out, const Words& more) const {
    Words all{"compress", path("model"), path(out), "--tokens", path("tokens.safetensors"), "-q"};
    all.insert(all.end(), more.begin(), more.end());
    return run_program(all);
  }
  Json choice(const Words& more) const {
    Words words = more;
    words.insert(words.end(), {"--dry-run", "--json"});
    const Json json = json_of(compress("dry", words));
    CHECK_FALSE(fs::exists(path("dry")));
    CHECK_FALSE(fs::exists(path("dry.choosing")));
    return json.at("choice");
  }
};

std::map<std::string, Linear> linears_of(const Checkpoint& checkpoint) {
  std::map<std::string, Linear> all;
  for (Linear& m : find_weight_modules(checkpoint)) all.emplace(m.name, m);
  return all;
}

/// Half of the sum over rows of d He d', in double, by the definition.
double slow_loss(const Checkpoint& source, const Checkpoint& made, const std::string& name) {
  const Linear from = linears_of(source).at(name), to = linears_of(made).at(name);
  const auto k = static_cast<size_t>(from.k);
  std::vector<float> weights(static_cast<size_t>(from.n) * k), values(weights.size());
  WeightReader(source).read_rows(from, 0, 0, from.n, weights);
  WeightReader(made).read_rows(to, 0, 0, from.n, values);
  const std::vector<float> sums = fisher_of(name, from.k);
  double loss = 0;
  for (size_t row = 0; row < weights.size(); row += k) {
    for (size_t i = 0; i < k; ++i) {
      for (size_t j = 0; j < k; ++j) {
        loss += double{sums[i * k + j]} / kTokens * (double{weights[row + i]} - double{values[row + i]}) *
                (double{weights[row + j]} - double{values[row + j]});
      }
    }
  }
  return loss / 2;
}

uint64_t bytes_of_tensors(const fs::path& folder) {
  uint64_t bytes = 0;
  for (const TensorInfo& t : Checkpoint::open(folder).tensors()) bytes += t.bytes();
  return bytes;
}

}  // namespace

TEST_CASE("a size predicts the loss of each format as the written format has it") {
  const SizeFiles files("qwen3");
  const std::string stats = files.path("fisher");
  for (const std::string to : {"nvfp4", "mxfp4", "fp8"}) {
    // The head makes a rule that statistics may serve.
    std::ofstream(files.path("recipe.json"))
        << R"({"format": 1, "dialect": "compressed-tensors", "rules": [{"match": "lm_head", "to": "nvfp4"}, )"
        << R"({"match": "*", "to": ")" << to << "\"}]}";
    const Outcome made = run_program({"convert", files.path("model"), files.path(to), "--recipe",
                                      files.path("recipe.json"), "--stats", stats, "-q"});
    REQUIRE_MESSAGE(made.code == 0, made.err);
  }
  const Json choice =
      files.choice({"--bits", "6", "--budget-stats", stats, "--menu", "nvfp4,mxfp4,fp8,bf16"});
  CHECK(choice["is_divergence"] == true);
  CHECK(choice["is_best"] == true);
  const Checkpoint source = Checkpoint::open(files.path("model"));
  std::map<std::string, std::set<std::string>> seen;
  double chosen = 0, bits = 0, weights = 0;
  for (const Json& unit : choice["units"]) {
    weights += unit["weights"].get<double>();
    for (const Json& option : unit["options"]) {
      const auto format = option["format"].get<std::string>();
      CAPTURE(unit["name"].get<std::string>());
      CAPTURE(format);
      double loss = 0;
      for (const Json& module : unit["modules"]) {
        const auto name = module.get<std::string>();
        if (format != "bf16") loss += slow_loss(source, Checkpoint::open(files.path(format)), name);
      }
      CHECK(option["loss"].get<double>() == doctest::Approx(loss).epsilon(1e-4));
      seen[unit["name"].get<std::string>()].insert(format);
      const double per_weight = option["bits"].get<double>() / unit["weights"].get<double>();
      CHECK(per_weight ==
            std::map<std::string, double>{{"nvfp4", 4.5}, {"mxfp4", 4.25}, {"fp8", 8}, {"bf16", 16}}[format]);
      if (option["format"] != unit["format"]) continue;
      chosen += option["loss"].get<double>();
      bits += option["bits"].get<double>();
    }
  }
  CHECK(choice["loss"].get<double>() == doctest::Approx(chosen).epsilon(1e-9));
  CHECK(choice["bits"].get<double>() == doctest::Approx(bits / weights).epsilon(1e-9));
  CHECK(bits <= 6 * weights);
  CHECK(seen.contains("model.layers.0.self_attn.qkv_proj"));
  CHECK(seen.contains("model.layers.0.self_attn.o_proj"));
  CHECK(seen.contains("model.layers.0.mlp.gate_up_proj"));
  // Of 48 inputs, MXFP4 would leave half a group.
  CHECK(seen.at("model.layers.0.mlp.down_proj") == std::set<std::string>{"nvfp4", "fp8", "bf16"});
}

TEST_CASE("a size is met, the mix is proven, and its twofour.json is a recipe that makes it again") {
  for (const char* name : {"qwen3_moe", "qwen3_next", "deepseek_v3"}) {
    CAPTURE(name);
    const SizeFiles files(name);
    const std::string out = files.path("out"), kept = files.path("kept");
    const uint64_t all = bytes_of_tensors(files.path("model"));
    REQUIRE(run_program({"quantize", files.path("model"), files.path("least"), "--dialect",
                         "compressed-tensors", "-q"})
                .code == 0);
    const uint64_t size = (all + 3 * bytes_of_tensors(files.path("least"))) / 4;
    const Words words{"--size", fmt::format("{}", size), "--menu", "nvfp4,fp8,bf16", "--keep-stats", kept};
    const Outcome made = files.compress("out", words);
    REQUIRE_MESSAGE(made.code == 0, made.err);
    CHECK(bytes_of_tensors(out) <= size);
    CHECK(bytes_of_tensors(out) > bytes_of_tensors(files.path("least")));
    for (const char* left : {"out.choosing", "out.compressing"}) CHECK_FALSE(fs::exists(files.path(left)));
    const Json choice = files.choice({"--size", fmt::format("{}", size), "--menu", "nvfp4,fp8,bf16"});
    CHECK(choice["bytes"] == bytes_of_tensors(out));
    CHECK(choice["is_divergence"] == false);
    std::set<std::string> formats;
    for (const Json& unit : choice["units"]) formats.insert(unit["format"].get<std::string>());
    CHECK(formats.size() > 1);

    const Outcome proof =
        run_program({"validate", out, "--source", files.path("model"), "--stats", kept, "-q"});
    CHECK_MESSAGE(proof.code == 0, (proof.out + proof.err));
    const Outcome again = run_program({"convert", files.path("model"), files.path("again"), "--recipe",
                                       out + "/twofour.json", "--stats", kept, "-q"});
    REQUIRE_MESSAGE(again.code == 0, again.err);
    CHECK((read_tree(out) == read_tree(files.path("again"))));
    check_one_line(run_program({"convert", files.path("model"), files.path("x"), "--recipe",
                                out + "/twofour.json", "-q"}),
                   "--stats: expected the file of statistics");
  }
}

TEST_CASE("a choice is the same for any number of jobs, and for a run that resumes") {
  const SizeFiles files("qwen3_moe");
  const Words words{"--bits", "6.5", "--for", "vllm", "--menu", "nvfp4,fp8,bf16", "--sweeps", "1"};
  for (const char* jobs : {"1", "3"}) {
    Words all = words;
    all.insert(all.end(), {"-j", jobs});
    const Outcome made = files.compress(jobs, all);
    REQUIRE_MESSAGE(made.code == 0, made.err);
  }
  CHECK((read_tree(files.path("1")) == read_tree(files.path("3"))));
  // A complete output is proven by the choice that is made again.
  Words resumed = words;
  resumed.push_back("--resume");
  const Outcome complete = files.compress("1", resumed);
  CHECK_MESSAGE(complete.code == 0, complete.err);
  // A run that is killed at any time goes on to the same bytes.
  for (int killed = 0; killed < 3; ++killed) {
    const std::string out = files.path("killed");
    Words begin{"compress", files.path("model"), out, "--tokens", files.path("tokens.safetensors"), "-q"};
    begin.insert(begin.end(), resumed.begin(), resumed.end());
    Run run(begin);
    std::this_thread::sleep_for(std::chrono::milliseconds(30 + 60 * killed));
    run.send(SIGKILL);
    run.wait();
  }
  const Outcome done = files.compress("killed", resumed);
  REQUIRE_MESSAGE(done.code == 0, done.err);
  CHECK((read_tree(files.path("1")) == read_tree(files.path("killed"))));
  CHECK_FALSE(fs::exists(files.path("killed.choosing")));
}

TEST_CASE("sizes and menus that cannot be had are refused before anything is written") {
  const SizeFiles files("qwen3");
  const std::string stats = files.path("fisher");
  const auto refused = [&](const Words& more, const std::string& part) {
    CAPTURE(part);
    check_one_line(files.compress("x", more), part);
    CHECK_FALSE(fs::exists(files.path("x")));
    CHECK_FALSE(fs::exists(files.path("x.choosing")));
    CHECK_FALSE(fs::exists(files.path("x.compressing")));
  };
  refused({"--bits", "4", "--menu", "nvfp4,bf16"},
          "--bits: expected 4.5 bits or more, the least of nvfp4,bf16, found 4");
  refused({"--size", "1kB", "--menu", "nvfp4"}, "--size: expected ");
  refused({"--bits", "5", "--for", "vllm", "--menu", "nvfp4,v7"},
          "--menu: expected formats that vllm loads in the compressed-tensors dialect, as nvfp4,");
  refused({"--bits", "5", "--for", "sglang", "--menu", "mxfp4,nvfp4"}, "as nvfp4,");
  refused({"--bits", "5", "--menu", "bf16"}, "--menu: expected a format beside bf16");
  refused({"--bits", "16", "--menu", "nvfp4,bf16", "--budget-stats", stats},
          "found one in which all stays as it is");
  refused({"--to", "nvfp4", "--menu", "nvfp4"}, "--menu: expected --bits or --size beside it");
  refused({"--to", "nvfp4", "--for", "vllm"}, "--for: expected --bits or --size beside it");
  CHECK(files.compress("x", {"--bits", "5", "--size", "1GB"}).code == 2);
  CHECK(files.compress("x", {"--bits", "5", "--to", "v7"}).code == 2);
}

TEST_CASE("a mix for an engine has no finding of that engine, and v7 stands beside it for twofour") {
  const SizeFiles files("qwen3");
  const std::string stats = files.path("fisher");
  for (const std::string engine : {"vllm", "sglang", "tensorrt-llm", "twofour"}) {
    CAPTURE(engine);
    const Outcome made = files.compress(engine, {"--bits", "6", "--for", engine, "--budget-stats", stats});
    REQUIRE_MESSAGE(made.code == 0, made.err);
    const Json lint = parse_json("lint", run_program({"lint", files.path(engine), "--json"}).out);
    const std::map<std::string, std::string> names = {{"vllm", "vLLM"},
                                                      {"sglang", "SGLang"},
                                                      {"tensorrt-llm", "TensorRT-LLM"},
                                                      {"twofour", "engine-lookup"}};
    for (const Json& finding : lint["findings"]) {
      const auto text = finding.dump();
      if (finding["rule"].get<std::string>().starts_with("engine-"))
        CHECK_MESSAGE(text.find(names.at(engine)) == text.npos, text);
    }
  }
  const Outcome mixed = files.compress("v7", {"--bits", "4.6", "--menu", "v7,nvfp4,fp8", "--budget-stats",
                                              stats, "--html", files.path("v7.html")});
  REQUIRE_MESSAGE(mixed.code == 0, mixed.err);
  const Outcome proof = run_program({"validate", files.path("v7"), "--source", files.path("model"), "-q"});
  CHECK_MESSAGE(proof.code == 0, (proof.out + proof.err));
  CHECK(run_program({"eval", files.path("v7"), "--tokens", files.path("tokens.safetensors"), "-q"}).code ==
        0);
}

}  // namespace cli_size_test
