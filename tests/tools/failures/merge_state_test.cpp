// Merge and tasks with a destination in any state: killed halfway, edited, with things in it.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>

#include <fstream>

#include "lib/base/io/file.h"
#include "lib/jobs/tasks/task_plan.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/conversion.h"
#include "tests/support/faults/injected.h"
#include "tests/support/message.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

namespace merge_state_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

void succeed(const Words& words) {
  const Outcome o = run_program(words);
  REQUIRE_MESSAGE(o.code == 0, o.err);
}

std::string refusal(const Words& words, const Words& environment = {}) {
  const Outcome o = run_program(words, environment);
  CHECK(o.code == 2);
  return o.err;
}

/// A plan and what one machine makes of it.
struct Planned {
  Scratch scratch;
  std::string out = (scratch / "out").string(), plan = (scratch / "plan.json").string();
  std::map<std::string, std::string> expected;
  Planned() {
    const Words words{kGolden, out, "--to", "v7", "--max-shard-size", "20kB", "-q"};
    Words alone = words, planned = words;
    alone[1] = (scratch / "alone").string();
    alone.insert(alone.begin(), "convert");
    succeed(alone);
    expected = read_tree(alone[2]);
    planned.insert(planned.begin(), {"plan", "-o", plan});
    succeed(planned);
  }
  void run_tasks() const { succeed({"convert", "--plan", plan, "--task", "0/1", "-q"}); }
  fs::path first_file() const { return fs::path(out) / expected.lower_bound("model-")->first; }
  fs::path record() const {
    return fs::path(out) / kTasksFolder / (first_file().filename().string() + ".json");
  }
};

}  // namespace

TEST_CASE(
    "killed before each single step, a merge leaves an unfinished or a whole directory and runs again") {
  if (!can_inject()) return;
  const Planned p;
  p.run_tasks();
  const fs::path tasks_done = p.scratch / "tasks-done", out = p.out;
  fs::copy(out, tasks_done, fs::copy_options::recursive);
  int kills = 0, removing = 0;
  for (const std::string call : {"rename", "fsync", "unlink", "pwrite"}) {
    for (int n = 1; n < 100; ++n) {
      CAPTURE(call);
      CAPTURE(n);
      fs::remove_all(out);
      fs::copy(tasks_done, out, fs::copy_options::recursive);
      const Outcome o = run_program({"merge", p.out, "-q"}, injected(fmt::format("{} kill {}", call, n)));
      if (o.code == 0) break;
      CHECK(o.code == 128 + SIGKILL);
      ++kills;
      removing += fs::exists(out / kManifestName) && fs::exists(out / kJournalName);
      if (fs::exists(out / kJournalName)) {
        CHECK(run_program({"inspect", p.out, "-q"}).code == 2);
      } else {
        CHECK(!fs::exists(out / kTasksFolder));
        CHECK((read_tree(out) == p.expected));
      }
      succeed({"merge", p.out, "-q"});
      CHECK(!fs::exists(out / kTasksFolder));
      CHECK((read_tree(out) == p.expected));
    }
  }
  CHECK(kills > 30);
  CHECK(removing > 5);
}

TEST_CASE("a record that was cut or changed is found by merge, and its task writes it again") {
  const Planned p;
  p.run_tasks();
  const std::string sound = read_text(p.record());
  std::string edited = sound;
  const size_t digit = edited.find("\"outputs\":\"") + 11;
  edited[digit] = edited[digit] == '0' ? '1' : '0';
  for (const std::string& text : {edited, sound.substr(0, sound.size() - 1), sound + "\n", std::string()}) {
    std::ofstream(p.record()) << text;
    CHECK(contains(refusal({"merge", p.out, "-q"}),
                   "expected the record that a task wrote, found a damaged one"));
    p.run_tasks();
    CHECK(read_text(p.record()) == sound);
  }
  succeed({"merge", p.out, "-q"});
  CHECK((read_tree(p.out) == p.expected));
}

TEST_CASE("a record that cannot be read is trouble, and none that its task writes again") {
  if (!can_inject()) return;
  const Planned p;
  p.run_tasks();
  const auto before = read_tree(p.out);
  const std::string record = p.record().filename().string();
  for (const Words& words : {Words{"convert", "--plan", p.plan, "--task", "0/1"}, Words{"merge", p.out}}) {
    CHECK(contains(refusal(words, injected("pread EIO 1", record)),
                   record + ": cannot read: Input/output error"));
    CHECK((read_tree(p.out) == before));
  }
  succeed({"merge", p.out, "-q"});
  CHECK((read_tree(p.out) == p.expected));
}

TEST_CASE("merge names what somebody put into the destination and takes nothing of it away") {
  const Planned p;
  p.run_tasks();
  const fs::path out = p.out;
  for (const std::string name : {"mine.txt", ".twofour-tasks/mine.txt", "sub/mine.txt"}) {
    CAPTURE(name);
    fs::create_directories((out / name).parent_path());
    std::ofstream(out / name) << "years";
    CHECK(contains(refusal({"merge", p.out, "-q"}), fs::path(name).begin()->string()));
    CHECK(read_text(out / name) == "years");
    fs::remove(out / name);
    fs::remove(out / "sub");
  }
  succeed({"merge", p.out, "-q"});
  CHECK((read_tree(p.out) == p.expected));
}

