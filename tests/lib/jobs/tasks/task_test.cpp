#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <random>
#include <thread>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/jobs/tasks/run.h"
#include "lib/jobs/tasks/split.h"
#include "lib/jobs/tasks/task_directory.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/write/transform/open_to_convert.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace task_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// Gate, up and down of each expert in three files of the source, so that no task finds all of a target in
/// one.
void write_source(const fs::path& directory) {
  Tensors gate, up, down;
  for (int layer = 0; layer < 3; ++layer) {
    const auto block = fmt::format("model.layers.{}.mlp.experts", layer);
    Tensors all;
    add_experts(all, block, random_experts(3, 32, 48, static_cast<unsigned>(10 * layer)));
    for (TensorData& t : all) {
      const bool of_gate = t.name.find("gate_proj") != std::string::npos;
      const bool of_up = t.name.find("up_proj") != std::string::npos;
      (of_gate ? gate : of_up ? up : down).push_back(std::move(t));
    }
    add_bf16(down, fmt::format("model.layers.{}.input_layernorm.weight", layer), {48});
  }
  add_bf16(gate, "model.embed_tokens.weight", {100, 48});
  write_checkpoint(directory, {gate, up, down}, R"({"num_experts": 3})");
  write_text(directory / "tokenizer.json", "{}");
}

OneRule small_files(const std::string& layout) {
  OneRule recipe;
  recipe.to = layout;
  recipe.max_shard_size = 3000;
  if (layout == "prune") recipe.pattern = "4:8-paired";
  return recipe;
}

/// A plan as a process makes it, through its text.
TaskFile plan_tasks(const fs::path& source, const fs::path& destination, const OneRule& recipe) {
  const Checkpoint checkpoint = open_to_convert(source, recipe);
  const TaskFile plan = make_task_plan(checkpoint, make_plan(checkpoint, recipe), destination);
  return parse_task_plan("plan.json", format_task_plan(plan));
}

TaskResult run_task(const TaskFile& plan, size_t index, size_t count, bool verify = true) {
  const PlannedSource planned = open_planned("plan.json", plan);
  ConvertOptions options;
  options.jobs = 2;
  options.verify = verify;
  Progress progress;
  return run_task(planned, plan, index, count, options, progress);
}

ConvertResult merge(const TaskFile& plan) {
  Progress progress;
  return merge_tasks(open_planned("merge", plan), plan, progress);
}

void check_same_tree(const fs::path& found, const fs::path& expected) {
  const auto a = read_tree(found), b = read_tree(expected);
  REQUIRE(a.size() == b.size());
  for (const auto& [name, text] : b) {
    CAPTURE(name);
    REQUIRE(a.count(name));
    CHECK((a.at(name) == text));
  }
  for (const auto& entry : fs::directory_iterator(found)) {
    CHECK_MESSAGE(!entry.path().filename().string().starts_with("."), entry.path());
  }
}

}  // namespace

TEST_CASE("1, 2, 3 and 7 tasks, in any order, write what one machine writes") {
  const Scratch scratch;
  write_source(scratch / "src");
  OneRule bf16;
  bf16.to = "bf16";
  convert(scratch / "src", scratch / "bf16", bf16);
  std::mt19937 random(1);
  for (const std::string made :
       {"v7", "v7-packed", "g8", "nvfp4", "bf16", "fp8", "prune", "quantize", "bf16 to v7", "bf16 to g8"}) {
    CAPTURE(made);
    const std::string layout = made.substr(made.rfind(' ') + 1);
    const bool from_floats = layout != made || layout == "quantize";
    const fs::path source = scratch / (from_floats ? "bf16" : "src");
    const OneRule recipe = small_files(layout);
    fs::remove_all(scratch / "alone");
    convert(source, scratch / "alone", recipe);
    for (const size_t count : {1, 2, 3, 7}) {
      CAPTURE(count);
      const TaskFile plan = plan_tasks(source, scratch / "shared", recipe);
      std::vector<size_t> order(count);
      for (size_t i = 0; i < count; ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      size_t files = 0;
      for (const size_t i : order) files += run_task(plan, i, count, i % 2 == 0).files;
      CHECK(files == plan.files);
      CHECK(fs::exists(scratch / "shared" / kJournalName));
      CHECK_FALSE(fs::exists(scratch / "shared" / kManifestName));
      const ConvertResult merged = merge(plan);
      CHECK(merged.files_kept == plan.files);
      check_same_tree(scratch / "shared", scratch / "alone");
      fs::remove_all(scratch / "shared");
    }
  }
}

TEST_CASE("tasks may run twice, one after the other and at once, and under another count") {
  const Scratch scratch;
  write_source(scratch / "src");
  const OneRule recipe = small_files("v7");
  convert(scratch / "src", scratch / "alone", recipe);
  const TaskFile plan = plan_tasks(scratch / "src", scratch / "shared", recipe);
  const TaskResult first = run_task(plan, 0, 3), second = run_task(plan, 0, 3);
  CHECK(first.files > 0);
  CHECK(second.files == 0);
  CHECK(second.files_kept == first.files);
  CHECK(second.bytes_read == 0);
  CHECK(run_task(plan, 499, 500).files == 0);  // more tasks than files: nothing to do
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 6; ++i)
      threads.emplace_back([&, i] { run_task(plan, static_cast<size_t>(i % 3), 3); });
  }
  run_task(plan, 1, 2);
  merge(plan);
  check_same_tree(scratch / "shared", scratch / "alone");
}

