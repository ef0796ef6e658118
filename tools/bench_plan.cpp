#include "lib/bench_plan.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "formats/layouts/layouts.h"
#include "lib/synth/synth.h"
#include "tools/bench/bench.h"
#include "tools/option_values.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string source, work = "/dev/shm", shape = "deepseek-v4", layout = "v7", max_shard_size = "5GB";
  int64_t layers = 140, experts = 0;
  size_t tasks = 64;
  int rounds = 5;
};

/// A checkpoint of headers only, by a process of its own, whose memory does not count as planning's.
void synth_headers(const Options& o, const fs::path& to) {
  std::vector<std::string> command{fs::read_symlink("/proc/self/exe").string(),
                                   "synth",
                                   to.string(),
                                   "--shape",
                                   o.shape,
                                   "--layers",
                                   std::to_string(o.layers),
                                   "--headers-only",
                                   "--quiet"};
  if (o.experts > 0) command.insert(command.end(), {"--experts", std::to_string(o.experts)});
  run_process(command);
}

int run(const Options& o, const Common& common) {
  const WorkDirectory work(o.work);
  fs::path source = o.source;
  if (source.empty()) synth_headers(o, source = work.path() / "source");
  const ProcessRun whole = run_process({fs::read_symlink("/proc/self/exe").string(), "plan", source.string(),
                                        (work.path() / "to").string(), "--to", o.layout, "--max-shard-size",
                                        o.max_shard_size, "--tasks", std::to_string(o.tasks), "--quiet", "-o",
                                        (work.path() / "plan.json").string()});
  Recipe recipe;
  recipe.layout = o.layout;
  recipe.max_shard_size = parse_size_option("--max-shard-size", o.max_shard_size);
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

std::function<int()> setup_bench_plan(CLI::App& bench, const Common& common) {
  CLI::App* plan = bench.add_subcommand(
      "plan", "Plan a checkpoint of terabytes, of which only headers exist, against parsing the headers");
  auto o = std::make_shared<Options>();
  std::vector<std::string> layouts;
  for_each_layout([&]<class L>() { layouts.push_back(L::name); });
  layouts.insert(layouts.end(), {"nvfp4", "bf16", "fp8"});
  plan->add_option("--source", o->source, "Checkpoint to plan (default: headers made by synth)");
  plan->add_option("--shape", o->shape, "Shape of the one made")->check(CLI::IsMember(synth_shapes()));
  plan->add_option("--layers", o->layers, "Its layers")->check(CLI::Range(1, 1000));
  plan->add_option("--experts", o->experts, "Experts of its layers (default: the model's)")
      ->check(CLI::Range(1, 100000));
  plan->add_option("--to", o->layout, "What it is planned as")->check(CLI::IsMember(layouts));
  plan->add_option("--max-shard-size", o->max_shard_size, "Bytes of data in a file that is planned");
  plan->add_option("--tasks", o->tasks, "Tasks that share the work")->check(CLI::Range(1, 1'000'000));
  plan->add_option("--work", o->work, "Directory to work in");
  plan->add_option("--rounds", o->rounds, "Rounds that count")->check(CLI::Range(1, 1000));
  plan->fallthrough();
  return [o, &common] { return run(*o, common); };
}

}  // namespace twofour
