// Every moment at which a command opens a file of its source is tried with the source replaced just before
// it, by files of the same names, sizes and times of change: the command refuses, or what it writes is of one
// source alone.
#include <doctest/doctest.h>

#include <functional>
#include <set>

#include "lib/base/io/file.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/conversion.h"
#include "tests/support/faults/injected.h"
#include "tests/support/models/decoder_files.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/weights/statistics_builder.h"

namespace source_state_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;
using Result = std::map<std::string, std::string>;

/// Two models of the same names and sizes in "one" and "two", each in two weight files, and "model", which is
/// one of them.
struct Sources {
  explicit Sources(const std::string& name) : files(name) {
    files.write_calibration("tokens.safetensors");
    std::ofstream(files.scratch / "text") << "ABCDEFGHIJKLMNOPQRSTUVWXYZABCABCABCBBBCCCAAABACAACBABC";
    for (const bool negated : {false, true}) {
      Tensors first, second;
      write_decoder_checkpoint(files.golden, files.scratch / "all", {}, [&](Tensors& tensors) {
        for (TensorData& t : tensors) {
          // Not norms and embeddings, so that statistics serve both.
          const bool is_projection = t.name.find("_proj") != std::string::npos;
          for (size_t i = 1; negated && is_projection && i < t.bytes.size(); i += 2) t.bytes[i] ^= 0x80;
          (first.size() < tensors.size() / 2 ? first : second).push_back(t);
        }
      });
      const fs::path to = files.scratch / (negated ? "two" : "one");
      write_checkpoint(to, {first, second}, files.golden.config.dump());
      std::string tokenizer = letter_tokenizer();
      if (negated) {
        std::swap(tokenizer[tokenizer.find("\"A\"") + 1], tokenizer[tokenizer.find("\"B\"") + 1]);
      }
      std::ofstream(to / "tokenizer.json") << tokenizer;
      fs::remove_all(files.scratch / "all");
    }
  }
  /// Both as artifacts of a layout from now on.
  void convert_both(const std::string& to) const {
    for (const std::string name : {"one", "two"}) {
      REQUIRE(run_program({"convert", path(name), path(name + "-" + to), "--to", to, "-q"}).code == 0);
      fs::remove_all(files.scratch / name);
      fs::rename(files.scratch / (name + "-" + to), files.scratch / name);
    }
  }
  std::string path(const std::string& name) const { return files.path(name); }
  /// "model" is this source from now on, and nothing is left of a run.
  void reset(const std::string& source) const {
    for (const char* gone : {"model", "next", "out", "out.compressing", "fired", "plan", "stats-out"})
      fs::remove_all(files.scratch / gone);
    fs::copy(files.scratch / source, files.scratch / "model");
    fs::copy(files.scratch / "two", files.scratch / "next");
    for (const auto& [file, bytes] : files_below(files.scratch / "model"))
      fs::last_write_time(files.scratch / "next" / file, fs::last_write_time(files.scratch / "model" / file));
  }
  /// Runs a command; "next" replaces "model" before the nth opening of a file of that name.
  Outcome run(const Words& words, const std::string& file, int n) const {
    std::vector<std::string> environment = injected("open run " + std::to_string(n), file);
    environment.push_back("TWOFOUR_FAULT_COMMAND=mv -f " + path("next") + "/* " + path("model") +
                          " && touch " + path("fired"));
    return run_program(words, environment);
  }
  bool has_fired() const { return fs::exists(files.scratch / "fired"); }

  DecoderFiles files;
};

/// A command and what it comes to.
struct Act {
  Words words;
  std::function<Result(const Sources&, const Outcome&)> result;
  bool tells_apart = true;  ///< whether it comes to another result of the other source
};

Result artifact_of(const Sources& s, const Outcome&) { return read_tree(s.path("out")); }

/// A document without what every run says otherwise.
Result document_of(const Sources&, const Outcome& o) {
  Json json = parse_json("stdout", o.out);
  for (const char* key : {"seconds", "gb_s"}) json.erase(key);
  return {{"stdout", json.dump()}, {"code", std::to_string(o.code)}};
}

bool looks_complete(const fs::path& out) {
  return fs::exists(out) && !fs::is_empty(out) && find_unfinished(out) == nullptr;
}

