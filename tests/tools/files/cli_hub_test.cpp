// A checkpoint behind hf:// through the commands: what they print and write is what they do of the same on
// the disk.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/hub/hub_server.h"
#include "tests/support/message.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace cli_hub_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

constexpr const char* kToken = "hf_very_secret";
constexpr const char* kUrl = "hf://org/name";
constexpr const char* kConfig = R"({"model_type": "qwen3_moe", "num_experts": 4, "num_hidden_layers": 3,
  "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}})";

/// Three layers of experts, a file each, behind a token.
struct Fixture {
  Fixture() {
    std::vector<Tensors> shards;
    for (int layer = 0; layer < 3; ++layer) {
      Tensors tensors;
      const std::string name = "model.layers." + std::to_string(layer) + ".mlp.experts";
      add_experts(tensors, name, random_experts(4, 64, 128, static_cast<unsigned>(layer + 1)));
      shards.push_back(std::move(tensors));
    }
    write_checkpoint(source(), shards, kConfig);
    write_text(source() / "tokenizer_config.json", "{}");
    server.emplace("org/name", source());
    server->demand(kToken);
    fs::create_directory(scratch / "temporary");
  }
  fs::path source() const { return scratch / "source"; }
  std::vector<std::string> environment() const {
    return {"HF_ENDPOINT=" + server->endpoint(),
            std::string("HF_TOKEN=") + kToken,
            "HF_HOME=" + scratch.path.string(),
            "XDG_CACHE_HOME=" + (scratch / "home").string(),
            "no_proxy=127.0.0.1",
            "TMPDIR=" + (scratch / "temporary").string()};
  }
  /// Runs the program; the token must not show, and no temporary file stay.
  Outcome run(const std::vector<std::string>& arguments) const {
    const Outcome o = run_program(arguments, environment());
    CHECK((o.out + o.err).find(kToken) == std::string::npos);
    CHECK((o.out + o.err).find("X-Signature") == std::string::npos);
    CHECK(fs::is_empty(scratch / "temporary"));
    return o;
  }
  std::string path(const std::string& name) const { return (scratch / name).string(); }
  uint64_t largest_file() const {
    uint64_t largest = 0;
    for (const auto& [name, bytes] : files_below(source())) largest = std::max(largest, bytes);
    return largest;
  }

  Scratch scratch;
  std::optional<HubServer> server;
};

std::string with(std::string text, const std::string& name, const std::string& other) {
  for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + other.size()))
    text.replace(at, name.size(), other);
  return text;
}

/// Two artifacts are equal, but for where twofour.json says that the source is.
void check_same_artifact(const fs::path& local, const fs::path& remote) {
  REQUIRE(fs::exists(remote));
  for (const auto& [name, size] : files_below(local)) {
    if (name != "twofour.json") CHECK_MESSAGE(same_contents(local / name, remote / name), name);
  }
  CHECK(files_below(local).size() == files_below(remote).size());
  Json a = parse_json("a", read_text(local / "twofour.json"));
  const std::string text = read_text(remote / "twofour.json");
  CHECK(text.find(kToken) == text.npos);
  Json b = parse_json("b", text);
  const Json note = b.at("source").at("remote");
  CHECK(note.at("repository") == "org/name");
  CHECK(note.at("commit") == HubServer::kCommit);
  CHECK(b.at("source").at("content_xxh3_128") == a.at("source").at("content_xxh3_128"));
  CHECK(b.at("files") == a.at("files"));
}

bool has_weights(const fs::path& folder) {
  if (!fs::exists(folder)) return false;
  const auto files = files_below(folder);
  return std::any_of(files.begin(), files.end(),
                     [](const auto& f) { return f.first.find(".safetensors") != std::string::npos; });
}

