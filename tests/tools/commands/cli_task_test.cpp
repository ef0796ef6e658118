#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/jobs/tasks/task_directory.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

namespace cli_task_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

void succeed(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {}) {
  const Outcome o = run_program(arguments, environment);
  REQUIRE_MESSAGE(o.code == 0, o.err);
}

/// A plan of the golden checkpoint with many small files.
struct Planned {
  explicit Planned(const std::vector<std::string>& more = {"--to", "v7"}) {
    std::vector<std::string> words{kGolden, out, "--max-shard-size", "20kB"};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<std::string> plan_words{"plan", "-o", plan};
    plan_words.insert(plan_words.end(), words.begin(), words.end());
    succeed(plan_words);
  }
  Scratch scratch;
  std::string out = (scratch / "out").string(), plan = (scratch / "plan.json").string();
};

}  // namespace

TEST_CASE("plan, tasks and merge, end to end, for every command that writes") {
  const std::vector<std::vector<std::string>> recipes{
      {"convert", "--to", "v7"},
      {"convert", "--to", "nvfp4", "--dialect", "compressed-tensors"},
      {"prune", "--pattern", "4:8-paired"}};
  for (const auto& recipe : recipes) {
    CAPTURE(recipe[0]);
    const Scratch scratch;
    const std::string alone = (scratch / "alone").string();
    std::vector<std::string> command(recipe);
    command.insert(command.begin() + 1, {kGolden, alone, "--max-shard-size", "20kB"});
    succeed(command);
    std::vector<std::string> options(recipe.begin() + 1, recipe.end());
    if (recipe[0] == "prune") options.insert(options.begin(), {"--to", "prune"});
    const Planned planned(options);
    CHECK_FALSE(fs::exists(planned.out));
    for (const char* task : {"2/3", "0/3", "1/3"}) {
      const Json json = json_of(run_program({"convert", "--plan", planned.plan, "--task", task, "--json"}));
      CHECK(json["tasks"] == 3);
      CHECK(json["from"] == "--task");
      CHECK(json["files"] > 0);
    }
    const Json merged = json_of(run_program({"merge", planned.out, "--json"}));
    CHECK(merged["files_kept"] == merged["files"]);
    CHECK((read_tree(planned.out) == read_tree(alone)));
    CHECK(json_of(run_program({"merge", planned.out, "--json"}))["was_complete"] == true);
    succeed({"validate", planned.out, "--source", kGolden});
  }
}

TEST_CASE("a task knows itself by Slurm's array, Slurm's rank or a completion index, and says by which") {
  const Planned planned;
  const auto task = [&](const std::vector<std::string>& environment,
                        const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"convert", "--plan", planned.plan, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Json json = json_of(run_program(words, environment));
    return fmt::format("{}/{} {}", json["task"].get<int>(), json["tasks"].get<int>(),
                       json["from"].get<std::string>());
  };
  CHECK(task({"SLURM_ARRAY_TASK_ID=2", "SLURM_ARRAY_TASK_COUNT=4"}) == "2/4 SLURM_ARRAY_TASK_ID");
  CHECK(task({"SLURM_ARRAY_TASK_ID=8", "SLURM_ARRAY_TASK_COUNT=8", "SLURM_ARRAY_TASK_MIN=1", "SLURM_PROCID=0",
              "SLURM_NTASKS=1"}) == "7/8 SLURM_ARRAY_TASK_ID");
  CHECK(task({"SLURM_ARRAY_TASK_ID=6", "SLURM_ARRAY_TASK_COUNT=4", "SLURM_ARRAY_TASK_MIN=0",
              "SLURM_ARRAY_TASK_STEP=2"}) == "3/4 SLURM_ARRAY_TASK_ID");
  // One task of an array again.
  CHECK(task({"SLURM_ARRAY_TASK_ID=3", "SLURM_ARRAY_TASK_COUNT=1", "SLURM_ARRAY_TASK_MIN=3"},
             {"--tasks", "8"}) == "3/8 SLURM_ARRAY_TASK_ID");
  CHECK(task({"SLURM_PROCID=1", "SLURM_NTASKS=2"}) == "1/2 SLURM_PROCID");
  CHECK(task({"JOB_COMPLETION_INDEX=4"}, {"--tasks", "5"}) == "4/5 JOB_COMPLETION_INDEX");
  CHECK(task({"SLURM_PROCID=1", "SLURM_NTASKS=2"}, {"--task", "0/1"}) == "0/1 --task");
}