/// Tries all moments of a command. -> how often it refused.
int try_all(const Sources& s, const Act& act) {
  std::set<Result> sound;
  for (const char* source : {"one", "two"}) {
    s.reset(source);
    const Outcome o = run_program(act.words);
    REQUIRE_MESSAGE(o.code <= 1, o.err);
    sound.insert(act.result(s, o));
  }
  CHECK((sound.size() == 2) == act.tells_apart);
  int refused = 0;
  for (const auto& [file, bytes] : files_below(s.files.scratch / "one")) {
    for (int n = 1;; ++n) {
      REQUIRE(n < 1000);
      CAPTURE(file);
      CAPTURE(n);
      s.reset("one");
      const Outcome o = s.run(act.words, file, n);
      if (o.code == 2) {
        ++refused;
        // An artifact's own hashes may find the other state first.
        const bool is_refused =
            o.err.find("expected a file that does not change while being read, found") != o.err.npos ||
            o.err.find("(twofour.json), found") != o.err.npos;
        CHECK_MESSAGE(is_refused, o.err);
        CHECK_FALSE(looks_complete(s.path("out")));
        CHECK_FALSE(fs::exists(s.path("stats-out")));
        CHECK_FALSE(fs::exists(s.path("plan")));
      } else {
        REQUIRE_MESSAGE(o.code <= 1, o.err);
        CHECK(sound.contains(act.result(s, o)));
      }
      if (!s.has_fired()) break;
    }
  }
  return refused;
}

}  // namespace

TEST_CASE("compress takes all that it reads from one state of the model, whenever that is replaced") {
  if (!can_inject()) return;
  const Sources s("llama");
  const Words words{"compress",
                    s.path("model"),
                    s.path("out"),
                    "--tokens",
                    s.path("tokens.safetensors"),
                    "-q",
                    "-j",
                    "1",
                    "--keep-stats",
                    s.path("stats-out"),
                    "--limit",
                    "1"};
  const auto act = [&](Words more) {
    more.insert(more.begin(), words.begin(), words.end());
    return Act{more, [](const Sources& of, const Outcome&) {
                 Result all = read_tree(of.path("out"));
                 all["statistics"] = read_text(of.path("stats-out"));
                 return all;
               }};
  };
  for (const Words& more :
       {Words{"--to", "nvfp4", "--also", "lm_head"}, Words{"--to", "v7", "--sequential", "layer"},
        Words{"--to", "nvfp4", "--pattern", "2:4", "--sequential", "none"}}) {
    CAPTURE(more[1]);
    CHECK(try_all(s, act(more)) > 10);
  }
}

TEST_CASE("compress of a text takes tokenizer and weights from one state") {
  if (!can_inject()) return;
  const Sources s("llama");
  CHECK(try_all(s, {{"compress", s.path("model"), s.path("out"), "--text", s.path("text"), "--to", "nvfp4",
                     "-q", "--context", "32", "-j", "1"},
                    artifact_of}) > 10);
}

TEST_CASE("conversions take all that they read from one state of the source") {
  if (!can_inject()) return;
  const Sources s("llama");
  s.reset("one");
  REQUIRE(run_program({"stats", "collect", s.path("model"), "--tokens", s.path("tokens.safetensors"), "-o",
                       s.path("stats"), "-q"})
              .code == 0);
  const std::string model = s.path("model"), out = s.path("out"), stats = s.path("stats");
  for (const Words& words :
       {Words{"convert", model, out, "--to", "v7", "-q"}, Words{"quantize", model, out, "-q"},
        Words{"quantize", model, out, "--stats", stats, "-q"},
        Words{"convert", model, out, "--to", "g8", "--stats", stats, "-q"},
        Words{"drop", model, out, "--modules", "lm_head", "-q"}}) {
    CAPTURE(words[0]);
    CHECK(try_all(s, {words, artifact_of}) > 2);
  }
}

TEST_CASE("a budget chooses by the weights that are converted, and so does a plan") {
  if (!can_inject()) return;
  const Sources s("llama");
  s.reset("one");
  StatisticsBuilder statistics;
  const Decoder decoder = Decoder::open(s.path("model"));
  unsigned seed = 1;
  for (int64_t layer = 0; layer < decoder.shape().layers; ++layer) {
    for (const InputGroup& group : decoder.input_groups(layer)) {
      statistics.add(group.linears, group.k, 800, "hessian", ++seed);
      statistics.add_floats(group.linears[0] + ".fisher_hessian", {group.k, group.k},
                            StatisticsBuilder::sums(group.k, 800, ++seed));
    }
  }
  statistics.write(s.files.scratch / "stats");
  const Words budget{"--pattern", "2:4", "--budget", "0.5", "-q", "-j", "1"};
  Words quantize{"quantize", s.path("model"), s.path("out"), "--stats", s.path("stats")},
      compress{"compress",
               s.path("model"),
               s.path("out"),
               "--to",
               "nvfp4",
               "--tokens",
               s.path("tokens.safetensors"),
               "--budget-stats",
               s.path("stats"),
               "--limit",
               "1"};
  for (Words* words : {&quantize, &compress}) {
    words->insert(words->end(), budget.begin(), budget.end());
    CAPTURE(words->front());
    CHECK(try_all(s, {*words, artifact_of}) > 2);
  }
  // A page of the command's own in the source is no change of it.
  s.reset("one");
  quantize.insert(quantize.end(), {"--html", s.path("model") + "/page.html"});
  const Outcome paged = run_program(quantize);
  CHECK_MESSAGE(paged.code == 0, paged.err);
}