/// Ends a conversion by a signal while it waits for its third file, and resumes it.
void end_and_resume(int signal, int code) {
  Fixture f;
  REQUIRE(
      f.run({"convert", f.source().string(), f.path("local"), "--to", "v7", "-q", "--max-shard-size", "60KB"})
          .code == 0);
  std::atomic<bool> stops{true}, stopped{false};
  std::atomic<int> ranges{0};
  f.server->set_fault([&](const HubRequest& r, const ServerAnswer&) -> std::optional<ServerAnswer> {
    if (!r.to_storage || ++ranges < 6) return std::nullopt;  // three headers and two files
    while (stops) {
      stopped = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return std::nullopt;
  });
  const std::vector<std::string> words = {
      "convert", kUrl, f.path("remote"), "--to",          "v7",
      "-j",      "1",  "--cache",        f.path("cache"), "--max-shard-size",
      "60KB",    "-q"};
  {
    Run run(words, f.environment());
    for (int i = 0; i < 2000 && !stopped && run.is_running(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(stopped);
    run.send(signal);
    CHECK(run.wait().code == code);
  }
  stops = false;
  f.server->set_fault(nullptr);
  CHECK(fs::exists(f.path("remote/.twofour-unfinished")));
  CHECK(has_weights(f.path("cache")));
  if (signal == SIGKILL) {  // which leaves its temporary folder
    fs::remove_all(f.path("temporary"));
    fs::create_directory(f.path("temporary"));
  }
  f.server->forget_requests();
  std::vector<std::string> again = words;
  again.push_back("--resume");
  const Outcome o = f.run(again);
  CHECK_MESSAGE(o.code == 0, o.err);
  check_same_artifact(f.path("local"), f.path("remote"));
  const auto requests = f.server->requests();
  CHECK(std::count_if(requests.begin(), requests.end(), [](const HubRequest& r) { return r.to_storage; }) ==
        4);  // three headers and the file that was missing
}

}  // namespace

TEST_CASE("inspect, lint and diff by headers say of a URL what they say of a directory") {
  const Fixture f;
  const std::string local = f.source().string();
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"inspect"},
           {"inspect", "--json"},
           {"inspect", "--at", "model.layers.0.mlp.experts.0.down_proj.weight:7"},
           {"inspect", "--values", "model.layers.2.mlp.experts.3.up_proj[5, 0:16]"},
           {"lint", "--headers-only"}}) {
    std::vector<std::string> here = words, there = words;
    here.push_back(local);
    there.push_back(kUrl);
    const Outcome a = f.run(here), b = f.run(there);
    CHECK(a.code == b.code);
    CHECK(with(a.out, local, kUrl) == b.out);
    CHECK_MESSAGE(with(a.err, local, kUrl) == b.err, b.err);
  }
  const Json diff = json_of(f.run({"diff", "--headers-only", "--json", local, kUrl}));
  CHECK(diff.at("headers_only") == true);
  CHECK(diff.at("counts").at("not-read") == 36);
  CHECK(f.run({"diff", "--headers-only", kUrl, local}).code == 0);
}

TEST_CASE("commands that need all weights of a URL say so") {
  const Fixture f;
  check_one_line(f.run({"lint", kUrl}), "lint reads all weights of it without --headers-only");
  check_one_line(f.run({"diff", kUrl, f.source().string()}), "without --headers-only; download it first");
  check_one_line(f.run({"inspect", "--stats", kUrl}),
                 "--stats and --html read all weights; download it first");
  check_one_line(f.run({"validate", kUrl}), "expected a path: URLs are read by inspect");
  check_one_line(f.run({"diff", "--headers-only", "--fail-on", "snr<20", f.source().string(), kUrl}),
                 "expected classes with --headers-only");
  CHECK(f.server->requests().empty());
}

TEST_CASE("a URL that cannot be read is one line, and nothing is written") {
  const Fixture f;
  check_one_line(f.run({"inspect", "hf://org/other"}),
                 "hf://org/other@main: expected a repository that can be read");
  check_one_line(f.run({"inspect", "hf://name"}), "expected hf://org/name[@revision][/path]");
  check_one_line(f.run({"convert", "hf://org/other", f.path("out"), "--to", "v7"}), "found none (404)");
  CHECK(!fs::exists(f.path("out")));
  check_one_line(run_program({"inspect", "http://127.0.0.1/x"}, {"HF_ENDPOINT=https://127.0.0.1:1"}),
                 "expected https://, found http://");
}

