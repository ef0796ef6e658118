#include "lib/bench_plan.h"

#include <nlohmann/json.hpp>

#include "lib/threads/stopwatch.h"
#include "lib/tasks/split.h"

namespace twofour {
namespace {

/// Reads the headers and has the JSON library parse them.
void parse_headers(const Checkpoint& source) {
  std::string text;
  for (const Shard& shard : source.shards()) {
    text.resize(shard.data_begin);
    shard.file.read(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
    const auto parsed = nlohmann::json::parse(text.begin() + kSafetensorsPrefix, text.end());
    if (parsed.empty()) throw Error(fmt::format("{}: expected tensors, found none", shard.name));
  }
}

}  // namespace

PlanBench bench_plan(const std::filesystem::path& path, const Recipe& recipe, size_t tasks, int rounds) {
  PlanBench bench;
  std::vector<double> parse, open, plan, split, ratio;
  for (int round = 0; round < rounds; ++round) {
    Stopwatch watch;
    const Checkpoint source = Checkpoint::open_source(path);
    open.push_back(watch.lap());
    const Plan planned = make_plan(source, recipe);
    plan.push_back(watch.lap());
    const TaskSplit tasks_files = split_tasks(source, planned, tasks);
    split.push_back(watch.lap());
    parse_headers(source);
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

}  // namespace twofour
