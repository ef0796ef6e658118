// The program killed, cut off from its disk and interrupted: never a directory that looks complete, and
// --resume ends with the bytes of an undisturbed run.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/conversion.h"
#include "tests/support/faults/injected.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace crash_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;
using Tree = std::map<std::string, std::string>;

/// A conversion, what it must end with and where it is tried.
struct Trial {
  Words words;
  size_t destination = 2;  ///< of the words
  Tree expected;
  fs::path out;
  mutable int checked = 0;

  Trial(const fs::path& place, Words command, const std::string& source, Words options,
        const std::string& donor = "")
      : words(std::move(command)), out(place / "out") {
    const fs::path whole = place / "whole";
    words.insert(words.begin() + 1, {source, whole.string()});
    if (!donor.empty()) words.insert(words.begin() + static_cast<std::ptrdiff_t>(destination++), donor);
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"-q", "-j", "2"});
    const Outcome o = run_program(words);
    REQUIRE_MESSAGE(o.code == 0, o.err);
    expected = read_tree(whole);
    words[destination] = out.string();
  }
  Words resumed() const {
    Words all = words;
    all.push_back("--resume");
    return all;
  }
  /// After a run ended anyhow: nothing, an unfinished directory, or all of it. True if it is all there.
  bool check_state() const {
    if (!fs::exists(out) || fs::is_empty(out)) return false;
    const bool complete = !fs::exists(out / kJournalName);
    if (complete) {
      CHECK((read_tree(out) == expected));
    } else {
      CHECK_MESSAGE(run_program({"inspect", out.string(), "-q"}).code == 2, "inspect takes it for complete");
      if (++checked % 8 == 1) {
        CHECK_MESSAGE(run_program({"validate", out.string(), "-q"}).code == 2,
                      "validate takes it for complete");
        CHECK_MESSAGE(run_program({"lint", out.string(), "-q"}).code != 0, "lint takes it for complete");
      }
    }
    return complete;
  }
  void check_resumes() const {
    const Outcome o = run_program(resumed());
    CHECK_MESSAGE(o.code == 0, o.err);
    CHECK((read_tree(out) == expected));
    fs::remove_all(out);
  }
  /// Runs it with the n-th call of "CALL ACTION" failing, for n = 1 and what `next` makes of it, until none
  /// does. Each run that fails is shown to `check` and resumed. Returns how many there were.
  int fail_at_each(const std::string& fault, int (*next)(int n),
                   const std::function<void(const Outcome&, bool complete)>& check) const {
    int failed = 0;
    for (int n = 1; n < 400; n = next(n)) {
      CAPTURE(fault);
      CAPTURE(n);
      const Outcome o = run_program(resumed(), injected(fmt::format("{} {}", fault, n)));
      const bool complete = check_state();
      if (o.code == 0) {
        CHECK(complete);
        fs::remove_all(out);
        break;
      }
      ++failed;
      check(o, complete);
      check_resumes();
    }
    return failed;
  }
};

/// Layers are converted one after the other, so that files are finished all the time.
std::string synth_source(const Scratch& scratch, const std::string& layers, const std::string& experts,
                         const std::string& seed = "0") {
  const std::string source = (scratch / ("src" + seed)).string();
  const Outcome o = run_program({"synth", source, "--shape", "qwen3-moe", "--layers", layers, "--experts",
                                 experts, "--vocab", "16", "--seed", seed, "-q"});
  REQUIRE_MESSAGE(o.code == 0, o.err);
  return source;
}

}  // namespace

