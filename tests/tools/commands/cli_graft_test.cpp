#include <doctest/doctest.h>

#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/edits.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace cli_graft_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// A small model made by synth; experts in two layers.
std::string synth(const Scratch& scratch, const std::string& name, const std::string& seed) {
  const std::string path = (scratch / name).string();
  const Outcome o = run_program({"synth", path, "--shape", "qwen3-moe", "--layers", "2", "--experts", "10",
                                 "--vocab", "16", "--seed", seed, "-q"});
  REQUIRE_MESSAGE(o.code == 0, o.err);
  return path;
}

void write_saliency(const fs::path& file, size_t experts) {
  Tensors tensors;
  for (const char* block : {"model.layers.0.mlp.experts", "model.layers.1.mlp.experts"}) {
    std::vector<uint8_t> bytes(4 * experts);
    for (size_t i = 0; i < experts; ++i) {
      const float value = static_cast<float>(i * 7 % experts);
      std::memcpy(&bytes[4 * i], &value, 4);
    }
    tensors.push_back(
        {std::string(block) + ".saliency", DType::kF32, {static_cast<int64_t>(experts)}, bytes});
  }
  write_safetensors(file, tensors);
}

void check_done(const std::vector<std::string>& words) {
  const Outcome o = run_program(words);
  CHECK_MESSAGE(o.code == 0, o.out, o.err);
}

}  // namespace

TEST_CASE("graft, lint, validate, convert, drop: end to end") {
  const Scratch scratch;
  const std::string base = synth(scratch, "base", "1"), donor = synth(scratch, "donor", "2"),
                    out = (scratch / "out").string();
  const Json done = json_of(
      run_program({"graft", base, donor, out, "--take", "model.layers.1.*", "--take", "head", "--json"}));
  CHECK(done["layout"] == "graft");
  check_done({"lint", out});
  check_done({"inspect", out});
  check_done({"validate", out});
  check_done({"validate", out, "--source", base, "--donor", donor});
  check_done({"convert", out, (scratch / "v7").string(), "--to", "v7", "-q"});
  check_done({"validate", (scratch / "v7").string(), "--source", out, "-q"});
  check_done({"graft", base, donor, out, "--take", "model.layers.1.*", "--take", "head", "--resume"});
  check_one_line(run_program({"graft", base, donor, out, "--take", "head", "--resume"}), "found recipe");
  check_done({"graft", base, donor, out, "--take", "head", "--force", "-q"});
  const Outcome swapped = run_program({"validate", out, "--source", donor, "--donor", base});
  CHECK(swapped.code == 1);
}

TEST_CASE("drop --experts by saliency and by name, lint, validate, convert") {
  const Scratch scratch;
  const std::string src = synth(scratch, "src", "1"), out = (scratch / "out").string(),
                    named = (scratch / "named").string();
  write_saliency(scratch / "s.safetensors", 10);
  check_done({"drop", src, out, "--experts", "8", "--by", (scratch / "s.safetensors").string(), "-q"});
  put_text(
      scratch / "e.json",
      R"({"model.layers.0.mlp.experts": [9, 1, 2, 4, 5, 6, 7, 8], "model.layers.1.mlp.experts": [1, 2, 4, 5, 6, 7, 8, 9]})");
  check_done({"drop", src, named, "--experts", (scratch / "e.json").string(), "-q"});
  CHECK((read_tree(out) == read_tree(named)));
  check_done({"lint", out});
  check_done({"validate", out, "--source", src});
  check_done({"convert", out, (scratch / "g8").string(), "--to", "g8", "-q"});
  check_done({"validate", (scratch / "g8").string(), "--source", out, "-q"});
}