TEST_CASE("what stands where a weight file belongs is named before a task begins") {
  const Planned p;
  fs::create_directories(p.out);
  p.run_tasks();
  const fs::path file = p.first_file();
  fs::remove(file);
  fs::create_directory(file);
  for (const Words& words : {Words{"convert", "--plan", p.plan, "--task", "0/1"}, Words{"merge", p.out}}) {
    CHECK(contains(refusal(words), file.string() + ": expected "));
  }
  CHECK(contains(refusal({"convert", "--plan", p.plan, "--task", "0/1"}), "found a directory"));
  fs::remove(file);
  p.run_tasks();
  succeed({"merge", p.out, "-q"});
}

TEST_CASE("a plan without a whole path, and ranks without a count, are one clear message") {
  const Planned p;
  const std::string text = read_text(p.plan);
  for (const std::string path : {"", "out", "./out"}) {
    std::string changed = text;
    changed.replace(changed.find(p.out), p.out.size(), path);
    changed.resize(changed.rfind("\"plan_xxh3_128\""));
    changed += plan_seal(changed);
    std::ofstream(p.plan) << changed;
    CHECK(contains(refusal({"convert", "--plan", p.plan, "--task", "0/1"}),
                   fmt::format("plan.json: destination: expected an absolute path, found \"{}\"", path)));
  }
  std::ofstream(p.plan) << text;
  const Words words{"convert", "--plan", p.plan};
  const std::string twice = "expected SLURM_NTASKS or --tasks too, found neither";
  CHECK(contains(refusal(words, {"SLURM_PROCID=0"}), "SLURM_PROCID: " + twice));
  CHECK(contains(refusal(words, {"SLURM_PROCID=0", "SLURM_NTASKS=0"}),
                 "SLURM_NTASKS: expected a number of tasks, found 0"));
  CHECK(
      contains(refusal(words, {"SLURM_ARRAY_TASK_ID=0"}), "expected SLURM_ARRAY_TASK_COUNT or --tasks too"));
  CHECK(contains(refusal(words, {"SLURM_ARRAY_TASK_ID=0", "SLURM_ARRAY_TASK_COUNT=0"}),
                 "SLURM_ARRAY_TASK_COUNT: expected a number of tasks, found 0"));
  CHECK(contains(
      refusal(words, {"SLURM_ARRAY_TASK_ID=2", "SLURM_ARRAY_TASK_COUNT=4", "SLURM_ARRAY_TASK_STEP=0"}),
      "SLURM_ARRAY_TASK_STEP: expected 1 or more, found 0"));
}

TEST_CASE("a device that a planned command does not have is refused by the command's own name") {
  const Planned p;
  fs::remove(p.plan);
  succeed({"plan", kGolden, p.out, "--to", "prune", "-o", p.plan, "-q"});
  const Outcome o = run_program({"convert", "--plan", p.plan, "--task", "0/1", "--device", "cuda"});
  CHECK(o.code == 2);
  CHECK_MESSAGE(o.err.find("--to prune") == o.err.npos, o.err);
}

TEST_CASE("quantizing with kept global scales can be planned, and tasks compare with their checkpoint") {
  const Planned p;
  const std::string nvfp4 = (p.scratch / "nvfp4").string(), floats = (p.scratch / "bf16").string();
  const std::string alone = (p.scratch / "quantized").string();
  fs::copy(kGolden, nvfp4, fs::copy_options::recursive);
  succeed({"convert", nvfp4, floats, "--to", "bf16", "-q"});
  const Words options{"--keep-global-scale", nvfp4, "--max-shard-size", "20kB", "-q"};
  const auto with = [&](Words words) {
    words.insert(words.end(), options.begin(), options.end());
    return words;
  };
  succeed(with({"quantize", floats, alone}));
  fs::remove(p.plan);
  CHECK(contains(refusal(with({"plan", floats, p.out, "--to", "v7", "-o", p.plan})),
                 "--keep-global-scale: expected with --to quantize only, found with --to v7"));
  succeed(with({"plan", floats, p.out, "--to", "quantize", "-o", p.plan}));
  for (const char* task : {"0/2", "1/2"}) succeed({"convert", "--plan", p.plan, "--task", task, "-q"});
  const Outcome merged = run_program({"merge", p.out, "-v"});
  CHECK(merged.code == 0);
  CHECK(contains(merged.err, "codes and block scales equal the reference checkpoint's"));
  CHECK((read_tree(p.out) == read_tree(alone)));
  fs::remove_all(p.out);
  for (const auto& entry : fs::directory_iterator(nvfp4)) {
    if (entry.path().extension() == ".safetensors")
      flip_bit(entry.path(), fs::file_size(entry.path()) - 1, 0);
  }
  CHECK(contains(refusal({"convert", "--plan", p.plan, "--task", "0/2"}), "kept: "));
}

}  // namespace merge_state_test