TEST_CASE("killed sixty times at random moments, a conversion never looks complete and ends the same") {
  const Scratch scratch;
  const std::string source = synth_source(scratch, "2", "8"), donor = synth_source(scratch, "2", "8", "9");
  const std::string broken = (scratch / "broken").string();
  std::filesystem::copy(source, broken);
  std::ofstream(scratch / "broken" / "generation_config.json") << R"({"top_p": 7})";
  const Trial trials[] = {
      {scratch / "repaired", {"repair"}, broken, {"--max-shard-size", "2MB"}},
      {scratch / "v7", {"convert", "--to", "v7"}, source, {"--max-shard-size", "2MB"}},
      {scratch / "pruned", {"prune"}, source, {"--max-shard-size", "2MB"}},
      {scratch / "fp8", {"convert", "--to", "fp8"}, source, {"--max-shard-size", "4MB"}},
      {scratch / "dropped", {"drop", "--modules", "model.layers.1.*"}, source, {"--max-shard-size", "2MB"}},
      {scratch / "grafted",
       {"graft", "--take", "model.layers.1.*"},
       source,
       {"--max-shard-size", "2MB"},
       donor},
  };
  std::mt19937 random(24);
  int kills = 0, conversions = 0;
  for (int round = 0; kills < 60 && round < 1000; ++round) {
    const Trial& trial = trials[static_cast<size_t>(conversions) % std::size(trials)];
    const auto start = std::chrono::steady_clock::now();
    Run run(trial.resumed());
    // Every third run goes on undisturbed and tells how long the others may live.
    static std::chrono::microseconds length{100'000};
    const auto life =
        std::chrono::microseconds(std::uniform_int_distribution<int64_t>(0, length.count())(random));
    while (run.is_running() && std::chrono::steady_clock::now() - start < life) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    run.send(SIGKILL);
    const Outcome o = run.wait();
    const bool killed = o.code == 128 + SIGKILL;
    kills += killed;
    if (!killed) CHECK_MESSAGE(o.code == 0, o.err);
    const bool complete = trial.check_state();
    CHECK((killed || complete));
    if (!complete && round % 3 != 2) continue;
    const auto again = std::chrono::steady_clock::now();
    trial.check_resumes();
    if (!complete) {
      length =
          std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - again);
    }
    ++conversions;
  }
  MESSAGE(fmt::format("{} kills, {} conversions ended with equal bytes", kills, conversions));
  CHECK(kills >= 50);
  CHECK(conversions >= 9);
}

