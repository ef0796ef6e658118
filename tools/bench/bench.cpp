#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "kernels/device/device.h"
#include "lib/bench_convert.h"
#include "tools/bench/measure_kernels.h"
#include "lib/bench_open.h"
#include "lib/synth/synth.h"
#include "tools/bench/bench.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string source, work = "/dev/shm", shape = "qwen3-next", layout = "v7";
  std::vector<std::string> options;
  int64_t layers = 1, experts = 0;
  int rounds = 10;
  bool sync = false, skip_pack = false;
};

Json bench_packing(const Options& o, const Common& common) {
  constexpr uint64_t kBytes = 288u << 20;  // 256 MiB of codes: beyond any cache
  constexpr int64_t kN = 1024, kK = 2048;  // gate and up of a Qwen3-Next expert
  Json list = Json::array();
  for (const PackBench& b : bench_pack(kBytes, kN, kK, o.rounds)) {
    list.push_back({{"isa", isa_name(b.isa)},
                    {"input_gb_s", b.input_gb_s},
                    {"memcpy_gb_s", b.memcpy_gb_s},
                    {"ratio", spread_to_json(b.ratio)}});
    if (common.json) continue;
    fmt::print("prune and pack [{}, {}], {}, 1 core: {:.1f} GB/s in, memcpy {:.1f}: {} of memcpy\n", kN, kK,
               isa_name(b.isa), b.input_gb_s, b.memcpy_gb_s, spread_text(b.ratio));
  }
  return list;
}

/// Figures of a command of ours and of the one it is held against, each by its name.
Json command_to_json(const CommandBench& b, const std::string& ours, const std::string& other) {
  return {{"bytes", b.bytes},
          {ours + "_seconds", spread_to_json(b.seconds)},
          {other + "_seconds", spread_to_json(b.other_seconds)},
          {"ratio", spread_to_json(b.ratio)},
          {"max_rss", b.max_rss}};
}

/// "2.10 GB/s, cp of the source (1.70 GB) 1.90: 1.10 (1.05 to 1.15) of cp, peak memory 100 MB"
std::string command_text(const CommandBench& b, const char* other, const char* what) {
  const double gb = static_cast<double>(b.bytes) / 1e9;
  return fmt::format("{:.2f} GB/s, {} of the {} ({:.2f} GB) {:.2f}: {} of {}, peak memory {}",
                     gb / b.seconds.median, other, what, gb, gb / b.other_seconds.median,
                     spread_text(b.ratio), other, format_bytes(b.max_rss));
}

/// The command that makes it, without directories.
std::vector<std::string> command_for(const Options& o, const Common& common) {
  const bool own_command = o.layout == "prune" || o.layout == "quantize";
  std::vector<std::string> command{own_command ? o.layout : "convert"};
  if (common.device != "auto") command.insert(command.end(), {"--device", common.device});
  if (!own_command) command.insert(command.end(), {"--to", o.layout});
  command.insert(command.end(), o.options.begin(), o.options.end());
  return command;
}

Json bench_converting(const Options& o, const Common& common, const fs::path& source, const fs::path& work) {
  Json list = Json::array();
  // Larger formats than the source's are held against a copy of what they become.
  const bool copy_output = o.layout == "bf16" || o.layout == "fp8";
  for (const bool verify : {false, true}) {
    ConvertBenchOptions options;
    options.program = fs::read_symlink("/proc/self/exe");
    options.source = source;
    options.work = work;
    options.command = command_for(o, common);
    options.copy_output = copy_output;
    options.verify = verify;
    options.sync = o.sync;
    options.jobs = common.jobs;
    options.rounds = o.rounds;
    const CommandBench b = bench_convert(options);
    const char* copied = copy_output ? "output" : "source";
    Json json = {{"command", options.command}, {"copied", copied}, {"verify", verify}};
    json.update(command_to_json(b, "convert", "cp"));
    list.push_back(std::move(json));
    if (common.json) continue;
    fmt::print("{}{}{}, {} jobs: {}\n", fmt::join(options.command, " "), verify ? "" : " --no-verify",
               o.sync ? ", then sync -f" : "", common.jobs, command_text(b, "cp", copied));
  }
  return list;
}

