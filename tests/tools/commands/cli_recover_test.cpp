#include <doctest/doctest.h>

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "lib/base/io/file.h"
#include "tests/support/conversion.h"
#include "tests/support/models/decoder_files.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"

namespace cli_recover_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

struct RecoverFiles : DecoderFiles {
  explicit RecoverFiles(const std::string& name) : DecoderFiles(name) {
    write_calibration("tokens.safetensors");
  }
  Outcome compress(const std::string& out, const Words& more) const {
    Words all{"compress", path("model"), path(out), "--tokens", path("tokens.safetensors"), "-q"};
    all.insert(all.end(), more.begin(), more.end());
    return run_program(all);
  }
  Outcome validate(const std::string& out, const std::string& statistics = "") const {
    Words all{"validate", path(out), "--source", path("model")};
    if (!statistics.empty()) all.insert(all.end(), {"--stats", path(statistics)});
    return run_program(all);
  }
};

}  // namespace

TEST_CASE("compress --recover writes codes as without it, is proven, and is the same for any threads") {
  struct Case {
    const char *family, *name;
    Words words;
  };
  int learned = 0;
  for (const Case& c : {Case{"llama", "nvfp4", {"--to", "nvfp4", "--pattern", "2:4"}},
                        Case{"llama", "ct", {"--to", "nvfp4", "--dialect", "compressed-tensors"}},
                        Case{"qwen3_moe", "v7", {"--to", "v7"}}, Case{"qwen3_moe", "g8", {"--to", "g8"}},
                        Case{"llama", "fp8", {"--to", "fp8"}},
                        Case{"llama", "none", {"--to", "nvfp4", "--sequential", "none"}}}) {
    CAPTURE(std::string(c.name));
    const RecoverFiles files(c.family);
    Words words = c.words;
    REQUIRE(files.compress("plain", words).code == 0);
    words.insert(words.end(), {"--recover", "6"});
    Words first = words;
    first.insert(first.end(), {"-j", "1", "--keep-stats", files.path("stats"), "--json"});
    const Outcome made = files.compress("one", first);
    REQUIRE_MESSAGE(made.code == 0, made.err);
    words.insert(words.end(), {"-j", "2"});
    REQUIRE(files.compress("two", words).code == 0);
    CHECK((read_tree(files.path("one")) == read_tree(files.path("two"))));
    CHECK_FALSE(fs::exists(files.path("one.compressing")));
    const Json recovery = json_of(made)["recovery"];
    CHECK(recovery["device"] == "cpu");
    if (recovery["kept_pass"] == 0) {  // nothing but twofour.json, which says so
      auto one = read_tree(files.path("one")), plain = read_tree(files.path("plain"));
      CHECK(one.extract("twofour.json").mapped() != plain.extract("twofour.json").mapped());
      CHECK((one == plain));
      CHECK(recovery["loss_after"] == recovery["loss_before"]);
      CHECK(files.validate("one", "stats").code == 0);
      continue;
    }
    ++learned;
    CHECK(recovery["loss_after"].get<double>() < recovery["loss_before"].get<double>());
    CHECK(recovery["held_out_tokens"] == 256);

    // Only norms and global scales differ.
    const ReadTensors one = read_tensors(files.path("one")), plain = read_tensors(files.path("plain"));
    REQUIRE(one.size() == plain.size());
    int norms = 0, scales = 0;
    for (const auto& [name, tensor] : plain) {
      CAPTURE(name);
      const bool is_norm = name.ends_with("norm.weight"),
                 is_scale = name.ends_with("global_scale") || name.ends_with("weight_scale_2");
      if (one.at(name) == tensor) continue;
      CHECK((is_norm || is_scale));
      (is_norm ? norms : scales) += 1;
    }
    CHECK(norms > 0);
    CHECK((scales > 0) == (c.name != std::string("fp8")));
    CHECK(norms + scales == recovery["tensors"].get<int>());

    const Outcome proven = files.validate("one", "stats");
    CHECK_MESSAGE(proven.code == 0, proven.out, proven.err);
    CHECK_MESSAGE(proven.out.find("that recovery learned are held by hash") != std::string::npos, proven.out);
    const Outcome unsolved = files.validate("one");
    CHECK_MESSAGE(unsolved.code == 0, unsolved.out, unsolved.err);
    CHECK(run_program({"validate", files.path("one")}).code == 0);

    // The held-out window is the last; the model that is read is the one that was learned.
    const Json eval =
        json_of(run_program({"eval", files.path("one"), "--tokens", files.path("tokens.safetensors"),
                             "--against", files.path("model"), "--json", "-q"}));
    const Json before =
        json_of(run_program({"eval", files.path("plain"), "--tokens", files.path("tokens.safetensors"),
                             "--against", files.path("model"), "--json", "-q"}));
    CHECK(eval["against"]["divergence"].get<double>() < before["against"]["divergence"].get<double>());
  }
  CHECK(learned >= 4);
}