TEST_CASE("what reads a model whole says what it says of one state") {
  if (!can_inject()) return;
  const Sources s("llama");
  s.reset("one");
  const std::string model = s.path("model"), tokens = s.path("tokens.safetensors");
  REQUIRE(run_program({"quantize", model, s.path("artifact"), "-q"}).code == 0);
  const auto file_of = [](const Sources& of, const Outcome&) {
    return Result{{"file", read_text(of.path("stats-out"))}};
  };
  const Act acts[] = {
      {{"eval", model, "--text", s.path("text"), "--context", "32", "--json"}, document_of},
      {{"eval", s.path("artifact"), "--against", model, "--tokens", tokens, "--limit", "1", "--json"},
       document_of},
      {{"generate", model, "--prompt", "ABBA", "--max-tokens", "4", "--json"}, document_of},
      {{"stats", "collect", model, "--text", s.path("text"), "--context", "32", "-o", s.path("stats-out"),
        "-q"},
       file_of},
      {{"validate", s.path("artifact"), "--source", model, "--json"}, document_of},
      {{"diff", model, s.path("artifact"), "--json"}, document_of},
      {{"lint", model, "--json"}, document_of, false},
      {{"inspect", model, "--stats", "--json"}, document_of, false},
      {{"inspect", model, "--values", "model.layers.1.self_attn.q_proj[0, :8]", "--json"}, document_of},
  };
  for (const Act& act : acts) {
    CAPTURE(act.words[0]);
    CHECK(try_all(s, act) > 0);
  }
}

TEST_CASE("an artifact as source is read in one state, and so is its twofour.json") {
  if (!can_inject()) return;
  const Sources s("llama");
  s.convert_both("v7");
  const std::string model = s.path("model"), out = s.path("out");
  const Act acts[] = {
      {{"convert", model, out, "--to", "nvfp4", "-q"}, artifact_of},
      {{"convert", model, out, "--to", "bf16", "--check", "-q"}, artifact_of},
      {{"eval", model, "--text", s.path("text"), "--context", "32", "--json"}, document_of},
      {{"validate", model, "--json"}, document_of, false},
      {{"card", model, "--json"}, document_of},
      {{"inspect", model, "--values", "model.layers.1.mlp.w2_comp[0, 0, :8]", "--json"}, document_of},
  };
  for (const Act& act : acts) {
    CAPTURE(act.words[0]);
    CHECK(try_all(s, act) > 0);
  }
}

TEST_CASE("a source that tasks share is that of the plan, or they refuse") {
  if (!can_inject()) return;
  const Sources s("llama");
  const std::string model = s.path("model"), out = s.path("out"), plan = s.path("plan");
  const Words make{"plan", model, out, "--to", "v7", "-o", plan, "-q"},
      task{"convert", "--plan", plan, "--task", "0/1", "-q"}, merge{"merge", out, "-q"};
  std::set<Result> sound;
  for (const char* source : {"one", "two"}) {
    s.reset(source);
    for (const Words& words : {make, task, merge}) REQUIRE(run_program(words).code == 0);
    sound.insert(read_tree(out));
  }
  REQUIRE(sound.size() == 2);
  int refused = 0;
  for (int step = 0; step < 3; ++step) {
    for (const char* file : {"model-00002-of-00002.safetensors", "config.json", "tokenizer.json"}) {
      for (int n = 1;; ++n) {
        CAPTURE(step);
        CAPTURE(file);
        CAPTURE(n);
        s.reset("one");
        bool stopped = false;
        for (int i = 0; i < 3 && !stopped; ++i) {
          const Words& words = i == 0 ? make : i == 1 ? task : merge;
          const Outcome o = i == step ? s.run(words, file, n) : run_program(words);
          stopped = o.code != 0;
          if (stopped) CHECK_MESSAGE(o.code == 2, o.err);
        }
        refused += stopped;
        if (stopped) CHECK_FALSE(looks_complete(out));
        if (!stopped) CHECK(sound.contains(read_tree(out)));
        if (!s.has_fired()) break;
      }
    }
  }
  CHECK(refused > 5);
}

}  // namespace source_state_test