/// The weights of `source` as BF16, which quantizing starts from.
fs::path dequantized(const fs::path& source, const fs::path& work, const Common& common) {
  const fs::path to = work / "bf16";
  run_process({fs::read_symlink("/proc/self/exe").string(), "convert", source.string(), to.string(), "--to",
               "bf16", "--jobs", std::to_string(common.jobs), "--quiet", "--no-verify"});
  return to;
}

/// The checkpoint that was named, or one made for the purpose.
fs::path source_for(const Options& o, const fs::path& work, const Common& common) {
  if (!o.source.empty()) return o.source;
  const fs::path source = work / "source";
  SynthOptions synth_options;
  synth_options.shape = o.shape;
  synth_options.layers = o.layers;
  synth_options.jobs = common.jobs;
  if (o.experts > 0) synth_options.experts = o.experts;
  with_progress(common, [&](Progress& progress) { synth(source, synth_options, progress); });
  return source;
}

int run_lint(const Options& o, const Common& common) {
  const WorkDirectory work(o.work);
  const CommandBench b = bench_lint(fs::read_symlink("/proc/self/exe"), source_for(o, work.path(), common),
                                    common.jobs, o.rounds);
  if (common.json) {
    print_json(command_to_json(b, "lint", "cat"));
  } else {
    fmt::print("lint, {} jobs: {}\n", common.jobs, command_text(b, "cat", "weights"));
  }
  return kDone;
}

int run(const Options& o, const Common& common) {
  const WorkDirectory work(o.work);
  Json json;
  fs::path source = source_for(o, work.path(), common);
  if (o.source.empty() && o.layout == "quantize") {
    const fs::path to = dequantized(source, work.path(), common);
    fs::remove_all(source);
    source = to;
  }
  // Whole commands first: a child's peak memory counts from that of the process that started it.
  json["convert"] = bench_converting(o, common, source, work.path());
  if (!o.skip_pack) json["pack"] = bench_packing(o, common);
  if (common.json) print_json(json);
  return kDone;
}

int run_kernels(const KernelBenchOptions& o, const Common& common) {
  if (common.device == "cpu") throw Error("--device cpu: expected cuda or auto, found bench kernels");
  KernelBenches benches(o);
  const std::string device = cuda_device()->name;
  const std::string no_cublaslt = cuda::no_cublaslt_reason();
  if (!common.json) fmt::print("{}: copy {:.0f} GB/s\n", device, benches.copy_gb_s());
  if (!common.json && !no_cublaslt.empty()) fmt::print("not measured: cuBLASLt: {}\n", no_cublaslt);
  Json list = Json::array();
  for (const KernelBench& b : benches.run()) {
    list.push_back({{"kernel", b.name},
                    {"shape", b.shape},
                    {"bytes", b.bytes},
                    {"microseconds", spread_to_json(b.microseconds)},
                    {"gb_s", b.gb_s},
                    {"copy_share", b.copy_share},
                    {"tflop_s", b.tflop_s > 0 ? Json(b.tflop_s) : Json()}});
    if (common.json) continue;
    fmt::print("{}, {}: {} us, {:.0f} GB/s, {:.1f} % of copy{}\n", b.name, b.shape,
               spread_text(b.microseconds), b.gb_s, 100 * b.copy_share,
               b.tflop_s > 0 ? fmt::format(", {:.1f} TFLOP/s", b.tflop_s) : "");
  }
  if (common.json) {
    print_json({{"device", device},
                {"copy_gb_s", benches.copy_gb_s()},
                {"no_cublaslt", no_cublaslt.empty() ? Json() : Json(no_cublaslt)},
                {"kernels", list}});
  }
  return kDone;
}

struct OpenOptions {
  std::string work = "/dev/shm";
  uint64_t tensors = 100'000;
  int rounds = 10;
};

