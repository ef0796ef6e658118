#include "lib/synth/synth.h"
#include "lib/threads/stopwatch.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tools/cli/command.h"
#include "tools/option_values.h"

namespace twofour {
namespace {

struct Options {
  std::string directory, max_shard_size = "5GB";
  SynthOptions synth;
  int64_t layers = 0, experts = 0;
};

int run(const Options& o, const Common& common) {
  SynthOptions options = o.synth;
  options.jobs = common.jobs;
  options.max_shard_size = parse_size_option("--max-shard-size", o.max_shard_size);
  if (o.layers > 0) options.layers = o.layers;
  if (o.experts > 0) options.experts = o.experts;
  SynthResult result;
  const Stopwatch watch;
  with_progress(common, [&](Progress& progress) { result = synth(o.directory, options, progress); });
  const double seconds = watch.seconds();
  if (options.dry_run && !common.json) {
    for (const auto& [name, bytes] : result.files) fmt::print("file  {}  {} bytes\n", name, bytes);
    fmt::print("would write {}, {}\n", counted(result.tensors, "tensor"), format_bytes(result.bytes));
    return kDone;
  }
  if (common.json) {
    Json files = Json::array();
    for (const auto& [name, bytes] : result.files) files.push_back({{"name", name}, {"bytes", bytes}});
    print_json({{"dry_run", options.dry_run},
                {"shape", options.shape},
                {"dialect", options.dialect},
                {"seed", options.seed},
                {"tensors", result.tensors},
                {"files", files},
                {"bytes", result.bytes},
                {"seconds", seconds}});
  } else if (!common.quiet) {
    fmt::print("{}: {}, {}, {} in {}, {}, {:.0f} MB/s\n", o.directory, options.shape, options.dialect,
               counted(result.tensors, "tensor"), counted(result.shards, "file"), format_bytes(result.bytes),
               static_cast<double>(result.bytes) / 1e6 / seconds);
  }
  return kDone;
}

}  // namespace

std::function<int()> setup_synth(CLI::App& app, const Common& common) {
  auto o = std::make_shared<Options>();
  app.add_option("DST", o->directory, "Directory to write; absent or empty")->required();
  app.add_option("--shape", o->synth.shape, "Model whose names and shapes to take")
      ->required()
      ->check(CLI::IsMember(synth_shapes()));
  app.add_option("--layers", o->layers, "Layers (default: the model's)")->check(CLI::Range(1, 1000));
  app.add_option("--experts", o->experts, "Experts of a layer (default: the model's)")
      ->check(CLI::Range(1, 100000));
  app.add_option("--dialect", o->synth.dialect, "modelopt or compressed-tensors")
      ->check(CLI::IsMember({"modelopt", "compressed-tensors"}));
  app.add_option("--vocab", o->synth.vocab, "Rows of the embedding")->check(CLI::Range(1, 10'000'000));
  add_seed_option(app, o->synth.seed, "Of the weights");
  app.add_option("--max-shard-size", o->max_shard_size, "Bytes of data in a file, decimal: 5GB, 500MB");
  app.add_flag("--headers-only", o->synth.headers_only,
               "Files of full size with holes in place of weights, to try what reads headers only");
  app.add_flag("--dry-run", o->synth.dry_run, "Show what would be written, write nothing");
  return [o, &common] { return run(*o, common); };
}

}  // namespace twofour
