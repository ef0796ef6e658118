#include <doctest/doctest.h>
#include <fmt/format.h>

#include <signal.h>

#include <fstream>

#include "lib/base/io/file.h"
#include "tests/support/conversion.h"
#include "tests/support/faults/injected.h"
#include "tests/support/models/decoder_files.h"
#include "tests/support/outcome.h"

namespace cli_collect_test {

using namespace twofour;

namespace {

struct CollectFiles : DecoderFiles {
  CollectFiles() : DecoderFiles("qwen3_moe") { write_calibration("tokens.safetensors"); }
  Outcome collect(std::vector<std::string> more) const {
    std::vector<std::string> words{"stats", "collect", path("model"), "-o", path("stats.safetensors")};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  }
};

}  // namespace

TEST_CASE("what stats collect writes serves quantize --stats of the same model") {
  const CollectFiles files;
  const Json json = json_of(
      files.collect({"--tokens", files.path("tokens.safetensors"), "--held-out", "1", "--json", "-q"}));
  CHECK(json["tokens"] == "768");
  CHECK_FALSE(json["entries"].empty());
  CHECK_FALSE(json["heldout_entries"].empty());
  const Json check = parse_json(
      "stdout",
      run_program({"stats", "check", files.path("stats.safetensors"), files.path("model"), "--json"}).out);
  CHECK(check["served"] == check["linears"]);
  CHECK(check["weights"] == "same");
  const std::vector<std::string> eval{
      "eval",   "",  "--tokens", files.path("tokens.safetensors"), "--against", files.path("model"),
      "--json", "-q"};
  std::vector<double> divergences;
  for (const bool by_statistics : {false, true}) {
    const std::string out = files.path(by_statistics ? "solved" : "rounded");
    std::vector<std::string> words{"quantize", files.path("model"), out, "--pattern", "2:4", "-q"};
    if (by_statistics) words.insert(words.end(), {"--stats", files.path("stats.safetensors")});
    const Outcome made = run_program(words);
    REQUIRE_MESSAGE(made.code == 0, made.err);
    std::vector<std::string> own = eval;
    own[1] = out;
    divergences.push_back(json_of(run_program(own))["against"]["divergence"].get<double>());
  }
  // Weights that are chosen by these inputs say more nearly what the model said of them.
  CHECK(divergences[1] < divergences[0]);
}

TEST_CASE("stats collect of a text, its dry run, and an earlier file") {
  const CollectFiles files;
  std::ofstream(files.scratch / "text") << std::string(100, 'A') + "BCD";
  const Json dry =
      json_of(files.collect({"--text", files.path("text"), "--context", "16", "--dry-run", "--json"}));
  CHECK(dry["windows"] == 7);
  CHECK(dry["tokens"] == 103);
  CHECK_FALSE(std::filesystem::exists(files.scratch / "stats.safetensors"));
  REQUIRE(files.collect({"--text", files.path("text"), "--context", "16", "-q"}).code == 0);
  CHECK(std::filesystem::file_size(files.scratch / "stats.safetensors") >
        dry["bytes_written"].get<uint64_t>());
  check_one_line(files.collect({"--text", files.path("text"), "-q"}),
                 "expected no file, found a statistics file");
  CHECK(files.collect({"--text", files.path("text"), "-q", "--force"}).code == 0);
}

TEST_CASE("stats collect with gradients serves a budget, states its disk space, and refuses hybrids") {
  const CollectFiles files;
  const std::string tokens = files.path("tokens.safetensors"), stats = files.path("stats.safetensors");
  const Json dry = json_of(files.collect({"--tokens", tokens, "--fisher", "--dry-run", "--json"}));
  CHECK(dry["work_bytes"].get<uint64_t>() == 4 * 4 * 32 * dry["tokens"].get<uint64_t>());
  CHECK_FALSE(json_of(files.collect({"--tokens", tokens, "--dry-run", "--json"})).contains("work_bytes"));
  const Json json = json_of(files.collect({"--tokens", tokens, "--fisher", "--guided", "--json", "-q"}));
  CHECK(json["weighting"] == "guided");
  for (const Json& entry : json["entries"]) CHECK(entry["fisher"] == true);
  CHECK(run_program({"stats", "check", stats, files.path("model"), "-q"}).code <= 1);
  const Outcome made = run_program({"quantize", files.path("model"), files.path("half"), "--pattern", "2:4",
                                    "--stats", stats, "--budget", "0.5", "-q"});
  CHECK_MESSAGE(made.code == 0, made.err);

  const DecoderFiles hybrid("qwen3_next");
  for (const char* option : {"--fisher", "--guided"}) {
    const Outcome refused = run_program({"stats", "collect", hybrid.path("model"), "--tokens", tokens, option,
                                         "-o", files.path("other.safetensors")});
    CHECK(refused.code == 2);
    check_one_line(refused, "found qwen3_next, whose linear attention has none");
  }
}

TEST_CASE("killed before any write or rename, collect and merge leave no half file that looks whole") {
  if (!can_inject()) return;
  const CollectFiles files;
  std::ofstream(files.scratch / "text") << std::string(100, 'A') + "BCD";
  std::ofstream(files.scratch / "other") << std::string(50, 'D') + "CBA";
  for (const std::string name : {"text", "other"}) {
    REQUIRE(run_program({"stats", "collect", files.path("model"), "--text", files.path(name), "-o",
                         files.path(name + ".stats"), "-q"})
                .code == 0);
  }
  std::filesystem::create_directory(files.path("to"));
  const std::string out = files.path("to/out"), left = files.path("to/" + temporary_name("out"));
  const std::vector<std::string> commands[] = {
      {"stats", "collect", files.path("model"), "--text", files.path("text"), "-o", out, "-q"},
      {"stats", "merge", out, files.path("text.stats"), files.path("other.stats"), "-q"},
  };
  for (const auto& words : commands) {
    CAPTURE(words[1]);
    REQUIRE(run_program(words).code == 0);
    const std::string whole = read_text(out);
    std::filesystem::remove(out);
    int killed = 0, half = 0;
    for (const std::string call : {"pwrite", "rename"}) {
      for (int n = 1;; n += 1 + n / 4) {
        CAPTURE(n);
        const Outcome o = run_program(words, injected(fmt::format("{} kill {}", call, n)));
        if (o.code == 0) break;
        ++killed;
        CHECK(o.code == 128 + SIGKILL);
        CHECK_FALSE(std::filesystem::exists(out));
        if (read_text(left) == whole) continue;
        ++half;
        CHECK(run_program({"stats", "inspect", left}).code == 2);
      }
      CHECK(read_tree(files.path("to")) == std::map<std::string, std::string>{{"out", whole}});
      std::filesystem::remove(out);
    }
    CHECK(half > 3);
    CHECK(killed > half);
  }
}

TEST_CASE("stats refuses options of collect elsewhere, and what collect lacks, with one line") {
  const CollectFiles files;
  std::ofstream(files.path("one")) << "A";
  check_one_line(files.collect({"--text", files.path("one")}),
                 "one: expected a text of two tokens and more, found none");
  check_one_line(files.collect({}), "expected one of --tokens and --text, found none");
  check_one_line(files.collect({"--tokens", files.path("tokens.safetensors"), "--held-out", "4"}),
                 "expected more than the 4 windows of --held-out, found 4");
  check_one_line(
      run_program({"stats", "collect", files.path("model"), "--tokens", files.path("tokens.safetensors")}),
      "expected --output, found none");
  check_one_line(run_program({"stats", "inspect", files.path("model"), "--held-out", "1"}),
                 "--held-out: expected with collect, found with inspect");
  check_one_line(run_program({"stats", "inspect", files.path("model"), "--fisher"}),
                 "--fisher: expected with collect, found with inspect");
}

}  // namespace cli_collect_test