TEST_CASE("convert downloads shard by shard and writes what it writes of a directory") {
  const Fixture f;
  REQUIRE(f.run({"convert", f.source().string(), f.path("local"), "--to", "v7", "-q"}).code == 0);
  for (const char* jobs : {"1", "4"}) {
    const std::string out = f.path(std::string("remote") + jobs);
    const uint64_t size = (jobs[0] - '0' > 1 ? 3 : 1) * f.largest_file();
    const Outcome o = f.run({"convert", kUrl, out, "--to", "v7", "-j", jobs, "--cache", f.path("cache"),
                             "--cache-size", std::to_string(size)});
    CHECK_MESSAGE(o.code == 0, o.err);
    check_same_artifact(f.path("local"), out);
    CHECK(!has_weights(f.path("cache")));
  }
  REQUIRE(f.run({"convert", kUrl, f.path("usual"), "--to", "v7", "-q"}).code == 0);  // in XDG_CACHE_HOME
  CHECK(fs::exists(f.path("home/twofour")));
  CHECK(f.run({"validate", f.path("usual"), "--source", f.source().string(), "-q"}).code == 0);
  check_one_line(f.run({"convert", kUrl, f.path("small"), "--to", "v7", "--cache", f.path("cache"),
                        "--cache-size", "1000"}),
                 "--cache-size: expected space for hf://org/name@");
}

TEST_CASE("nothing is written to a URL, and downloads are apart from what is written") {
  const Fixture f;
  const fs::path before = fs::current_path();
  fs::current_path(f.scratch.path);
  check_one_line(f.run({"convert", f.source().string(), "hf://org/out", "--to", "v7"}),
                 "hf://org/out: expected a directory of this machine, found a URL");
  check_one_line(f.run({"convert", kUrl, "out", "--to", "v7", "--cache", "hf://org/cache"}),
                 "--cache: expected a directory of this machine, found hf://org/cache");
  CHECK(!fs::exists("hf:"));
  for (const char* cache : {"out", "out/cache", "./out/../out/cache"}) {
    check_one_line(f.run({"convert", kUrl, "out", "--to", "v7", "--cache", cache}),
                   "--cache: expected a directory outside of out, which is to be written");
  }
  CHECK(!fs::exists("out"));
  fs::current_path(before);
}

TEST_CASE("without a folder for temporary files a URL is one error") {
  const Fixture f;
  std::vector<std::string> environment = f.environment();
  environment.push_back("TMPDIR=" + f.path("none"));
  check_one_line(run_program({"inspect", kUrl}, environment),
                 "TMPDIR: expected a directory, found " + f.path("none"));
}

TEST_CASE("a dry run downloads nothing") {
  const Fixture f;
  const Outcome o = f.run({"convert", kUrl, f.path("out"), "--to", "v7", "--dry-run"});
  CHECK(o.code == 0);
  CHECK(!fs::exists(f.path("home")));
  CHECK(!fs::exists(f.path("out")));
}

TEST_CASE("a conversion that was killed while it downloaded goes on") {
  end_and_resume(SIGKILL, 128 + SIGKILL);
}

TEST_CASE("Ctrl-C ends a conversion while it downloads, and it goes on") { end_and_resume(SIGINT, 130); }