TEST_CASE("tasks that start at once find one directory") {
  constexpr int kTasks = 8;
  const Scratch scratch;
  write_source(scratch / "src");
  const OneRule recipe = small_files("v7");
  TaskFile plan = plan_tasks(scratch / "src", scratch / "shared", recipe);
  for (int trial = 0; trial < 200; ++trial) {
    plan.destination = scratch / fmt::format("out-{}", trial);
    std::vector<std::string> messages(kTasks);
    std::barrier start(kTasks);
    {
      std::vector<std::jthread> threads;
      for (std::string& message : messages) {
        threads.emplace_back([&] {
          start.arrive_and_wait();
          message = message_of([&] { const TaskDirectory joined(plan); });
        });
      }
    }
    for (const std::string& message : messages) REQUIRE(message == "");
  }
}

TEST_CASE("what a killed task left is made good by the next run, damaged files too") {
  const Scratch scratch;
  write_source(scratch / "src");
  const OneRule recipe = small_files("v7");
  convert(scratch / "src", scratch / "alone", recipe);
  const fs::path out = scratch / "shared";
  const TaskFile plan = plan_tasks(scratch / "src", out, recipe);
  const PlannedSource planned = open_planned("plan.json", plan);
  run_task(plan, 0, 2);
  run_task(plan, 1, 2);
  const std::string name = planned.plan.files[1].name;
  const fs::path shard = out / name, record = out / kTasksFolder / (name + ".json");
  // Killed between rename and record; a folder of its own left behind.
  fs::remove(record);
  fs::create_directories(out / kTasksFolder / "task-abcdef");
  write_text(out / kTasksFolder / "task-abcdef" / "half", "half a file");
  CHECK(
      contains(message_of([&] { merge(plan); }), name + ": expected a record of the task that finished it"));
  CHECK(run_task(plan, 0, 1).files == 1);
  // A file that is not what its record says: by size for merge, by a bit for the task.
  fs::resize_file(shard, fs::file_size(shard) - 1);
  CHECK(contains(message_of([&] { merge(plan); }), "expected"));
  CHECK(run_task(plan, 0, 1).files == 1);
  flip_bit(shard, fs::file_size(shard) - 1, 3);
  CHECK(run_task(plan, 0, 1).files == 1);
  fs::remove(shard);
  CHECK(contains(message_of([&] { merge(plan); }), name));
  CHECK(run_task(plan, 0, 1).files == 1);
  // Files of a merge that was killed.
  write_text(out / kIndexName, "{}");
  write_text(out / ".config.json.unfinished", "{");
  merge(plan);
  check_same_tree(out, scratch / "alone");
}