int run_open(const OpenOptions& o, const Common& common) {
  const WorkDirectory work(o.work);
  const OpenBench b = bench_open(work.path(), o.tensors, o.rounds);
  if (common.json) {
    print_json({{"tensors", b.tensors},
                {"files", b.files},
                {"header_bytes", b.header_bytes},
                {"index_bytes", b.index_bytes},
                {"json_seconds", spread_to_json(b.json_seconds)},
                {"open_ratio", spread_to_json(b.open_ratio)},
                {"lint_ratio", spread_to_json(b.lint_ratio)},
                {"inspect_ratio", spread_to_json(b.inspect_ratio)}});
    return kDone;
  }
  fmt::print("{} tensors in {} files, headers of {}, an index of {}\n", b.tensors, b.files,
             format_bytes(b.header_bytes), format_bytes(b.index_bytes));
  fmt::print("reading the headers and parsing them by the JSON library: {:.0f} ms; times of that:\n",
             1e3 * b.json_seconds.median);
  for (const auto& [what, ratio] : {std::pair{"open", b.open_ratio},
                                    {"lint --headers-only", b.lint_ratio},
                                    {"open and inspect", b.inspect_ratio}}) {
    fmt::print("  {:<20} {}\n", what, spread_text(ratio));
  }
  return kDone;
}

}  // namespace

std::function<int()> setup_bench(CLI::App& app, const Common& common) {
  app.require_subcommand(1);
  CLI::App* convert = app.add_subcommand(
      "convert", "Prune and pack against memcpy, whole commands against cp, in alternating rounds");
  auto o = std::make_shared<Options>();
  std::vector<std::string> layouts;
  for_each_layout([&]<class L>() { layouts.push_back(L::name); });
  layouts.insert(layouts.end(), {"nvfp4", "bf16", "fp8", "prune", "quantize"});
  const auto add_source = [&](CLI::App& to) {
    to.add_option("--source", o->source, "Checkpoint to measure with (default: one made by synth)");
    to.add_option("--shape", o->shape, "Shape of the one made")->check(CLI::IsMember(synth_shapes()));
    to.add_option("--layers", o->layers, "Its layers")->check(CLI::Range(1, 1000));
    to.add_option("--experts", o->experts, "Experts of its layers (default: the model's)")
        ->check(CLI::Range(1, 100000));
    to.add_option("--work", o->work, "Directory to work in; a memory-backed one keeps the disk's noise out");
    to.add_option("--rounds", o->rounds, "Rounds that count, after one that does not")
        ->check(CLI::Range(1, 1000));
  };
  add_source(*convert);
  convert->add_option("--to", o->layout, "What convert writes; or prune, or quantize")
      ->check(CLI::IsMember(layouts));
  convert
      ->add_option("--option", o->options,
                   "Word of the measured command line, repeated: --option=--block-scale --option=mse")
      ->take_all()
      ->allow_extra_args(false);
  convert->add_flag("--sync", o->sync, "End each run with sync -f, within its time");
  convert->add_flag("--no-pack", o->skip_pack, "Only whole commands");
  convert->fallthrough();

  CLI::App* lint = app.add_subcommand("lint", "Lint every weight byte against cat, in alternating rounds");
  add_source(*lint);
  lint->fallthrough();

  CLI::App* kernels = app.add_subcommand(
      "kernels", "CUDA kernels by shape: weight bytes a second and their share of what a copy moves");
  auto k = std::make_shared<KernelBenchOptions>();
  kernels->add_option("--only", k->filter, "Kernels whose 'name, shape' contains this");
  kernels->add_option("--rounds", k->rounds, "Rounds that count")->check(CLI::Range(1, 1000));
  kernels->fallthrough();

  CLI::App* open = app.add_subcommand(
      "open", "Open, lint --headers-only and inspect many tensors against parsing their headers alone");
  auto h = std::make_shared<OpenOptions>();
  open->add_option("--tensors", h->tensors, "Tensors of the checkpoint that is made")
      ->check(CLI::Range(64, 10'000'000));
  open->add_option("--work", h->work, "Directory to work in");
  open->add_option("--rounds", h->rounds, "Rounds that count, after one that does not")
      ->check(CLI::Range(1, 1000));
  open->fallthrough();

  auto run_plan = setup_bench_plan(app, common);
  auto run_io = setup_bench_io(app, common);
  return [o, k, h, kernels, open, lint, run_plan, run_io, &app, &common] {
    if (app.got_subcommand("plan")) return run_plan();
    if (app.got_subcommand("io")) return run_io();
    if (kernels->parsed()) return run_kernels(*k, common);
    if (open->parsed()) return run_open(*h, common);
    return lint->parsed() ? run_lint(*o, common) : run(*o, common);
  };
}

}  // namespace twofour
