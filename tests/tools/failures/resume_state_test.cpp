// The knowledge of --resume and --force about a directory and the source: changes that hide, directories that
// only look like ours, and runs that were killed taking an old artifact away.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>

#include <fstream>

#include "lib/base/io/file.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/conversion.h"
#include "tests/support/faults/injected.h"
#include "tests/support/message.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

namespace resume_state_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

Outcome run(Words words, const Words& more = {}, const Words& environment = {}) {
  words.insert(words.end(), more.begin(), more.end());
  return run_program(words, environment);
}

void succeed(const Words& words, const Words& more = {}) {
  const Outcome o = run(words, more);
  REQUIRE_MESSAGE(o.code == 0, o.err);
}

/// A copy of the golden checkpoint and a conversion of it to many small files.
struct Conversion {
  Scratch scratch;
  std::string source = (scratch / "src").string(), out = (scratch / "out").string();
  Words words{"convert", source, out, "--to", "v7", "--max-shard-size", "20kB", "-q"};
  Conversion() { fs::copy(kGolden, source, fs::copy_options::recursive); }
  /// Ends with some files finished and others not.
  void interrupt() {
    const Outcome o = run(words, {}, injected("rename kill 8"));
    REQUIRE(o.code == 128 + SIGKILL);
    REQUIRE(fs::exists(fs::path(out) / kJournalName));
  }
  std::string resume_refused() const {
    const auto before = read_tree(out);
    const Outcome o = run(words, {"--resume"});
    CHECK(o.code == 2);
    CHECK((read_tree(out) == before));
    return o.err;
  }
  std::map<std::string, std::string> undisturbed() const {
    Words whole = words;
    whole[2] = (scratch / "undisturbed").string();
    succeed(whole);
    return read_tree(whole[2]);
  }
};

/// The file whose last byte is a weight's; the other ends with a global scale.
std::string weights_of(const fs::path& checkpoint) {
  return (checkpoint / "model-00001-of-00002.safetensors").string();
}

/// Changes the last byte of a file and puts its time back.
void change_in_place(const fs::path& file) {
  const auto written = fs::last_write_time(file);
  flip_bit(file, fs::file_size(file) - 1, 0);
  fs::last_write_time(file, written);
}

}  // namespace

TEST_CASE("weights changed in place, with size and time put back, are noticed by --resume") {
  if (!can_inject()) return;
  Conversion c;
  c.interrupt();
  change_in_place(weights_of(c.source));
  CHECK(contains(c.resume_refused(), "ctime changed: "));
}

TEST_CASE("a complete artifact is held against the files of its source that are no weights") {
  for (const char* file : {"config.json", "generation_config.json"}) {
    CAPTURE(file);
    Conversion c;
    std::ofstream(fs::path(c.source) / "generation_config.json") << R"({"max_length": 5})";
    succeed(c.words);
    succeed(c.words, {"--resume"});
    std::string text = read_text(fs::path(c.source) / file);
    const size_t digit = text.find_first_of("123456789");
    text[digit] = text[digit] == '9' ? '8' : '9';
    std::ofstream(fs::path(c.source) / file) << text;
    CHECK(contains(c.resume_refused(), file));
  }
}

TEST_CASE("another checkpoint of kept global scales is refused by --resume, not met halfway") {
  if (!can_inject()) return;
  Conversion c;
  const std::string floats = (c.scratch / "bf16").string();
  succeed({"convert", c.source, floats, "--to", "bf16", "-q"});
  c.words = {"quantize", floats, c.out, "--keep-global-scale", c.source, "--max-shard-size", "5kB", "-q"};
  c.interrupt();
  change_in_place(weights_of(c.source));
  CHECK(contains(c.resume_refused(), "kept: "));
  succeed(c.words, {"--force"});
}