TEST_CASE("killed before each single rename, flush, removal and note, a conversion ends the same") {
  if (!can_inject()) return;
  const Scratch scratch;
  const Trial trial(scratch.path, {"convert", "--to", "v7"},
                    std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src", {"--max-shard-size", "20kB"});
  int kills = 0;
  for (const std::string call : {"rename", "fsync", "unlink", "pwrite", "fallocate"}) {
    kills += trial.fail_at_each(
        call + " kill", [](int n) { return n + 1; },
        [](const Outcome& o, bool) { CHECK(o.code == 128 + SIGKILL); });
  }
  MESSAGE(fmt::format("{} kills", kills));
  CHECK(kills > 30);
}

TEST_CASE("an I/O error anywhere is one clear message and exit code 2, and the run can be resumed") {
  if (!can_inject()) return;
  const Scratch scratch;
  const Trial trial(scratch.path, {"convert", "--to", "v7"},
                    std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src", {"--max-shard-size", "20kB"});
  int errors = 0;
  for (const std::string action : {"EIO", "ENOSPC"}) {
    const char* message = action == "EIO" ? "Input/output error" : "No space left on device";
    for (const std::string call : {"pread", "pwrite", "fsync", "rename", "unlink", "fallocate"}) {
      errors += trial.fail_at_each(
          call + " " + action, [](int n) { return n < 20 ? n + 1 : n + n / 8; },
          [&](const Outcome& o, bool complete) {
            CHECK(o.code == 2);
            CHECK(o.err.starts_with("twofour: "));
            CHECK_MESSAGE(o.err.find(message) != std::string::npos, o.err);
            CHECK(std::count(o.err.begin(), o.err.end(), '\n') <= 2);
            // Complete only where the flush failed that comes after the marker went.
            CHECK((!complete || call == "fsync"));
          });
    }
  }
  MESSAGE(fmt::format("{} errors", errors));
  CHECK(errors > 50);
}

TEST_CASE("many side files take few flushes, and one that fails leaves nothing that looks complete") {
  if (!can_inject()) return;
  const Scratch scratch;
  const fs::path source = synth_source(scratch, "1", "8"), out = scratch / "out";
  for (int i = 0; i < 100; ++i) {
    const fs::path folder = source / fmt::format("side{}", i % 50);
    fs::create_directories(folder);
    write_text(folder / fmt::format("{}.txt", i), fmt::format("file {}", i));
  }
  const std::vector<std::string> words = {"convert", source.string(), out.string(), "--to", "v7", "-q"};
  int flushes = 0, complete = 0;
  for (;; ++flushes) {
    REQUIRE(flushes < 40);
    const Outcome o = run_program(words, injected(fmt::format("fsync EIO {}", flushes + 1)));
    if (o.code == 0) break;
    CHECK(o.code == 2);
    complete += fs::exists(out) && run_program({"inspect", out.string(), "-q"}).code == 0;
    fs::remove_all(out);
  }
  CHECK(flushes > 3);
  CHECK(complete <= 1);  // of the last flush alone, once the marker is gone
  CHECK(read_text(out / "side7/57.txt") == "file 57");
  CHECK(run_program({"validate", out.string(), "--source", source.string(), "-q"}).code == 0);
}

TEST_CASE("a byte that reaches the disk as another is found in every file before it is complete") {
  if (!can_inject()) return;
  const Scratch scratch;
  const std::string source = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";
  const std::string broken = (scratch / "broken").string();
  fs::copy(source, broken);
  std::ofstream(scratch / "broken" / "generation_config.json") << R"({"top_p": 7})";
  const Trial trials[] = {{scratch / "v7", {"convert", "--to", "v7"}, source, {"--max-shard-size", "20kB"}},
                          {scratch / "repaired", {"repair"}, broken, {"--max-shard-size", "20kB"}}};
  for (const Trial& trial : trials) {
    CAPTURE(trial.words[0]);
    int found = 0;
    for (int n = 1; n < 60; ++n) {
      CAPTURE(n);
      const Outcome o = run_program(trial.words, injected(fmt::format("pwrite flip {}", n)));
      if (o.code == 0) {  // it was the journal's, which is gone, or there were not so many writes
        CHECK((read_tree(trial.out) == trial.expected));
        fs::remove_all(trial.out);
        continue;
      }
      ++found;
      CHECK(o.code == 2);
      CHECK_MESSAGE(o.err.find("when read back") != std::string::npos, o.err);
      CHECK(!trial.check_state());
      trial.check_resumes();
    }
    CHECK(found > 10);
  }
}

TEST_CASE("reads and writes that transfer only a part change nothing") {
  if (!can_inject()) return;
  const Scratch scratch;
  const Trial trial(scratch.path, {"prune"}, std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src", {});
  for (const char* fault : {"pread short 0", "pwrite short 0"}) {
    CAPTURE(fault);
    const Outcome o = run_program(trial.words, injected(fault));
    CHECK_MESSAGE(o.code == 0, o.err);
    CHECK((read_tree(trial.out) == trial.expected));
    CHECK(run_program({"validate", trial.out.string(), "-q"}, injected(fault)).code == 0);
    fs::remove_all(trial.out);
  }
}

TEST_CASE("past the page cache, failures, parts and kills end with the bytes of a buffered run") {
  if (!can_inject()) return;
  const Scratch scratch;
  // Large enough for pieces that are read and written directly.
  Trial trial(scratch.path, {"convert", "--to", "v7"}, synth_source(scratch, "1", "8"),
              {"--max-shard-size", "5MB"});
  trial.words.insert(trial.words.end(), {"--io", "direct"});
  for (const char* fault : {"pread short 0", "pwrite short 0"}) {
    CAPTURE(fault);
    const Outcome o = run_program(trial.words, injected(fault));
    CHECK_MESSAGE(o.code == 0, o.err);
    CHECK((read_tree(trial.out) == trial.expected));
    fs::remove_all(trial.out);
  }
  int stopped = 0;
  for (const std::string fault : {"pread EIO", "pwrite EIO", "pwrite ENOSPC", "pwrite kill", "fsync kill"}) {
    const int code = fault.ends_with("kill") ? 128 + SIGKILL : 2;
    stopped += trial.fail_at_each(
        fault, [](int n) { return 2 * n; }, [&](const Outcome& o, bool) { CHECK(o.code == code); });
  }
  MESSAGE(fmt::format("{} failures and kills", stopped));
  CHECK(stopped > 20);
}

TEST_CASE("a full disk is one clear message, and with more space the run goes on") {
  const Scratch scratch;
  const std::string source = synth_source(scratch, "3", "8");
  const std::string broken = (scratch / "broken").string();
  fs::copy(source, broken);
  std::ofstream(scratch / "broken" / "generation_config.json") << R"({"top_p": 7})";
  Trial trials[] = {{scratch / "v7", {"convert", "--to", "v7"}, source, {"--max-shard-size", "2MB"}},
                    {scratch / "repaired", {"repair"}, broken, {"--max-shard-size", "2MB"}}};
  for (Trial& trial : trials) {
    CAPTURE(trial.words[0]);
    const fs::path disk = scratch / "disk";
    fs::create_directory(disk);
    const bool mounted = ::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=36m") == 0;
    trial.out = disk / "out";
    trial.words[2] = trial.out.string();
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    if (!mounted) {
      MESSAGE("no right to mount a small disk: a limit to the size of files instead");
      const rlimit small{500'000, before.rlim_max};
      ::setrlimit(RLIMIT_FSIZE, &small);
    }
    const Outcome full = run_program(trial.words);
    CHECK(full.code == 2);
    CHECK_MESSAGE(full.err.find(mounted ? "No space left on device" : "File too large") != std::string::npos,
                  full.err);
    CHECK(!trial.check_state());
    if (mounted) {
      CHECK(full.err.find("weight files are finished and kept; --resume continues from there") !=
            std::string::npos);
      REQUIRE(::mount("tmpfs", disk.c_str(), "tmpfs", MS_REMOUNT, "size=200m") == 0);
    } else {
      ::setrlimit(RLIMIT_FSIZE, &before);
    }
    trial.check_resumes();
    if (mounted) ::umount(disk.c_str());
  }
}

TEST_CASE("interrupted after some files, a run says what stays and goes on from there") {
  const Scratch scratch;
  const Trial trial(scratch.path, {"convert", "--to", "v7"}, synth_source(scratch, "4", "8"),
                    {"--max-shard-size", "2MB"});
  const auto finished = [&] {
    size_t count = 0;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(trial.out, error)) {
      count += entry.path().filename().string().starts_with("model-");
    }
    return count;
  };
  int stayed = 0;
  ::signal(SIGHUP, SIG_DFL);  // under nohup the program would ignore it, too
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Run run(trial.words);
    while (run.is_running() && finished() < 3) std::this_thread::sleep_for(std::chrono::microseconds(200));
    run.send(signal);
    const Outcome o = run.wait();
    if (o.code == 130) {
      ++stayed;
      CHECK(o.err.starts_with("twofour: interrupted\n"));
      CHECK_MESSAGE(o.err.find("weight files are finished and kept; --resume continues") != std::string::npos,
                    o.err);
      CHECK(run_program(trial.words).err.find("--resume continues it") != std::string::npos);
    }
    trial.check_state();
    trial.check_resumes();
  }
  CHECK(stayed > 0);
}

TEST_CASE("a thread that the system does not start is an error that says so") {
  if (!can_inject()) return;
  const Scratch scratch;
  const Trial trial(scratch.path, {"convert", "--to", "v7"},
                    std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src", {"--device", "cpu"});
  // Those that copy, convert and read back.
  int kept = 0;
  const int failed = trial.fail_at_each(
      "pthread_create EAGAIN", [](int n) { return n + 1; },
      [&](const Outcome& o, bool complete) {
        CHECK(o.code == 2);
        CHECK(!complete);
        CHECK_MESSAGE(o.err.starts_with(
                          "twofour: threads: expected the system to start another thread, found an error"),
                      o.err);
        const bool stays = fs::exists(trial.out);  // with the one weight file finished
        kept += stays;
        CHECK(stays == (o.err.find("1 of 1 weight files are finished and kept") != o.err.npos));
      });
  CHECK(kept > 0);
  CHECK(failed >= kept + 2);
  // Some here are OpenMP's, whose runtime would end with the code of findings.
  const Words validate{"validate", (scratch / "whole").string(), "--source", trial.words[1], "-j", "4", "-q"};
  int by_openmp = 0;
  for (int threads = 0;; ++threads) {
    REQUIRE(threads < 40);
    const Outcome o = run_program(validate, injected(fmt::format("pthread_create EAGAIN {}", threads + 1)));
    if (o.code == 0) break;
    CAPTURE(threads);
    CHECK(o.code == 2);
    by_openmp += o.err.find("Thread creation failed") != std::string::npos;
    const bool ours = o.err.find("threads: expected the system to start another") != std::string::npos;
    CHECK_MESSAGE(ours != (o.err.find("Thread creation failed") != std::string::npos), o.err);
  }
  CHECK(by_openmp > 0);
}

TEST_CASE("--resume on a complete directory verifies it, on a changed source or with --force it is refused") {
  const Scratch scratch;
  const std::string source = synth_source(scratch, "1", "8");
  const Trial trial(scratch.path, {"convert", "--to", "v7"}, source, {});
  CHECK(run_program(trial.resumed()).code == 0);
  Words loud = trial.resumed();
  std::erase(loud, "-q");
  const Outcome again = run_program(loud);
  CHECK(again.code == 0);
  CHECK(again.out.find("was complete") != std::string::npos);
  Words both = trial.resumed();
  both.push_back("--force");
  CHECK(run_program(both).code == 2);
  Words other = trial.resumed();
  other.insert(other.end(), {"--fold", "strict"});
  const Outcome refused = run_program(other);
  CHECK(refused.code == 2);
  CHECK_MESSAGE(refused.err.find("recipe: rules: fold changed") != std::string::npos, refused.err);
  CHECK((read_tree(trial.out) == trial.expected));
}

}  // namespace crash_test
