#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "formats/error.h"
#include "lib/base/threads/stopwatch.h"
#include "lib/jobs/tasks/split.h"
#include "lib/synth/synth.h"
#include "lib/write/plan/plan.h"
#include "lib/write/transform/open_to_convert.h"
#include "tools/bench/bench.h"
#include "tools/cli/arguments.h"
#include "tools/cli/option_values.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The time of only planning, for a checkpoint whose files hold only headers and scalars.
struct PlanBench {
  size_t tensors = 0, shards = 0, outputs = 0;  ///< tensors and files of the source, files of the artifact
  uint64_t source_bytes = 0, header_bytes = 0;
  Spread parse_seconds;  ///< all headers, read and parsed by the JSON library, one after another
  Spread open_seconds, plan_seconds, split_seconds;
  Spread ratio;  ///< time of opening, planning and splitting divided by parsing, by round
  double balance = 0, overhead = 0;
};

/// Reads the headers of a checkpoint and parses them with the JSON library.
void parse_source_headers(const Checkpoint& source) {
  std::string text;
  for (const Shard& shard : source.shards()) {
    text.resize(shard.data_begin);
    shard.file.read(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
    const auto parsed = nlohmann::json::parse(text.begin() + kSafetensorsPrefix, text.end());
    if (parsed.empty()) throw Error(fmt::format("{}: expected tensors, found none", shard.name));
  }
}

/// Opens `source`, plans and splits, `rounds` times.
PlanBench bench_plan(const std::filesystem::path& path, const Recipe& recipe, size_t tasks, int rounds) {
  PlanBench bench;
  std::vector<double> parse, open, plan, split, ratio;
  for (int round = 0; round < rounds; ++round) {
    Stopwatch watch;
    const Checkpoint source = open_to_convert(path, recipe);
    open.push_back(watch.lap());
    const Plan planned = make_plan(source, recipe);
    plan.push_back(watch.lap());
    const TaskSplit tasks_files = split_tasks(source, planned, tasks);
    split.push_back(watch.lap());
    parse_source_headers(source);
    parse.push_back(watch.lap());
    ratio.push_back((open.back() + plan.back() + split.back()) / parse.back());

    bench.tensors = source.tensors().size();
    bench.shards = source.shards().size();
    bench.outputs = planned.files.size();
    bench.source_bytes = planned.read_bytes;
    bench.header_bytes = 0;
    for (const Shard& shard : source.shards()) bench.header_bytes += shard.data_begin;
    bench.balance = tasks_files.balance();
    bench.overhead = tasks_files.overhead();
  }
  bench.parse_seconds = spread_of(std::move(parse));
  bench.open_seconds = spread_of(std::move(open));
  bench.plan_seconds = spread_of(std::move(plan));
  bench.split_seconds = spread_of(std::move(split));
  bench.ratio = spread_of(std::move(ratio));
  return bench;
}

struct PlanBenchArguments {
  std::string source, work = "/dev/shm", shape = "deepseek-v4", layout = "v7", max_shard_size = "5GB";
  int64_t layers = 140;
  std::optional<int64_t> experts;
  uint64_t tasks = 64;
  int rounds = 5;
};

/// Makes a checkpoint of only headers. Another process does this, so that its memory does not count for
/// planning.
void synth_headers(const PlanBenchArguments& o, const fs::path& to) {
  std::vector<std::string> command{
      twofour_program().string(), "synth",          to.string(), "--shape", o.shape, "--layers",
      std::to_string(o.layers),   "--headers-only", "--quiet"};
  if (o.experts) command.insert(command.end(), {"--experts", std::to_string(*o.experts)});
  run_process(command);
}

int run_plan(const PlanBenchArguments& o, const Common& common) {
  const WorkDirectory work(o.work);
  fs::path source = o.source;
  if (source.empty()) synth_headers(o, source = work.path() / "source");
  const ProcessRun whole =
      run_process({twofour_program().string(), "plan", source.string(), (work.path() / "to").string(), "--to",
                   o.layout, "--max-shard-size", o.max_shard_size, "--tasks", std::to_string(o.tasks),
                   "--quiet", "-o", (work.path() / "plan.json").string()});
  const Recipe recipe(Rule{.to = o.layout}, parse_size_option("--max-shard-size", o.max_shard_size));
  const PlanBench b = bench_plan(source, recipe, o.tasks, o.rounds);
  if (common.json) {
    print_json({{"tensors", b.tensors},
                {"source_files", b.shards},
                {"source_bytes", b.source_bytes},
                {"header_bytes", b.header_bytes},
                {"files", b.outputs},
                {"tasks", o.tasks},
                {"parse_seconds", spread_to_json(b.parse_seconds)},
                {"open_seconds", spread_to_json(b.open_seconds)},
                {"plan_seconds", spread_to_json(b.plan_seconds)},
                {"split_seconds", spread_to_json(b.split_seconds)},
                {"ratio", spread_to_json(b.ratio)},
                {"balance", b.balance},
                {"overhead", b.overhead},
                {"command_seconds", whole.seconds},
                {"max_rss", whole.max_rss}});
    return kDone;
  }
  fmt::print("{} tensors, {} in {} files, {} of headers; as {} {} files for {} tasks\n", b.tensors,
             format_bytes(b.source_bytes), b.shards, format_bytes(b.header_bytes), o.layout, b.outputs,
             o.tasks);
  fmt::print("headers parsed by the JSON library alone: {} s\n", spread_text(b.parse_seconds));
  fmt::print("open {} s, plan {} s, split {} s: {} of parsing\n", spread_text(b.open_seconds),
             spread_text(b.plan_seconds), spread_text(b.split_seconds), spread_text(b.ratio));
  fmt::print("largest task over mean {:.3f}; {:.3f} of the bytes that one task reads and writes\n", b.balance,
             b.overhead);
  fmt::print("twofour plan: {:.2f} s, peak memory {}\n", whole.seconds, format_bytes(whole.max_rss));
  return kDone;
}

}  // namespace

std::function<int()> setup_bench_plan(Arguments& args, const Common& common) {
  auto o = std::make_shared<PlanBenchArguments>();
  args.option("--source", o->source, "Checkpoint to plan, instead of headers made by synth")
      .value_name("PATH");
  args.option("--shape", o->shape, "Shape of the checkpoint that is made").one_of(synth_shapes());
  args.option("--layers", o->layers, "Its layers").range(1, 1000);
  args.option("--experts", o->experts, "Experts of its layers")
      .range(1, kSynthMostExperts)
      .default_text("the model's");
  args.option("--to", o->layout, "What it is planned as").one_of(convert_targets());
  add_shard_size_option(args, o->max_shard_size);
  args.option("--tasks", o->tasks, "Tasks that share the work").range(1, 1'000'000);
  args.option("--work", o->work, "Directory to work in").value_name("DIRECTORY");
  args.option("--rounds", o->rounds, "Measured rounds").range(1, 1000);
  return [o, &common] { return run_plan(*o, common); };
}

}  // namespace twofour