TEST_CASE("killed before each step of emptying an old artifact, a forced run can be resumed") {
  if (!can_inject()) return;
  Conversion c;
  const auto expected = c.undisturbed();
  const fs::path old = c.scratch / "old";
  succeed({"convert", kGolden, old.string(), "--to", "g8", "-q"});
  std::ofstream(old / "mine.txt") << "forced away";
  int kills = 0;
  for (const std::string call : {"unlink", "pwrite", "fsync"}) {
    for (int n = 1; n < 12; ++n) {
      CAPTURE(call);
      CAPTURE(n);
      fs::remove_all(c.out);
      fs::copy(old, c.out, fs::copy_options::recursive);
      const Outcome o = run(c.words, {"--force"}, injected(fmt::format("{} kill {}", call, n)));
      if (o.code == 0) break;
      CHECK(o.code == 128 + SIGKILL);
      ++kills;
      CHECK(run_program({"inspect", c.out, "-q"}).code == 2);
      succeed(c.words, {"--resume"});
      CHECK((read_tree(c.out) == expected));
    }
  }
  CHECK(kills > 20);
}

TEST_CASE("files that somebody put beside those that --force was taking away are not taken with them") {
  if (!can_inject()) return;
  Conversion c;
  succeed(c.words);
  REQUIRE(run(c.words, {"--force"}, injected("unlink kill 3")).code == 128 + SIGKILL);
  std::ofstream(fs::path(c.out) / "mine.txt") << "years";
  CHECK(contains(c.resume_refused(), "mine.txt"));
  succeed(c.words, {"--force"});
  CHECK(!fs::exists(fs::path(c.out) / "mine.txt"));
}

TEST_CASE("somebody's files in an unfinished directory are named and stay, --force takes them away") {
  if (!can_inject()) return;
  Conversion c;
  const auto expected = c.undisturbed();
  c.interrupt();
  const fs::path out = c.out;
  const auto refused = [&](const fs::path& name, const std::string& what) {
    CHECK(contains(c.resume_refused(), (out / name).string() + ": expected " + what));
    CHECK(fs::exists(fs::symlink_status(out / name)));
    fs::remove_all(out / name);
  };
  std::ofstream(out / "mine.txt") << "years";
  refused("mine.txt", "only files that the run writes, found another file");
  fs::create_directories(out / "notes/more");
  refused("notes", "only files that the run writes, found a directory");
  std::ofstream(out / ".mine.txt.unfinished") << "years";
  refused(".mine.txt.unfinished", "only files that the run writes");
  const std::string last = std::prev(expected.find(kIndexName))->first;
  fs::remove_all(out / last);
  fs::create_directories(out / last / "notes");
  refused(last, "a file that twofour wrote, found a directory");
  fs::create_symlink(kGolden + "/config.json", out / last);
  refused(last, "a file that twofour wrote, found a symbolic link");
  std::ofstream(out / ("." + last + ".unfinished")) << "half";
  succeed(c.words, {"--resume"});
  CHECK((read_tree(out) == expected));
}

TEST_CASE("a read of the journal or of a finished file that fails is trouble, not a reason to write again") {
  if (!can_inject()) return;
  Conversion c;
  c.interrupt();
  const auto before = read_tree(c.out);
  // One that the journal records: another thread's file may be there and not be recorded yet.
  auto recorded = before.lower_bound("model-");
  const std::string& journal = before.at(kJournalName);
  while (recorded != before.end() && journal.find(recorded->first) == std::string::npos) ++recorded;
  REQUIRE(recorded != before.end());
  const std::string weights = recorded->first;
  for (const auto& [how, file] :
       {std::pair{"--resume", std::string(kJournalName)}, {"--force", kJournalName}, {"--resume", weights}}) {
    for (int n = 1; n <= 2; ++n) {
      CAPTURE(how);
      CAPTURE(file);
      CAPTURE(n);
      const Outcome o = run(c.words, {how}, injected(fmt::format("pread EIO {}", n), file));
      CHECK(o.code == 2);
      CHECK(contains(o.err, file + ": cannot read: Input/output error"));
      CHECK((read_tree(c.out) == before));
      if (file == weights) break;  // the journal is read twice, a small file maybe once
    }
  }
  succeed(c.words, {"--resume"});
  CHECK((read_tree(c.out) == c.undisturbed()));
  for (int n = 1; n <= 2; ++n) {
    const Outcome o =
        run_program({"inspect", c.out}, injected(fmt::format("pread EIO {}", n), kManifestName));
    CHECK(o.code == 2);
    CHECK(contains(o.err, "twofour.json: cannot read: Input/output error"));
  }
}