TEST_CASE("tasks and merge refuse another source, recipe or tool than the plan's") {
  const Scratch scratch;
  write_source(scratch / "src");
  const fs::path out = scratch / "shared";
  const TaskFile plan = plan_tasks(scratch / "src", out, small_files("v7"));
  run_task(plan, 0, 2);
  const TaskFile other = plan_tasks(scratch / "src", out, small_files("g8"));
  CHECK(contains(message_of([&] { run_task(other, 1, 2); }), "recipe: rules: to"));
  TaskFile older = plan;
  Json fingerprint = parse_json("fingerprint", plan.fingerprint);
  fingerprint["tool"]["version"] = "0.0.1";
  older.fingerprint = fingerprint.dump();
  CHECK(contains(message_of([&] { run_task(older, 1, 2); }), "tool: version changed: \"0.0.1\" before"));
  run_task(plan, 1, 2);
  // A source that is touched is another one; one of other content too, whatever its times.
  TaskFile shifted = plan;
  shifted.outputs = {};
  CHECK(contains(message_of([&] { run_task(shifted, 1, 2); }), "files and global scales"));
  TaskFile fewer = plan;
  --fewer.files;
  const std::string count =
      fmt::format("files: expected {} (from the recipe), found {}", plan.files, fewer.files);
  CHECK(contains(message_of([&] { run_task(fewer, 1, 2); }), count));
  CHECK(contains(message_of([&] { merge(fewer); }), count));
  TaskFile larger = plan;
  Json grown = parse_json("fingerprint", plan.fingerprint);
  grown["recipe"]["max_shard_size"] = 1'000'000;
  larger.fingerprint = grown.dump();
  CHECK(contains(message_of([&] { merge(larger); }), "files: expected 1 (from the recipe)"));
  merge(plan);
  CHECK(contains(message_of([&] { run_task(plan, 0, 2); }), "found a complete artifact"));
  fs::remove_all(out);
  run_task(plan, 0, 2);
  const fs::path tokenizer = scratch / "src/tokenizer.json";
  const auto written = fs::last_write_time(tokenizer);
  fs::last_write_time(tokenizer, written + std::chrono::seconds(1));
  CHECK(contains(message_of([&] { run_task(plan, 1, 2); }), "source: tokenizer.json: modified changed"));
  CHECK(contains(message_of([&] { merge(plan); }), "source: tokenizer.json: modified changed"));
  fs::last_write_time(tokenizer, written);
  CHECK(contains(message_of([&] { merge(plan); }), "source: tokenizer.json: ctime changed"));
}

TEST_CASE("tasks keep out of directories that are not theirs, and others out of theirs") {
  const Scratch scratch;
  write_source(scratch / "src");
  const fs::path out = scratch / "shared";
  const TaskFile plan = plan_tasks(scratch / "src", out, small_files("v7"));
  fs::create_directories(out);
  write_text(out / "mine.txt", "x");
  CHECK(contains(message_of([&] { run_task(plan, 0, 1); }), "found files in it"));
  fs::remove(out / "mine.txt");
  {
    const OutputDirectory alone(out, scratch / "src", Existing::kRefuse);
    CHECK(contains(message_of([&] { run_task(plan, 0, 1); }), "expected no other run in this directory"));
  }
  fs::create_directory(out);
  {
    Journal marker(out, Sharing::kAlone);
    marker.begin();
    marker.note("what a run did");
  }
  CHECK(contains(message_of([&] { run_task(plan, 0, 1); }), "another run left unfinished"));
  CHECK(contains(message_of([&] { merge(plan); }), "another run left unfinished"));
  Journal(out, Sharing::kAlone).restart();
  write_text(out / "model-00001-of-00009.safetensors", "of a run");
  CHECK(contains(message_of([&] { run_task(plan, 0, 1); }), "another run left unfinished"));
  fs::remove(out / "model-00001-of-00009.safetensors");
  fs::create_directory(scratch / "elsewhere");
  fs::create_directory_symlink(scratch / "elsewhere", out / kTasksFolder);
  CHECK(contains(message_of([&] { run_task(plan, 0, 1); }), "found a symbolic link"));
  CHECK(fs::is_empty(scratch / "elsewhere"));
  fs::remove(out / kTasksFolder);
  run_task(plan, 0, 1);
  {
    const TaskDirectory at_work(plan), beside(plan);
    CHECK(contains(message_of([&] { merge(plan); }), "expected no other run in this directory"));
    CHECK(contains(message_of([&] { convert(scratch / "src", out); }), "found files in it"));
    ConvertOptions force;
    force.existing = Existing::kReplace;
    CHECK(contains(message_of([&] { convert(scratch / "src", out, {}, force); }), "expected no other run"));
  }
  CHECK(contains(message_of([&] { Checkpoint::open(out); }), "interrupted"));
  merge(plan);
}