TEST_CASE("task numbers that make no sense are refused") {
  const Planned planned;
  const auto refusal = [&](const std::vector<std::string>& environment,
                           const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"convert", "--plan", planned.plan};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = run_program(words, environment);
    CHECK(o.code == 2);
    CHECK(o.out.empty());
    return o.err;
  };
  CHECK(contains(refusal({}), "expected --task i/n"));
  for (const char* bad : {"3", "3/", "/3", "a/3", "1/0", "-1/3", "1/3x", "1/3/4"}) {
    CAPTURE(bad);
    CHECK(contains(refusal({}, {"--task", bad}), "--task"));
  }
  CHECK(contains(refusal({}, {"--task", "3/3"}), "--task: expected a task from 0 to 2, found 3"));
  CHECK(contains(refusal({}, {"--task", "1/3", "--tasks", "4"}), "expected 4 tasks"));
  CHECK(contains(refusal({"JOB_COMPLETION_INDEX=1"}), "expected --tasks too"));
  CHECK(contains(refusal({"JOB_COMPLETION_INDEX=one"}, {"--tasks", "4"}), "expected a number, found 'one'"));
  CHECK(contains(refusal({"SLURM_ARRAY_TASK_ID=9", "SLURM_ARRAY_TASK_COUNT=4"}), "from 0 to 3, found 9"));
  CHECK(contains(refusal({"SLURM_ARRAY_TASK_ID=0", "SLURM_ARRAY_TASK_COUNT=4", "SLURM_NTASKS=2"}),
                 "found SLURM_NTASKS 2"));
  CHECK_FALSE(fs::exists(planned.out));
}

TEST_CASE("options that do not go together, missing ones, and plans that are not valid") {
  const Planned planned;
  const auto refusal = [&](const std::vector<std::string>& words) {
    const Outcome o = run_program(words);
    CHECK(o.code == 2);
    return o.err;
  };
  CHECK(contains(refusal({"convert", kGolden, planned.out, "--plan", planned.plan, "--task", "0/1"}),
                 "--plan"));
  CHECK(contains(refusal({"convert", "--plan", planned.plan, "--task", "0/1", "--force"}), "--force"));
  CHECK(contains(refusal({"convert", kGolden, planned.out, "--to", "v7", "--task", "0/1"}), "--plan only"));
  CHECK(contains(refusal({"convert", kGolden, planned.out}), "--to or --recipe is required"));
  CHECK(contains(refusal({"convert"}), "SRC is required"));
  const std::string there = (planned.scratch / "there").string();
  succeed({"convert", kGolden, there, "--to", "v7"});
  CHECK(contains(refusal({"convert", kGolden, there, "--to", "v7"}), "; --force replaces it"));
  CHECK(refusal({"plan", kGolden, there, "--to", "v7", "-o", planned.plan}).ends_with("found files in it\n"));
  CHECK(contains(refusal({"plan", kGolden, planned.out, "-o", planned.plan}),
                 "expected one of --to, --recipe, --take, --modules, --experts, found none"));
  CHECK(contains(
      refusal({"plan", kGolden, planned.out, "--to", "v7", "--granularity", "row", "-o", planned.plan}),
      "--granularity: expected with --to fp8 only, found with --to v7"));
  CHECK(contains(refusal({"convert", "--plan", kGolden + "/config.json", "--task", "0/1"}), "config.json"));
  CHECK(contains(refusal({"merge", planned.out}), "expected a directory that the tasks of a plan wrote"));
  succeed({"convert", "--plan", planned.plan, "--task", "0/2"});
  const std::string missing = refusal({"merge", planned.out});
  CHECK(contains(missing, "expected a record of the task that finished it"));
  CHECK(contains(missing, "; run task 1/2"));
  CHECK(contains(
      refusal({"convert", "--plan", planned.plan, "--task", "0/2", "--device", "cuda"}),
      "--device cuda: expected cpu or auto, found convert without --stats, which runs on the CPU alone"));
}

TEST_CASE("a task killed at any moment runs again, and the artifact is whole only after merge") {
  const Scratch scratch;
  const std::string source = (scratch / "src").string(), alone = (scratch / "alone").string();
  const std::string out = (scratch / "out").string(), plan = (scratch / "plan.json").string();
  succeed({"synth", source, "--shape", "qwen3-moe", "--layers", "1", "--experts", "32", "--vocab", "16"});
  succeed({"convert", source, alone, "--to", "v7", "--max-shard-size", "5MB"});
  succeed({"plan", source, out, "--to", "v7", "--max-shard-size", "5MB", "-o", plan});
  int killed = 0;
  for (int i = 0; i < 6; ++i) {
    Run run({"convert", "--plan", plan, "--task", fmt::format("{}/2", i % 2), "-j", "1", "-q"});
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + 30 * i));
    run.send(i < 4 ? SIGKILL : SIGTERM);
    const int code = run.wait().code;
    const bool ended_by_signal = code == (i < 4 ? 128 + SIGKILL : 130);
    CHECK((ended_by_signal || code == 0));
    killed += ended_by_signal;
    CHECK_FALSE(fs::exists(fs::path(out) / kManifestName));
    CHECK(run_program({"inspect", out}).code == 2);
  }
  CHECK(killed > 0);
  succeed({"convert", "--plan", plan, "--task", "0/2", "-q"});
  succeed({"convert", "--plan", plan, "--task", "1/2", "-q"});
  succeed({"merge", out});
  CHECK((read_tree(out) == read_tree(alone)));
}

}  // namespace cli_task_test
