#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "lib/base/io/file.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/faults/planted.h"
#include "tests/support/hub/hub_server.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

// Repairs of checkpoints on a server, and their proofs.

namespace cli_repair_url_test {

using namespace twofour;

namespace fs = std::filesystem;

namespace {

using Words = std::vector<std::string>;
constexpr const char* kUrl = "hf://org/name";

/// A checkpoint in several files that lacks an input scale, and is served.
struct Served {
  explicit Served(const std::string& prefix = "") {
    Save save = base_checkpoint(Base::kMoe);
    write_planted(save, scratch / "original");
    save.erase("model.layers.1.mlp.experts.3.up_proj.input_scale");
    for (auto& [file, tensors] : save.shards) {
      for (TensorData& t : tensors) t.name = prefix + t.name;
    }
    write_planted(save, scratch / "broken");
    server.emplace("org/name", scratch / "broken");
  }
  std::string path(const std::string& name) const { return (scratch / name).string(); }
  Words environment() const {
    return {"HF_ENDPOINT=" + server->endpoint(), "HF_HOME=" + path("home"),
            "HF_TOKEN=", "XDG_CACHE_HOME=" + path("home"), "no_proxy=127.0.0.1"};
  }
  Outcome run(const Words& words) const { return run_program(words, environment()); }
  /// What is written is what the directory gives, and it is proven by the directory.
  void check_same(const std::string& out, const Words& donor = {}) const {
    Words local = {"repair", path("broken"), path("local"), "-q", "--max-shard-size", "100kB"},
          proof = {"validate", out, "--source", path("broken"), "-q"};
    local.insert(local.end(), donor.begin(), donor.end());
    proof.insert(proof.end(), donor.begin(), donor.end());
    const Outcome o = run_program(local), p = run_program(proof);
    CHECK_MESSAGE(o.code == 0, o.err);
    CHECK_MESSAGE(p.code == 0, p.out, p.err);
    size_t files = 0;
    for (const auto& entry : fs::directory_iterator(path("local"))) {
      const std::string name = entry.path().filename().string();
      ++files;
      if (name != kManifestName)
        CHECK_MESSAGE(read_text(entry.path()) == read_text(fs::path(out) / name), name);
    }
    CHECK(files > 4);
  }

  Scratch scratch;
  std::optional<HubServer> server;
};

}  // namespace

TEST_CASE("repair of a URL gives the bytes of a directory, with a donor and with prefixed names, too") {
  for (const std::string prefix : {"", "_orig_mod."}) {
    CAPTURE(prefix);
    const Served f(prefix);
    const Words donor = prefix.empty() ? Words{} : Words{"--donor", f.path("original")};
    Words words = {"repair", kUrl, f.path("out"), "-q", "--max-shard-size", "100kB"};
    words.insert(words.end(), donor.begin(), donor.end());
    const Outcome o = f.run(words);
    REQUIRE_MESSAGE(o.code == 0, o.err);
    f.check_same(f.path("out"), donor);
  }
}

TEST_CASE("a dry run reads the headers and the scales, but no file as a whole") {
  const Served f;
  const Outcome o = f.run({"repair", kUrl, f.path("out"), "--dry-run"});
  CHECK_MESSAGE(o.code == 0, o.err);
  CHECK(!fs::exists(f.path("out")));
  for (const HubRequest& r : f.server->requests()) {
    if (r.to_storage) CHECK(!r.request.field("range").empty());
  }
}

TEST_CASE("a repair of a URL that was killed or interrupted goes on") {
  for (const int signal : {SIGKILL, SIGINT}) {
    CAPTURE(signal);
    Served f;
    std::atomic<bool> stops{true}, stopped{false};
    std::atomic<int> asked{0};
    f.server->set_fault([&](const HubRequest& r, const ServerAnswer& usual) -> std::optional<ServerAnswer> {
      // Headers come by ranges of at most 256 KiB, then one file after the other.
      constexpr size_t kRange = 256u << 10;
      if (!r.to_storage || usual.body.size() <= kRange || ++asked < 2) return std::nullopt;
      while (stops) {
        stopped = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      return std::nullopt;
    });
    const Words words = {"repair", kUrl, f.path("out"), "-q", "-j", "1", "--max-shard-size", "100kB"};
    {
      Run run(words, f.environment());
      for (int i = 0; i < 2000 && !stopped && run.is_running(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      CHECK(stopped);
      run.send(signal);
      CHECK(run.wait().code == (signal == SIGINT ? 130 : 128 + SIGKILL));
    }
    stops = false;
    f.server->set_fault(nullptr);
    CHECK(run_program({"validate", f.path("out"), "-q"}).code == 2);  // nothing, or unfinished
    Words again = words;
    again.push_back("--resume");
    const Outcome o = f.run(again);
    REQUIRE_MESSAGE(o.code == 0, o.err);
    f.check_same(f.path("out"));
  }
}

TEST_CASE("a repository that changes between two runs is not mixed") {
  Served f;
  REQUIRE(f.run({"repair", kUrl, f.path("out"), "-q"}).code == 0);
  f.server->change("config.json", "{}");
  CHECK(f.run({"repair", kUrl, f.path("out"), "-q", "--resume"}).code == 2);
}

TEST_CASE("a donor is a directory, and the proof reads a directory or a URL") {
  Served f;
  check_one_line(f.run({"repair", f.path("broken"), f.path("out"), "--donor", kUrl}),
                 "a donor is read from a directory");
  REQUIRE(f.run({"repair", f.path("broken"), f.path("out"), "-q"}).code == 0);
  check_one_line(f.run({"validate", f.path("out"), "--source", kUrl, "--donor", kUrl}),
                 "a donor is read from a directory");
  uint64_t largest = 0;
  for (const auto& entry : fs::directory_iterator(f.path("broken")))
    largest = std::max<uint64_t>(largest, entry.file_size());
  for (const uint64_t size : {uint64_t{1} << 30, 4 * largest}) {
    CAPTURE(size);
    const Words words = {"--cache", f.path("cache"), "--cache-size", std::to_string(size), "-j", "1"};
    Words proof = {"validate", f.path("out"), "--source", kUrl},
          again = {"repair", kUrl, f.path("again"), "-q", "--force"};
    proof.insert(proof.end(), words.begin(), words.end());
    again.insert(again.end(), words.begin(), words.end());
    const Outcome o = f.run(proof), r = f.run(again);
    CHECK_MESSAGE(o.code == 0, o.out, o.err);
    CHECK_MESSAGE(o.out.find("hf://org/name: all ") != o.out.npos, o.out);
    REQUIRE_MESSAGE(r.code == 0, r.out, r.err);
    CHECK(run_program({"validate", f.path("again"), "--source", f.path("broken"), "-q"}).code == 0);
    for (const auto& entry : fs::recursive_directory_iterator(f.path("cache")))
      CHECK_MESSAGE(entry.path().extension() != ".safetensors", entry.path().string());
  }
  check_one_line(f.run({"validate", f.path("out"), "--source", kUrl, "--cache", f.path("cache"),
                        "--cache-size", "1000"}),
                 "--cache-size: expected space for hf://org/name@");
  // Another file on the server is found.
  const std::string name = "tokenizer_config.json";
  f.server->change(name, "{}");
  const Outcome changed = f.run({"validate", f.path("out"), "--source", kUrl});
  CHECK(changed.code == 1);
  CHECK_MESSAGE(changed.out.find(name) != changed.out.npos, changed.out);
}

}  // namespace cli_repair_url_test
