#include "lib/synth/synth.h"
#include "lib/base/threads/stopwatch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/cli/option_values.h"

namespace twofour {
namespace {

struct SynthArguments {
  std::string directory, max_shard_size = "5GB";
  SynthOptions synth;
};

/// The help of --experts, with the smallest number of each shape.
std::string experts_help() {
  std::string least;
  for (const std::string& shape : synth_shapes()) {
    const int64_t count = synth_least_experts(shape);
    if (count > 0) least += fmt::format("{}{} {}", least.empty() ? "" : ", ", shape, count);
  }
  return fmt::format("Experts of a layer, at least as many as the router picks for a token: {}", least);
}

std::string dialects_help() {
  std::string text = "Dialects of shapes, the default first:\n";
  for (const std::string& shape : synth_shapes())
    text += fmt::format("  {:<24}{}\n", shape, fmt::join(synth_dialects(shape), ", "));
  return text + "\nlib/synth/README.md says what each of them is.";
}

int run_synth(const SynthArguments& o, const Common& common) {
  SynthOptions options = o.synth;
  options.jobs = common.jobs;
  options.max_shard_size = parse_size_option("--max-shard-size", o.max_shard_size);
  SynthResult result;
  const Stopwatch watch;
  with_progress(common, [&](Progress& progress) { result = synth(o.directory, options, progress); });
  const double seconds = watch.seconds();
  if (options.dry_run && !common.json) {
    for (const auto& [name, bytes] : result.files) print_stdout("file  {}  {} bytes\n", name, bytes);
    print_stdout("would write {}, {}\n", counted(result.tensors, "tensor"), format_bytes(result.bytes));
    return kDone;
  }
  if (common.json) {
    Json files = Json::array();
    for (const auto& [name, bytes] : result.files) files.push_back({{"name", name}, {"bytes", bytes}});
    print_json({{"dry_run", options.dry_run},
                {"shape", options.shape},
                {"dialect", result.dialect},
                {"seed", options.seed},
                {"tensors", result.tensors},
                {"files", files},
                {"bytes", result.bytes},
                {"seconds", seconds}});
  } else if (!common.quiet) {
    print_stdout("{}: {}, {}, {} in {}, {}, {:.0f} MB/s\n", o.directory, options.shape, result.dialect,
                 counted(result.tensors, "tensor"), counted(result.shards, "file"),
                 format_bytes(result.bytes), static_cast<double>(result.bytes) / 1e6 / seconds);
  }
  return kDone;
}

}  // namespace

std::function<int()> setup_synth(Arguments& args, const Common& common) {
  auto o = std::make_shared<SynthArguments>();
  args.option("DST", o->directory, "Directory to write; absent or empty").required();
  args.option("--shape", o->synth.shape, "Model whose names and shapes to take")
      .required()
      .one_of(synth_shapes());
  args.option("--layers", o->synth.layers, "Layers").range(1, 1000).default_text("the model's");
  args.option("--experts", o->synth.experts, experts_help())
      .range(1, kSynthMostExperts)
      .default_text("the model's");
  args.option("--dialect", o->synth.dialect,
              "How NVFP4 is stored, or whose publication of a model it is; released: its maker's")
      .one_of(synth_dialects())
      .default_text("the shape's first of these");
  args.flag("--small", o->synth.small,
            "Divide every size, so that a checkpoint takes megabytes; config.json has the same numbers");
  args.option("--vocab", o->synth.vocab, "Rows of the embedding").range(1, 10'000'000);
  add_seed_option(args, o->synth.seed, "Seed of the weights");
  add_shard_size_option(args, o->max_shard_size);
  args.flag("--headers-only", o->synth.headers_only,
            "Write files of full size with holes instead of weights, to try commands that read only headers");
  args.flag("--dry-run", o->synth.dry_run, "Show what would be written, write nothing");
  args.footer(dialects_help());
  return [o, &common] { return run_synth(*o, common); };
}

}  // namespace twofour