TEST_CASE("plan, tasks and merge of a graft and of both drops write what the command writes") {
  const Scratch scratch;
  const std::string base = synth(scratch, "base", "1"), donor = synth(scratch, "donor", "2"),
                    by = (scratch / "s.safetensors").string(), plan = (scratch / "p.json").string();
  write_saliency(by, 10);
  const std::vector<std::string> grafts{"--take", "model.layers.1.*", "--take", "head"},
      modules{"--modules", "model.layers.1.*"}, experts{"--experts", "8", "--by", by};
  for (const auto& edit : {grafts, modules, experts}) {
    CAPTURE(edit[0]);
    const bool is_graft = edit == grafts;
    const std::string alone = (scratch / ("alone" + edit[0])).string(),
                      out = (scratch / ("out" + edit[0])).string();
    std::vector<std::string> command{is_graft ? "graft" : "drop", base};
    if (is_graft) command.push_back(donor);
    command.insert(command.end(), {alone, "--max-shard-size", "30kB", "-q"});
    std::vector<std::string> planned{"plan", base, out, "--max-shard-size", "30kB", "-o", plan, "-q"};
    if (is_graft) planned.insert(planned.end(), {"--donor", donor});
    for (auto* words : {&command, &planned}) words->insert(words->end(), edit.begin(), edit.end());
    fs::remove(plan);
    check_done(command);
    check_done(planned);
    for (const char* task : {"1/2", "0/2"}) check_done({"convert", "--plan", plan, "--task", task, "-q"});
    check_done({"merge", out});
    CHECK((read_tree(out) == read_tree(alone)));
    std::vector<std::string> proof{"validate", out, "--source", base};
    if (is_graft) proof.insert(proof.end(), {"--donor", donor});
    check_done(proof);
  }
  const auto refused = [&](const std::vector<std::string>& words, const std::string& message) {
    std::vector<std::string> all{"plan", base, (scratch / "no").string(), "-o",
                                 (scratch / "no.json").string()};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome o = run_program(all);
    CHECK(o.code == 2);
    CHECK_MESSAGE(o.err.find(message) != std::string::npos, o.err);
    CHECK(!fs::exists(scratch / "no.json"));
  };
  refused({"--take", "head"}, "expected --donor");
  refused({"--to", "v7", "--donor", donor}, "expected with --take only");
  refused({"--to", "v7", "--by", by}, "expected with --experts only");
  refused({"--take", "head", "--donor", donor, "--by", by}, "expected with --experts only");
  refused({"--modules", "lm_head", "--include", "x"}, "--include excludes --modules");
  refused({"--modules", "lm_head", "--to", "v7"}, "--to excludes --modules");
  refused({"--experts", "8"}, "expected --by FILE");
}

TEST_CASE("graft and drop with wrong arguments are one line, exit code 2, and leave nothing") {
  const Scratch scratch;
  const std::string src = synth(scratch, "src", "1"), out = (scratch / "out").string(),
                    by = (scratch / "s.safetensors").string();
  write_saliency(by, 10);
  check_one_line(run_program({"graft", src, src, out, "--take", "mtp"}), "found none that matches");
  check_one_line(run_program({"graft", src, out, out, "--take", "head"}), "");
  check_one_line(run_program({"drop", src, out, "--experts", "8"}), "expected --by FILE");
  check_one_line(run_program({"drop", src, out, "--experts", "0", "--by", by}), "expected a number from 1");
  check_one_line(run_program({"drop", src, out, "--experts", "7", "--by", by}),
                 "at least 8 experts, the count per token");
  check_one_line(run_program({"drop", src, out, "--experts", by, "--by", by}),
                 "expected with a number of experts");
  check_one_line(run_program({"drop", src, out, "--modules", "lm_head", "--by", by}),
                 "expected with --experts only");
  check_one_line(run_program({"drop", src, out, "--modules", "model.layers.0.*"}),
                 "only the last layers can be dropped");
  check_one_line(run_program({"validate", src, "--donor", src}), "expected with --source only");
  CHECK(run_program({"drop", src, out}).code == 2);
  CHECK(run_program({"drop", src, out, "--modules", "x", "--experts", "8"}).code == 2);
  CHECK(!fs::exists(out));
  check_one_line(run_program({"graft", src, src, (scratch / "src/below").string(), "--take", "head"}),
                 "outside of");
  const Outcome dry = run_program({"drop", src, out, "--modules", "lm_head", "--dry-run"});
  CHECK(dry.code == 0);
  CHECK(dry.out.find("lm_head") == std::string::npos);
  CHECK(!fs::exists(out));
}

}  // namespace cli_graft_test