TEST_CASE("of a server that does not say what files are nothing is kept, resumed or planned") {
  for (const bool says : {false, true}) {
    Fixture f;
    enum class Last { kComes, kIsGone, kWaits };
    std::atomic<Last> last{Last::kIsGone};
    std::atomic<int> asked{0};
    std::atomic<bool> waits{false};
    const HttpServer plain([&](const ServerRequest& request) {
      const fs::path file = f.source() / request.path.substr(3);
      ServerAnswer gone;
      gone.status = 404;
      if (!fs::exists(file)) return gone;
      // The third file is looked at, and its header read, before it is downloaded.
      const bool is_last = file.filename().string().starts_with("model-00003") && ++asked > 2;
      if (is_last && last == Last::kIsGone) return gone;
      while (is_last && last == Last::kWaits) {
        waits = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      ServerAnswer answer = answer_range(request, read_text(file));
      if (says) answer.fields.push_back("ETag: \"a\"");
      return answer;
    });
    const std::string url = plain.origin() + "/m/";
    std::vector<std::string> words = {"convert", url,       f.path("out"),      "--to",
                                      "v7",      "--cache", f.path("cache"),    "-q",
                                      "-j",      "1",       "--max-shard-size", "60KB"};
    CHECK(f.run(words).code == 2);
    CHECK(fs::exists(f.path("out")) == says);
    CHECK(has_weights(f.path("cache")) == says);
    last = Last::kComes;
    const Outcome planned = f.run({"plan", url, f.path("planned"), "--to", "v7", "-o", f.path("plan"), "-q"});
    CHECK(planned.code == (says ? 0 : 2));
    CHECK(fs::exists(f.path("plan")) == says);
    if (!says) check_one_line(planned, "m: expected a server that sends ETag or Last-Modified");
    // What a run leaves that is killed.
    std::vector<std::string> resumed = words;
    resumed.push_back("--resume");
    last = Last::kWaits;
    asked = 0;
    {
      Run run(says ? resumed : words, f.environment());
      while (run.is_running() && !waits) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      CHECK(waits);
      run.send(SIGKILL);
      run.wait();
      last = Last::kComes;
    }
    fs::remove_all(f.path("temporary"));
    fs::create_directory(f.path("temporary"));
    CHECK(fs::exists(f.path("out/.twofour-unfinished")));
    const Outcome o = f.run(resumed);
    if (says) CHECK_MESSAGE(o.code == 0, o.err);
    if (!says) check_one_line(o, "m: expected a server that sends ETag or Last-Modified");
    words.push_back("--force");
    const Outcome again = f.run(words);
    CHECK_MESSAGE(again.code == 0, again.err);
    CHECK(!has_weights(f.path("cache")));
  }
}

TEST_CASE("a resumed run refuses a repository that changed") {
  Fixture f;
  std::vector<std::string> words = {"convert", kUrl,      f.path("out"),      "--to",
                                    "v7",      "--cache", f.path("cache"),    "-q",
                                    "-j",      "1",       "--max-shard-size", "60KB"};
  std::atomic<int> asked{0};
  f.server->set_fault([&](const HubRequest& r, const ServerAnswer&) -> std::optional<ServerAnswer> {
    if (!r.to_storage || ++asked < 6) return std::nullopt;  // three headers and two files
    ServerAnswer gone;
    gone.status = 404;
    return gone;
  });
  const Outcome broken = f.run(words);
  CHECK(broken.code == 2);
  contains(broken.err, "--resume continues from there");
  CHECK(has_weights(f.path("cache")));
  f.server->set_fault(nullptr);
  words.push_back("--resume");
  const std::string before = read_text(f.source() / "tokenizer_config.json");
  f.server->change("tokenizer_config.json", "{\"a\": 1}");
  check_one_line(f.run(words), "tokenizer_config.json");
  f.server->change("tokenizer_config.json", before);
  const Outcome o = f.run(words);
  CHECK_MESSAGE(o.code == 0, o.err);
  CHECK(!has_weights(f.path("cache")));
}

TEST_CASE("tasks of a plan read the commit that was planned") {
  Fixture f;
  REQUIRE(
      f.run({"convert", f.source().string(), f.path("local"), "--to", "v7", "-q", "--max-shard-size", "60KB"})
          .code == 0);
  REQUIRE(f.run({"plan", kUrl, f.path("out"), "--to", "v7", "-o", f.path("plan.json"), "--max-shard-size",
                 "60KB", "-q"})
              .code == 0);
  const std::string plan = read_text(f.path("plan.json"));
  contains(plan, std::string("\"source\": \"hf://org/name@") + HubServer::kCommit + "\"");
  CHECK(plan.find(kToken) == plan.npos);
  CHECK(!fs::exists(f.path("home")));  // nothing was downloaded
  for (const char* task : {"0/2", "1/2"}) {
    const Outcome o =
        f.run({"convert", "--plan", f.path("plan.json"), "--task", task, "--cache", f.path("cache"), "-q"});
    CHECK_MESSAGE(o.code == 0, o.err);
  }
  const Outcome merged = f.run({"merge", f.path("out"), "-q"});
  CHECK_MESSAGE(merged.code == 0, merged.err);
  check_same_artifact(f.path("local"), f.path("out"));
}

TEST_CASE("without libcurl a URL is one error") {
  const Fixture f;
  std::vector<std::string> environment = f.environment();
  environment.push_back(std::string("LD_PRELOAD=") + TWOFOUR_FAULT_SHIM);
  environment.push_back("TWOFOUR_FAULT=dlopen short 0");
  check_one_line(run_program({"inspect", kUrl}, environment), "install libcurl");
  CHECK(run_program({"inspect", f.source().string()}, environment).code == 0);
}

}  // namespace cli_hub_test