TEST_CASE("validate finds a learned norm, a learned scale and a record that were changed") {
  const RecoverFiles files("qwen3_moe");
  REQUIRE(files.compress("out", {"--to", "v7", "--recover", "2"}).code == 0);
  const Checkpoint made = Checkpoint::open(files.path("out"));
  const fs::path file = files.scratch / "out" / "model-00001-of-00001.safetensors";
  for (const char* name :
       {"model.layers.1.input_layernorm.weight", "model.layers.1.mlp.experts.w2_global_scale"}) {
    CAPTURE(name);
    const size_t tensor = *made.find(name);
    const uint64_t at = made.shard_of(tensor).data_begin + made.tensors()[tensor].begin;
    flip_bit(file, at, 1);
    const Outcome spoilt = files.validate("out");
    CHECK(spoilt.code == 1);
    CHECK_MESSAGE(spoilt.out.find(name) != std::string::npos, spoilt.out);
    flip_bit(file, at, 1);
  }
  CHECK(files.validate("out").code == 0);

  // A record whose hash of a norm before recovery is not the source's, or that names another tensor
  const fs::path manifest = files.scratch / "out" / "twofour.json";
  const std::string text = read_text(manifest);
  const std::string key = "\"model.norm.weight\":[\"";
  const size_t at = text.find(key);
  REQUIRE(at != text.npos);
  std::string other = text;
  char& digit = other[at + key.size()];
  digit = digit == '0' ? '1' : '0';
  write_sealed(manifest, other);
  const Outcome wrong = files.validate("out");
  CHECK(wrong.code == 1);
  CHECK_MESSAGE(wrong.out.find("before recovery (twofour.json)") != std::string::npos, wrong.out);
  other = text;
  other.replace(at + 1, key.size() - 5, "model.embed_tokens.weight");
  write_sealed(manifest, other);
  const Outcome embedding = files.validate("out");
  CHECK(embedding.code == 1);
  CHECK_MESSAGE(embedding.out.find("expected a norm or a global scale") != std::string::npos, embedding.out);
}

TEST_CASE("compress --recover that is killed goes on with --resume to the same bytes") {
  const RecoverFiles files("llama");
  const Words options{"--to", "nvfp4", "--pattern", "2:4", "--recover", "12"};
  REQUIRE(files.compress("whole", options).code == 0);
  Words words{
      "compress", files.path("model"), files.path("out"), "--tokens", files.path("tokens.safetensors"), "-q"};
  words.insert(words.end(), options.begin(), options.end());
  const fs::path state = files.path("out.compressing") + "/recovery.state";
  int killed = 0;
  {
    Run run(words);
    while (run.is_running() && !fs::exists(state)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (run.is_running()) ++killed, run.send(SIGKILL);
    run.wait();
  }
  if (killed > 0) {
    CHECK_FALSE(fs::exists(files.path("out") + "/twofour.json"));
    words.push_back("--resume");
  }
  const Outcome resumed = run_program(words);
  REQUIRE_MESSAGE(resumed.code == 0, resumed.err);
  CHECK((read_tree(files.path("out")) == read_tree(files.path("whole"))));
  CHECK_FALSE(fs::exists(files.path("out.compressing")));
  CHECK(killed == 1);

  // A complete one is proven, and refuses another number of passes.
  Words again = options;
  again.push_back("--resume");
  CHECK(files.compress("out", again).code == 0);
  const Outcome other = files.compress("out", {"--to", "nvfp4", "--pattern", "2:4", "--resume"});
  CHECK(other.code == 2);
  CHECK_MESSAGE(other.err.find("expected an artifact with 0 passes of recovery, found one with 12") !=
                    std::string::npos,
                other.err);
}

TEST_CASE("compress --recover states its needs, and refuses a family without a backward pass") {
  const RecoverFiles files("llama"), hybrid("qwen3_next");
  const Json with = json_of(files.compress("out", {"--to", "v7", "--recover", "2", "--dry-run", "--json"})),
             without = json_of(files.compress("out", {"--to", "v7", "--dry-run", "--json"}));
  CHECK(with["compress"]["work_bytes"].get<uint64_t>() >
        without["compress"]["work_bytes"].get<uint64_t>() + with["bytes_written"].get<uint64_t>());
  CHECK(with["compress"]["peak_memory"].get<uint64_t>() >=
        without["compress"]["peak_memory"].get<uint64_t>());
  const Outcome refused = hybrid.compress("out", {"--to", "nvfp4", "--recover", "2"});
  CHECK(refused.code == 2);
  CHECK_MESSAGE(refused.err.find("whose linear attention has none") != std::string::npos, refused.err);
  CHECK_FALSE(fs::exists(hybrid.path("out.compressing")));
  const Outcome one = files.compress("out", {"--to", "nvfp4", "--recover", "2", "--limit", "1"});
  CHECK(one.code == 2);
  CHECK_MESSAGE(one.err.find("expected two windows of the text or more") != std::string::npos, one.err);
}

}  // namespace cli_recover_test