TEST_CASE("merge names the tasks that did not finish, and counts them") {
  const Scratch scratch;
  write_source(scratch / "src");
  const TaskFile plan = plan_tasks(scratch / "src", scratch / "out", small_files("v7"));
  const PlannedSource planned = open_planned("plan.json", plan);
  const TaskSplit split = split_tasks(planned.source, planned.plan, 40);
  std::vector<size_t> busy;  // some of so many tasks have no files
  for (size_t i = 0; i < 40; ++i) {
    if (!split.files[i].empty()) busy.push_back(i);
  }
  REQUIRE(busy.size() > 4);
  const auto missing = [&] { return message_of([&] { merge(plan); }); };
  for (size_t done = 0; done + 2 < busy.size(); ++done) run_task(plan, busy[done], 40);
  const size_t a = busy[busy.size() - 2], b = busy.back();
  CHECK(missing().ends_with(fmt::format("; run tasks {}/40, {}/40", a, b)));
  CHECK(contains(missing(), planned.plan.files[std::min(split.files[a][0], split.files[b][0])].name +
                                ": expected a record of the task that finished it, found none"));
  run_task(plan, a, 40);
  CHECK(missing().ends_with(fmt::format("; run task {}/40", b)));
  run_task(plan, b, 40);
  merge(plan);

  const TaskFile other = plan_tasks(scratch / "src", scratch / "other", small_files("v7"));
  { TaskDirectory idle(other); }
  CHECK(message_of([&] { merge(other); }).ends_with("; no task has started"));
  { TaskDirectory(other).note_count(40); }
  CHECK(
      message_of([&] {
        merge(other);
      }).ends_with(busy.size() > 8 ? fmt::format(" and {} more", busy.size() - 8) : fmt::format("{}/40", b)));
}

TEST_CASE("a task refuses a folder that has the name of one of its files, before it writes") {
  const Scratch scratch;
  write_source(scratch / "src");
  const TaskFile plan = plan_tasks(scratch / "src", scratch / "out", small_files("v7"));
  run_task(plan, 0, 2);
  const PlannedSource planned = open_planned("plan.json", plan);
  const auto files = split_tasks(planned.source, planned.plan, 2).files[1];
  const fs::path taken = scratch / "out" / planned.plan.files[files.back()].name;
  fs::create_directory(taken);
  contains(message_of([&] { run_task(plan, 1, 2); }),
           taken.string() + ": expected a weight file or nothing of that name, found a directory");
  fs::remove(taken);
  run_task(plan, 1, 2);
  merge(plan);
}

TEST_CASE("what is no plan, and records of another plan, are refused") {
  const Scratch scratch;
  write_source(scratch / "src");
  const fs::path out = scratch / "shared";
  const TaskFile plan = plan_tasks(scratch / "src", out, small_files("v7"));
  const std::string text = format_task_plan(plan);
  for (const char* bad : {"", "{}", "[1]", "{\"format\": 2}", "not JSON"}) {
    CAPTURE(bad);
    CHECK(contains(message_of([&] { parse_task_plan("plan.json", bad); }), "plan.json"));
  }
  CHECK_THROWS_AS(parse_task_plan("plan.json", text.substr(0, text.size() / 2)), Error);
  Json future = parse_json("plan", text);
  future["format"] = 99;
  CHECK(contains(message_of([&] { parse_task_plan("plan.json", future.dump()); }),
                 "format 4, found 99; plan again"));
  for (const char* number : {"\"files\": ", "\"max_shard_size\": ", "\"bytes\": "}) {
    CAPTURE(number);
    std::string edited = text;
    const size_t at = edited.find(number);
    REQUIRE(at != text.npos);
    edited.insert(at + std::string(number).size(), "1");
    CHECK(contains(message_of([&] { parse_task_plan("plan.json", edited); }),
                   "plan.json: expected it to end with the hash of the text before it, "));
  }
  std::string later = text.substr(0, text.find("\"plan_xxh3_128\""));
  later.insert(later.find("\"to\""), "\"later\": 1, ");
  CHECK(contains(message_of([&] { parse_task_plan("plan.json", later + plan_seal(later)); }),
                 "plan.json: recipe.rules[0]: expected keys that twofour "));
  run_task(plan, 0, 1);
  fs::path record;
  for (const auto& entry : fs::directory_iterator(out / kTasksFolder)) {
    if (entry.path().filename().string().starts_with("model-00002")) record = entry.path();
  }
  const std::string sound = read_text(record);
  for (const std::string& bad : {std::string(), "x " + sound, sound.substr(0, sound.size() / 2),
                                 std::string(32, '0') + sound.substr(32)}) {
    write_text(record, bad);
    CHECK(contains(message_of([&] { merge(plan); }), "model-00002"));
  }
  write_text(record, sound);
  merge(plan);
}

}  // namespace task_test
