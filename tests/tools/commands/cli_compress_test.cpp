#include <doctest/doctest.h>

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "lib/base/io/file.h"
#include "tests/support/conversion.h"
#include "tests/support/models/decoder_files.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace cli_compress_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

struct CompressFiles : DecoderFiles {
  explicit CompressFiles(const std::string& name) : DecoderFiles(name) {
    write_calibration("tokens.safetensors");
  }
  Words words(const std::string& out, const Words& more) const {
    Words all{"compress", path("model"), path(out), "--tokens", path("tokens.safetensors"), "-q"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Outcome compress(const std::string& out, const Words& more) const { return run_program(words(out, more)); }
  double divergence(const std::string& out) const {
    const Json json = json_of(run_program({"eval", path(out), "--tokens", path("tokens.safetensors"),
                                           "--against", path("model"), "--json", "-q"}));
    return json["against"]["divergence"].get<double>();
  }
};

}  // namespace

TEST_CASE("compress brings a model nearer to itself than rounding, and its statistics prove it") {
  const CompressFiles files("qwen3_moe");
  struct Case {
    const char* name;
    Words words, rounded;
  };
  const Case cases[] = {
      {"nvfp4", {"--to", "nvfp4", "--pattern", "2:4"}, {"quantize", "--pattern", "2:4"}},
      {"v7", {"--to", "v7"}, {"convert", "--to", "v7"}},
      {"g8", {"--to", "g8"}, {"convert", "--to", "g8"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const std::string out = c.name, stats = files.path(out + ".stats");
    Words words = c.words;
    words.insert(words.end(), {"--keep-stats", stats});
    const Outcome made = files.compress(out, words);
    REQUIRE_MESSAGE(made.code == 0, made.err);
    CHECK_FALSE(fs::exists(files.path(out + ".compressing")));
    Words rounded = c.rounded;
    rounded.insert(rounded.begin() + 1, {files.path("model"), files.path(out + "-rounded")});
    rounded.push_back("-q");
    const Outcome other = run_program(rounded);
    REQUIRE_MESSAGE(other.code == 0, other.err);
    CHECK(files.divergence(out) < files.divergence(out + "-rounded"));

    // What was solved while statistics were collected is what they alone make of the model.
    Words alone = c.rounded;
    alone.insert(alone.begin() + 1, {files.path("model"), files.path(out + "-alone")});
    alone.insert(alone.end(), {"--stats", stats, "-q"});
    const Outcome solved = run_program(alone);
    REQUIRE_MESSAGE(solved.code == 0, solved.err);
    CHECK((read_tree(files.path(out)) == read_tree(files.path(out + "-alone"))));

    Words proof{"validate", files.path(out), "--source", files.path("model"), "--stats", stats};
    const Outcome proven = run_program(proof);
    CHECK_MESSAGE(proven.code == 0, proven.err);
    const Json manifest = parse_json("twofour.json", read_tree(files.path(out)).at("twofour.json"));
    CHECK(manifest.dump().find("\"statistics_from\"") != std::string::npos);
  }
}

TEST_CASE("compress brings hybrids and DeepSeek-V4 nearer to themselves than rounding, and is proven") {
  for (const char* name :
       {"qwen3_next", "qwen3_5", "qwen3_5_moe-vision", "deepseek_v4", "gemma3-linear", "nemotron_h"}) {
    CAPTURE(name);
    const CompressFiles files(name);
    const Outcome made = files.compress(
        "out", {"--to", "nvfp4", "--pattern", "2:4", "--keep-stats", files.path("statistics")});
    REQUIRE_MESSAGE(made.code == 0, made.err);
    const Outcome rounded =
        run_program({"quantize", files.path("model"), files.path("rounded"), "--pattern", "2:4", "-q"});
    REQUIRE_MESSAGE(rounded.code == 0, rounded.err);
    CHECK(files.divergence("out") < files.divergence("rounded"));
    const Outcome proven = run_program({"validate", files.path("out"), "--source", files.path("model"),
                                        "--stats", files.path("statistics")});
    CHECK_MESSAGE(proven.code == 0, proven.err);
  }
}

TEST_CASE("compress prunes to 4:8-paired by each kind of statistics, and these prove it") {
  const CompressFiles files("qwen3_moe");
  const std::string stats = files.path("stats");
  std::vector<double> divergences;
  for (const char* sequential : {"none", "layer", "group"}) {
    CAPTURE(sequential);
    const Outcome made =
        files.compress(sequential, {"--to", "nvfp4", "--pattern", "4:8-paired", "--sequential", sequential,
                                    "--keep-stats", stats, "--force"});
    REQUIRE_MESSAGE(made.code == 0, made.err);
    const Outcome proven =
        run_program({"validate", files.path(sequential), "--source", files.path("model"), "--stats", stats});
    CHECK_MESSAGE(proven.code == 0, proven.out);
    // Aligned pairs of codes are there or not: of four, two.
    for (const auto& [name, t] : read_tensors(files.path(sequential))) {
      if (t.dtype != DType::kU8 || !name.ends_with("proj.weight")) continue;
      for (size_t octet = 0; octet < t.bytes.size(); octet += 4) {
        const auto kept = std::count_if(t.bytes.begin() + static_cast<ptrdiff_t>(octet),
                                        t.bytes.begin() + static_cast<ptrdiff_t>(octet) + 4,
                                        [](uint8_t two) { return (two & 0x77) != 0; });
        REQUIRE_MESSAGE(kept <= 2, name);
      }
    }
    divergences.push_back(files.divergence(sequential));
  }
  // What the compressed model lacks goes into the targets.
  CHECK(divergences[2] < divergences[0]);

  write_text(files.scratch / "rules.yaml",
             "format: 1\nrules:\n"
             "  - {match: head, to: nvfp4, pattern: '4:8-paired', method: magnitude}\n"
             "  - {match: '*', to: nvfp4}\n");
  const Outcome refused = files.compress("out", {"--recipe", files.path("rules.yaml")});
  CHECK(refused.code == 2);
  CHECK_MESSAGE(
      refused.err.find("method: expected joint, wanda or --mask with 4:8-paired, found magnitude") !=
          std::string::npos,
      refused.err);
  CHECK_FALSE(fs::exists(files.path("out")));
}

TEST_CASE("a head of its own is chosen by what it sees behind compressed layers, and proven") {
  const CompressFiles files("llama");
  const std::string stats = files.path("stats");
  for (const Words& to : {Words{"nvfp4", "--pattern", "2:4"}, Words{"v7"}}) {
    CAPTURE(to.front());
    Words words = files.words(to.front(), {"--also", "lm_head", "--keep-stats", stats, "--force", "--to"});
    words.insert(words.end(), to.begin(), to.end());
    std::erase(words, "-q");
    const Outcome made = run_program(words);
    REQUIRE_MESSAGE(made.code == 0, made.err);
    CHECK_MESSAGE((made.out + made.err).find("few-statistics") == std::string::npos, made.err);
    const Outcome proven =
        run_program({"validate", files.path(to.front()), "--source", files.path("model"), "--stats", stats});
    CHECK_MESSAGE(proven.code == 0, proven.out);
  }
  // Beside one whose head knows no inputs.
  write_text(files.scratch / "rules.yaml",
             "format: 1\nrules:\n"
             "  - {match: head, to: nvfp4, pattern: '2:4', method: magnitude}\n"
             "  - {match: '*', to: nvfp4, pattern: '2:4'}\n");
  const Outcome other = files.compress("other", {"--recipe", files.path("rules.yaml")});
  REQUIRE_MESSAGE(other.code == 0, other.err);
  CHECK(Checkpoint::open(files.path("other")).find("lm_head.weight_scale").has_value());
  CHECK(files.divergence("nvfp4") < files.divergence("other"));
}

TEST_CASE("without its statistics validate proves all but the choice of weights, and says so") {
  const CompressFiles files("llama");
  REQUIRE(files.compress("out", {"--to", "nvfp4", "--pattern", "2:4"}).code == 0);
  const Outcome o = run_program({"validate", files.path("out"), "--source", files.path("model")});
  CHECK_MESSAGE(o.code == 0, o.err);
  CHECK(o.out.find("not solved again") != std::string::npos);
  // A third weight in a quad, and a kept tensor of another source.
  const fs::path file = files.scratch / "out" / "model-00001-of-00001.safetensors";
  const Checkpoint made = Checkpoint::open(files.path("out"));
  const size_t codes = *made.find("model.layers.1.mlp.down_proj.weight");
  const uint64_t at = made.shard_of(codes).data_begin + made.tensors()[codes].begin;
  std::fstream edit(file, std::ios::in | std::ios::out | std::ios::binary);
  edit.seekp(static_cast<std::streamoff>(at));
  edit.write("\x11\x11", 2);
  edit.close();
  const Outcome spoilt = run_program({"validate", files.path("out"), "--source", files.path("model")});
  CHECK(spoilt.code == 1);
  CHECK_MESSAGE(spoilt.out.find("expected 2:4 (twofour.json), found more at row 0, k 0") != std::string::npos,
                spoilt.out);
  write_decoder_checkpoint(files.golden, files.scratch / "other", {}, [](Tensors& tensors) {
    for (TensorData& t : tensors) {
      if (t.name == "model.norm.weight") t.bytes[0] ^= 1;
    }
  });
  const Outcome other = run_program({"validate", files.path("out"), "--source", files.path("other")});
  CHECK(other.code == 1);
  CHECK_MESSAGE(other.out.find("model.norm.weight: expected") != std::string::npos, other.out);
}

TEST_CASE("resuming what is complete proves it, and refuses another recipe") {
  const CompressFiles files("qwen3_moe");
  const Words options{"--to", "nvfp4", "--pattern", "2:4"};
  REQUIRE(files.compress("out", options).code == 0);
  const auto before = read_tree(files.path("out"));
  const auto resumed = [&](const Words& words) {
    Words all{
        "compress", files.path("model"), files.path("out"), "--tokens", files.path("tokens.safetensors"),
        "--resume"};
    all.insert(all.end(), words.begin(), words.end());
    return run_program(all);
  };
  const Outcome same = resumed(options);
  CHECK_MESSAGE(same.code == 0, same.err);
  CHECK_MESSAGE(same.out.find("was complete") != std::string::npos, same.out);
  CHECK(json_of(resumed({"--to", "nvfp4", "--pattern", "2:4", "--json"}))["was_complete"] == true);
  for (const Words& other : {Words{"--to", "nvfp4"}, Words{"--to", "v7"},
                             Words{"--to", "nvfp4", "--pattern", "2:4", "--sweeps", "1"}}) {
    CAPTURE(other.back());
    const Outcome refused = resumed(other);
    CHECK(refused.code == 2);
    CHECK_MESSAGE(refused.err.find("changed") != std::string::npos, refused.err);
  }
  // Nor is it one of other tokens or of another order.
  for (const Words& other : {Words{"--sequential", "none"}, Words{"--limit", "1"}}) {
    CAPTURE(other.front());
    Words all = options;
    all.insert(all.end(), other.begin(), other.end());
    const Outcome refused = resumed(all);
    CHECK(refused.code == 2);
    CHECK_MESSAGE(refused.err.find("expected an artifact of this model, these tokens") != std::string::npos,
                  refused.err);
  }
  // Statistics of another run prove nothing.
  Words kept = options;
  kept.insert(kept.end(), {"--sequential", "none", "--keep-stats", files.path("others")});
  REQUIRE(files.compress("other", kept).code == 0);
  kept = options;
  kept.insert(kept.end(), {"--keep-stats", files.path("others")});
  const Outcome others = resumed(kept);
  CHECK(others.code == 2);
  CHECK_MESSAGE(others.err.find("--keep-stats: expected statistics of the complete") != std::string::npos,
                others.err);
  CHECK((read_tree(files.path("out")) == before));
}

namespace {

/// Kills compressions of a golden model and resumes them.
void check_kills(const char* name, int trials) {
  CAPTURE(name);
  const CompressFiles files(name);
  const Words options{"--to", "nvfp4", "--pattern", "2:4"};
  const auto started = std::chrono::steady_clock::now();
  Words kept = options;
  kept.insert(kept.end(), {"--keep-stats", files.path("statistics")});
  REQUIRE(files.compress("whole", kept).code == 0);
  const std::string statistics = read_text(files.path("statistics"));
  const auto length =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - started);
  const auto expected = read_tree(files.path("whole"));
  Words late = files.words("whole", options);
  late.insert(late.end(), {"--resume", "--keep-stats", files.path("late")});
  check_one_line(run_program(late), "--keep-stats: expected statistics of the complete");
  std::mt19937 random(19);
  int kills = 0, taken_up = 0, half = 0;
  for (int trial = 0; trial < trials; ++trial) {
    CAPTURE(trial);
    Words words = files.words("out", options);
    words.push_back("--resume");
    const auto life =
        std::chrono::microseconds(std::uniform_int_distribution<int64_t>(0, length.count())(random));
    {
      Run run(words);
      std::this_thread::sleep_for(life);
      if (run.is_running()) ++kills;
      if (run.is_running()) run.send(SIGKILL);
      run.wait();
    }
    taken_up += fs::exists(files.path("out.compressing") + "/state.json");
    const std::string collected = files.path("out.compressing") + "/statistics.safetensors";
    if (fs::exists(collected)) {
      const bool is_half = read_text(collected) != statistics;
      half += is_half;
      CHECK((run_program({"stats", "inspect", collected, "-q"}).code == (is_half ? 2 : 0)));
    }
    if (fs::exists(files.path("out")) && !fs::is_empty(files.path("out")) &&
        !fs::exists(files.path("out") + "/.twofour-unfinished"))
      CHECK((read_tree(files.path("out")) == expected));
    const Outcome o = run_program(words);
    CHECK_MESSAGE(o.code == 0, o.err);
    CHECK((read_tree(files.path("out")) == expected));
    CHECK_FALSE(fs::exists(files.path("out.compressing")));
    fs::remove_all(files.path("out"));
  }
  CHECK(kills > 0);
  CHECK(taken_up > 0);
  CHECK(half > 0);
}

}  // namespace

TEST_CASE("killed at random moments, compress ends with the same bytes once it is resumed") {
  check_kills("qwen3_moe", 12);
  check_kills("qwen3_next", 12);
  check_kills("deepseek_v4", 8);
  check_kills("nemotron_h", 6);
}

TEST_CASE("the same bytes for any number of threads, and what a dry run says of them") {
  const CompressFiles files("deepseek_v2");
  for (const std::string sequential : {"group", "layer", "none"}) {
    CAPTURE(sequential);
    const Words options{"--to", "nvfp4", "--sequential", sequential};
    Words one = options, three = options;
    one.insert(one.end(), {"-j", "1"});
    three.insert(three.end(), {"-j", "3"});
    const Outcome first = files.compress("one-" + sequential, one);
    REQUIRE_MESSAGE(first.code == 0, first.err);
    REQUIRE(files.compress("three-" + sequential, three).code == 0);
    CHECK((read_tree(files.path("one-" + sequential)) == read_tree(files.path("three-" + sequential))));
  }
  REQUIRE(files.compress("default", {"--to", "nvfp4"}).code == 0);
  CHECK((read_tree(files.path("default")) == read_tree(files.path("one-group"))));
  const Json dry = json_of(files.compress("dry", {"--to", "nvfp4", "--dry-run", "--json"}));
  CHECK_FALSE(fs::exists(files.path("dry")));
  CHECK_FALSE(fs::exists(files.path("dry.compressing")));
  CHECK(dry["compress"]["tokens"] == 1024);
  CHECK(dry["files"][0]["bytes"] ==
        fs::file_size(files.path("one-group") + "/model-00001-of-00001.safetensors"));
  CHECK(dry["compress"]["peak_memory"].get<uint64_t>() > 0);
}

TEST_CASE(
    "compress guided by gradients is proven by its statistics, and the same for any number of threads") {
  const CompressFiles files("qwen3_moe");
  const std::string stats = files.path("stats");
  const Outcome one = files.compress("one", {"--to", "nvfp4", "--guided", "--keep-stats", stats, "-j", "1"});
  REQUIRE_MESSAGE(one.code == 0, one.err);
  REQUIRE(files.compress("three", {"--to", "nvfp4", "--guided", "-j", "3"}).code == 0);
  CHECK((read_tree(files.path("one")) == read_tree(files.path("three"))));
  CHECK_FALSE(fs::exists(files.path("one.compressing")));
  const Outcome proven =
      run_program({"validate", files.path("one"), "--source", files.path("model"), "--stats", stats});
  CHECK_MESSAGE(proven.code == 0, proven.err);
  CHECK(files.compress("one", {"--to", "nvfp4", "--guided", "--keep-stats", stats, "--resume"}).code == 0);
  CHECK(files.compress("one", {"--to", "nvfp4", "--keep-stats", stats, "--resume"}).code == 2);
  CHECK(files.compress("two", {"--to", "nvfp4", "--guided", "--token-weights", stats}).code == 2);
}

TEST_CASE("compress refuses what it cannot do, one message each") {
  const CompressFiles files("llama");
  const auto refused = [&](const Words& words, const std::string& message) {
    CAPTURE(message);
    const Outcome o = run_program(words);
    CHECK(o.code == 2);
    CHECK_MESSAGE(o.err.find(message) != std::string::npos, o.err);
    CHECK_FALSE(fs::exists(files.path("out")));
  };
  const std::string model = files.path("model"), out = files.path("out"),
                    tokens = files.path("tokens.safetensors");
  refused({"compress", model, out, "--to", "nvfp4"}, "expected one of --text, --tokens, found none");
  refused({"compress", model, out, "--to", "nvfp4", "--tokens", tokens, "--text", tokens},
          "expected one of --text, --tokens, found --tokens and --text");
  refused({"compress", model, out, "--tokens", tokens},
          "expected one of --to, --recipe, --bits, --size, found none");
  refused({"compress", model, out, "--tokens", tokens, "--to", "nvfp4", "--recipe", "r.yaml"},
          "--to excludes --recipe");
  refused(
      {"compress", model, out, "--tokens", tokens, "--to", "nvfp4", "--pattern", "2:4", "--budget", "0.5"},
      "--budget: expected --budget-stats beside it, found none");
  const std::string plain = files.path("plain");
  REQUIRE(run_program({"stats", "collect", model, "--tokens", tokens, "-o", plain, "-q"}).code == 0);
  refused(
      {"compress", model, out, "--tokens", tokens, "--to", "v7", "--budget", "0.5", "--budget-stats", plain},
      plain + ": expected fisher_hessian");
  refused({"compress", model, out, "--tokens", tokens, "--to", "v7", "--method", "gptq"},
          "--method: expected joint, wanda or magnitude if weights are pruned, found gptq");
  refused({"compress", model, out, "--tokens", tokens, "--to", "nvfp4", "--include", "nothing"}, "nothing");
  refused(
      {"compress", model, out, "--tokens", tokens, "--to", "nvfp4", "--keep-stats", model + "/config.json"},
      "config.json");
  for (const std::string& kept : {out, out + "/", out + "/stats", out + ".compressing/stats"}) {
    refused({"compress", model, out, "--tokens", tokens, "--to", "nvfp4", "--keep-stats", kept},
            "--keep-stats: expected a file outside of " + out);
  }
  refused({"compress", model, out, "--tokens", tokens, "--to", "nvfp4", "--force", "--token-weights", tokens,
           "--keep-stats", files.path("./tokens.safetensors")},
          "--keep-stats: expected an output that is no input");
  refused({"compress", model, out, "--tokens", tokens, "--to", "nvfp4", "--sequential", "groups"},
          "--sequential: expected group, layer, none, found 'groups'");
  refused({"compress", "hf://org/name", out, "--tokens", tokens, "--to", "nvfp4"}, "download it first");
  // Of a family that the decoder does not know.
  Json config = files.golden.config;
  config["model_type"] = "mamba";
  write_decoder_checkpoint(files.golden, files.scratch / "other", config.dump());
  refused({"compress", files.path("other"), out, "--tokens", tokens, "--to", "nvfp4"},
          "model_type: expected a family that can be run");
  // Beside what an unfinished run left.
  fs::create_directories(files.path("out.compressing"));
  std::ofstream(files.path("out.compressing") + "/mine") << "x";
  refused({"compress", model, out, "--tokens", tokens, "--to", "nvfp4"},
          "expected no folder, found one that twofour did not create");
  refused({"compress", model, out, "--tokens", tokens, "--to", "nvfp4", "--resume"},
          "expected no folder, found one that twofour did not create");
  CHECK(fs::exists(files.path("out.compressing") + "/mine"));
  fs::remove_all(files.path("out.compressing"));
  // Weights that are not finite, before any layer is whole.
  fs::copy(files.path("model"), files.path("broken"));
  for (const auto& file : fs::directory_iterator(files.path("broken"))) {
    if (file.path().extension() != ".safetensors") continue;
    std::string bytes = read_text(file.path());
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    std::fill(bytes.begin() + static_cast<ptrdiff_t>(8 + header), bytes.end(), '\xFF');
    write_text(file.path(), bytes);
  }
  refused({"compress", files.path("broken"), out, "--tokens", tokens, "--to", "nvfp4"}, "finite");
  CHECK_FALSE(fs::exists(files.path("out.compressing")));
}

}  // namespace cli_compress_test