TEST_CASE("what a killed synth left is replaced by --force, not resumed") {
  if (!can_inject()) return;
  const Conversion c;
  const Outcome o = run({"synth", c.out, "--shape", "tiny", "-q"}, {}, injected("rename kill 2"));
  REQUIRE(o.code == 128 + SIGKILL);
  CHECK(contains(c.resume_refused(),
                 "expected an unfinished conversion, found an unfinished synth; --force replaces it"));
  const Outcome refused = run(c.words);
  CHECK(refused.code == 2);
  CHECK(refused.err.ends_with("found files in it; --force replaces it\n"));
  succeed(c.words, {"--force"});
  CHECK((read_tree(c.out) == c.undisturbed()));
}

TEST_CASE("a directory is ours by what only we write, not by a name or a beginning") {
  Conversion c;
  succeed(c.words);
  const std::string manifest = read_text(fs::path(c.out) / kManifestName);
  fs::remove_all(c.out);
  const auto check_foreign = [&](const char* name, const std::string& text) {
    CAPTURE(name);
    fs::create_directories(c.out);
    std::ofstream(fs::path(c.out) / name) << text;
    std::ofstream(fs::path(c.out) / "thesis.txt") << "years";
    const auto before = read_tree(c.out);
    for (const char* how : {"--force", "--resume"}) {
      const Outcome o = run(c.words, {how});
      CHECK(o.code == 2);
      CHECK(contains(o.err, "twofour wrote"));
      CHECK((read_tree(c.out) == before));
    }
    fs::remove_all(c.out);
  };
  check_foreign(kJournalName, "");
  check_foreign(kJournalName, "{}\n");
  check_foreign(kJournalName, std::string(32, '0') + " a directory that twofour has not finished\n");
  check_foreign(kManifestName, "{\n\"format\": 2,\n\"tool\": {\"name\":\"twofour\"");
  check_foreign(kManifestName, manifest.substr(0, manifest.size() / 2));
  check_foreign(kManifestName, manifest + "\n");
  std::string edited = manifest;
  edited[edited.find("0.")] = '1';
  check_foreign(kManifestName, edited);
}

TEST_CASE("what a run of another version left is recognized, and --force replaces it") {
  if (!can_inject()) return;
  Conversion c;
  c.interrupt();
  const fs::path marker = fs::path(c.out) / kJournalName;
  const std::string journal = read_text(marker);
  std::ofstream(marker) << journal.substr(journal.find('\n') + 1);
  CHECK(contains(c.resume_refused(), "found one of another version; --force replaces it"));
  succeed(c.words, {"--force"});
  CHECK((read_tree(c.out) == c.undisturbed()));
}

TEST_CASE("what an interrupted run keeps is no source, and in folders below is not copied") {
  Conversion c;
  const fs::path source = c.source;
  fs::create_directories(source / "sub/.twofour-tasks");
  for (const char* name : {"sub/.twofour-tasks/plan.json", "sub/.twofour-unfinished",
                           ".config.json.unfinished", "sub/.tokenizer.json.unfinished"}) {
    std::ofstream(source / name) << "{}";
  }
  const auto is_clean = [&](const fs::path& out) {
    for (const auto& [name, text] : read_tree(out)) CHECK_MESSAGE(name.find("unfinished") == name.npos, name);
    CHECK(!fs::exists(out / "sub"));
  };
  Words loud = c.words;
  std::erase(loud, "-q");
  const Outcome o = run_program(loud);
  CHECK(o.code == 0);
  CHECK(contains(o.err, "sub/.twofour-tasks: left by a run of twofour that was interrupted: not copied"));
  is_clean(c.out);
  const std::string plan = (c.scratch / "plan.json").string(), shared = (c.scratch / "shared").string();
  succeed({"plan", c.source, shared, "--to", "v7", "--max-shard-size", "20kB", "-o", plan});
  succeed({"convert", "--plan", plan, "--task", "0/1", "-q"});
  succeed({"merge", shared, "-q"});
  CHECK((read_tree(shared) == read_tree(c.out)));
  fs::create_directory(source / ".twofour-tasks");
  fs::remove_all(c.out);
  CHECK(contains(run(c.words).err, "interrupted run of twofour left (.twofour-tasks)"));
}

}  // namespace resume_state_test
