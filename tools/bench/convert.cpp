#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "formats/layouts/kmajor_planes.h"
#include "kernels/device/isa.h"
#include "kernels/pack/prune_pack.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/stopwatch.h"
#include "lib/synth/synth.h"
#include "tools/bench/bench.h"
#include "tools/cli/arguments.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The speed of pruning and packing in memory on one core. It is compared with memcpy of the same buffer in
/// the same round.
struct PackBench {
  Isa isa;
  Spread ratio;                    ///< input bytes/s divided by memcpy's bytes/s
  double input_gb_s, memcpy_gb_s;  ///< medians
};

/// A command of twofour, compared with a command of the system. They alternate in each round.
struct CommandBench {
  uint64_t bytes = 0;             ///< bytes that the system's command copies or reads
  Spread seconds, other_seconds;  ///< times of twofour's command and of the system's
  Spread ratio;                   ///< the system's time divided by twofour's, by round
  uint64_t max_rss = 0;           ///< peak memory of twofour's command, bytes
};

struct ConvertBenchOptions {
  fs::path program;                  ///< twofour
  fs::path source;                   ///< checkpoint
  fs::path work;                     ///< directory where copies are made and removed
  std::vector<std::string> command;  ///< measured, without its directories: {"convert", "--to", "v7"}
  bool copy_output = false;          ///< compare with `cp` of the output instead of the source
  bool verify = false;
  bool sync = false;  ///< the time of both includes `sync -f` of the work directory
  int jobs = 1;
  int rounds = 10;
};

/// A buffer whose pages are allocated before the clock starts.
class Pages {
 public:
  explicit Pages(size_t bytes)
      : data_(static_cast<uint8_t*>(::operator new (bytes, std::align_val_t{4096}))) {
    std::memset(data_, 1, bytes);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { ::operator delete (data_, std::align_val_t{4096}); }
  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_;
};

/// Fills a buffer with random bytes. `mask` selects the bits that may be 1; 0x3F gives valid block scales.
void fill_random(uint8_t* to, size_t bytes, uint64_t seed, uint8_t mask) {
  for (size_t i = 0; i < bytes; ++i) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    to[i] = static_cast<uint8_t>(seed >> 24) & mask;
  }
}

uint64_t directory_bytes(const fs::path& directory) {
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

/// Runs `round()` several times. Each call runs both commands, and returns the run of twofour's command and
/// the seconds of the other. The first round warms the page cache and does not count.
template <class F>
CommandBench bench_commands(int rounds, F&& round) {
  CommandBench result;
  std::vector<double> ours, theirs, ratios;
  for (int i = -1; i < rounds; ++i) {
    const auto& [run, other_seconds] = round();
    if (i < 0) continue;
    ours.push_back(run.seconds);
    theirs.push_back(other_seconds);
    ratios.push_back(other_seconds / run.seconds);
    result.max_rss = std::max(result.max_rss, run.max_rss);
  }
  result.seconds = spread_of(ours);
  result.other_seconds = spread_of(theirs);
  result.ratio = spread_of(ratios);
  return result;
}

/// Packs `bytes` bytes of random codes and scales of [n, k] matrices as v7, to cache lines that are not in
/// the cache, `rounds` times.
std::vector<PackBench> bench_pack(uint64_t bytes, int64_t n, int64_t k, int rounds) {
  const auto code_bytes = static_cast<size_t>(n * k / 2), scale_bytes = static_cast<size_t>(n * k / kGroup);
  const size_t experts = std::max<size_t>(1, bytes / (code_bytes + scale_bytes));
  const size_t in_expert = code_bytes + scale_bytes;
  const Shape shape{1, n, k, false};
  size_t out_expert = 0;
  for (int p = 0; p < KMajorPlanes::part_count; ++p)
    out_expert += static_cast<size_t>(KMajorPlanes::part(p, shape).bytes());
  const Pages in(experts * in_expert), out(experts * out_expert), copy(experts * in_expert);
  fill_random(in.data(), experts * in_expert, 88172645463325252u, 0xFF);
  for (size_t e = 0; e < experts; ++e)
    fill_random(in.data() + e * in_expert + code_bytes, scale_bytes, e + 1, 0x3F);

  std::vector<PackBench> results;
  for (const Isa isa : available_isas()) {
    std::vector<double> ratios, pack_rates, copy_rates;
    const double total = static_cast<double>(experts * in_expert);
    for (int round = -1; round < rounds; ++round) {  // round -1 is not counted
      check_interrupt();
      Stopwatch watch;
      std::memcpy(copy.data(), in.data(), experts * in_expert);
      const double copy_seconds = watch.lap();
      for (size_t e = 0; e < experts; ++e) {
        const uint8_t* codes = in.data() + e * in_expert;
        uint8_t* parts[KMajorPlanes::part_count] = {out.data() + e * out_expert};
        for (int p = 1; p < KMajorPlanes::part_count; ++p)
          parts[p] = parts[p - 1] + KMajorPlanes::part(p - 1, shape).bytes();
        prune_pack<KMajorPlanes>({codes, codes + code_bytes, k / 2, k / kGroup, n, k}, shape, 0, parts, isa,
                                 Stores::streaming);
      }
      const double pack_seconds = watch.lap();
      if (round < 0) continue;
      ratios.push_back(copy_seconds / pack_seconds);
      pack_rates.push_back(total / 1e9 / pack_seconds);
      copy_rates.push_back(total / 1e9 / copy_seconds);
    }
    results.push_back({isa, spread_of(ratios), spread_of(pack_rates).median, spread_of(copy_rates).median});
  }
  return results;
}

/// Compares a command that writes an artifact with `cp -r --reflink=never` of its source or of its output.
CommandBench bench_convert(const ConvertBenchOptions& o) {
  const fs::path copied = o.work / "twofour-bench-cp", converted = o.work / "twofour-bench-convert";
  std::vector<std::string> convert{o.program.string()};
  convert.insert(convert.end(), o.command.begin(), o.command.end());
  convert.insert(convert.end(),
                 {o.source.string(), converted.string(), "--jobs", std::to_string(o.jobs), "--quiet"});
  if (!o.verify) convert.push_back("--no-verify");
  const fs::path original = o.copy_output ? converted : o.source;
  const std::vector<std::string> cp{"cp", "-r", "--reflink=never", original.string(), copied.string()};
  const auto timed = [&](const std::vector<std::string>& command) {
    ProcessRun run = run_process(command);
    if (o.sync) run.seconds += run_process({"sync", "-f", o.work.string()}).seconds;
    return run;
  };
  // Copy the source first. Each command starts with the memory that the other command released.
  const auto copy = [&] {
    const double seconds = timed(cp).seconds;
    fs::remove_all(copied);
    return seconds;
  };
  uint64_t bytes = 0;
  CommandBench result = bench_commands(o.rounds, [&] {
    double cp_seconds = o.copy_output ? 0 : copy();
    const ProcessRun run = timed(convert);
    if (o.copy_output) cp_seconds = copy();
    if (bytes == 0) bytes = directory_bytes(original);
    fs::remove_all(converted);
    return std::pair(run, cp_seconds);
  });
  result.bytes = bytes;
  return result;
}

/// Compares lint of a valid checkpoint with `cat` of its weight files to /dev/null. `program` is twofour and
/// `source` is a directory.
CommandBench bench_lint(const fs::path& program, const fs::path& source, int jobs, int rounds) {
  uint64_t bytes = 0;
  std::vector<std::string> cat{"sh", "-c", "cat \"$@\" >/dev/null", "cat"};
  for (const auto& entry : fs::directory_iterator(source)) {
    if (entry.path().extension() != ".safetensors") continue;
    cat.push_back(entry.path().string());
    bytes += entry.file_size();
  }
  const std::vector<std::string> lint{program.string(),     "lint",   source.string(), "--jobs",
                                      std::to_string(jobs), "--quiet"};
  CommandBench result = bench_commands(rounds, [&] {
    const double cat_seconds = run_process(cat).seconds;
    return std::pair(run_process(lint), cat_seconds);
  });
  result.bytes = bytes;
  return result;
}

struct ConvertBenchArguments {
  std::string source, work = "/dev/shm", shape = "qwen3-next", layout = "v7";
  std::vector<std::string> options;
  int64_t layers = 1;
  std::optional<int64_t> experts;
  int rounds = 10;
  bool sync = false, skip_pack = false;
};

Json bench_packing(const ConvertBenchArguments& o, const Common& common) {
  constexpr uint64_t kBytes = 288u << 20;  // 256 MiB of codes, more than any cache holds
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

/// The figures of twofour's command and of the command to compare, under the names `ours` and `other`.
Json command_to_json(const CommandBench& b, const std::string& ours, const std::string& other) {
  return {{"bytes", b.bytes},
          {ours + "_seconds", spread_to_json(b.seconds)},
          {other + "_seconds", spread_to_json(b.other_seconds)},
          {"ratio", spread_to_json(b.ratio)},
          {"max_rss", b.max_rss}};
}

/// A comparison as text: "2.10 GB/s, cp of the source (1.70 GB) 1.90: 1.10 (1.05 to 1.15) of cp, peak memory
/// 100 MB".
std::string command_text(const CommandBench& b, const char* other, const char* what) {
  const double gb = static_cast<double>(b.bytes) / 1e9;
  return fmt::format("{:.2f} GB/s, {} of the {} ({:.2f} GB) {:.2f}: {} of {}, peak memory {}",
                     gb / b.seconds.median, other, what, gb, gb / b.other_seconds.median,
                     spread_text(b.ratio), other, format_bytes(b.max_rss));
}

/// The arguments of the command that writes the layout or format, without directories.
std::vector<std::string> command_for(const ConvertBenchArguments& o) {
  const bool own_command = o.layout == "prune" || o.layout == "quantize";
  std::vector<std::string> command{own_command ? o.layout : "convert"};
  if (!own_command) command.insert(command.end(), {"--to", o.layout});
  command.insert(command.end(), o.options.begin(), o.options.end());
  return command;
}

Json bench_converting(const ConvertBenchArguments& o, const Common& common, const fs::path& source,
                      const fs::path& work) {
  Json list = Json::array();
  // A format that is larger than the source's is compared with a copy of the output.
  const bool copy_output = o.layout == "bf16" || o.layout == "fp8";
  for (const bool verify : {false, true}) {
    ConvertBenchOptions options;
    options.program = twofour_program();
    options.source = source;
    options.work = work;
    options.command = command_for(o);
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

/// Converts the weights of `source` to BF16, as input for quantization.
fs::path dequantized(const fs::path& source, const fs::path& work, const Common& common) {
  const fs::path to = work / "bf16";
  run_process({twofour_program().string(), "convert", source.string(), to.string(), "--to", "bf16", "--jobs",
               std::to_string(common.jobs), "--quiet", "--no-verify"});
  return to;
}

/// The checkpoint that was named, or a checkpoint made for the measurement.
fs::path source_for(const ConvertBenchArguments& o, const fs::path& work, const Common& common) {
  if (!o.source.empty()) return o.source;
  const fs::path source = work / "source";
  SynthOptions synth_options;
  synth_options.shape = o.shape;
  synth_options.layers = o.layers;
  synth_options.jobs = common.jobs;
  synth_options.experts = o.experts;
  with_progress(common, [&](Progress& progress) { synth(source, synth_options, progress); });
  return source;
}

int run_lint(const ConvertBenchArguments& o, const Common& common) {
  const WorkDirectory work(o.work);
  const CommandBench b =
      bench_lint(twofour_program(), source_for(o, work.path(), common), common.jobs, o.rounds);
  if (common.json) {
    print_json(command_to_json(b, "lint", "cat"));
  } else {
    fmt::print("lint, {} jobs: {}\n", common.jobs, command_text(b, "cat", "weights"));
  }
  return kDone;
}

int run_convert(const ConvertBenchArguments& o, const Common& common) {
  const WorkDirectory work(o.work);
  Json json;
  fs::path source = source_for(o, work.path(), common);
  if (o.source.empty() && o.layout == "quantize") {
    const fs::path to = dequantized(source, work.path(), common);
    fs::remove_all(source);
    source = to;
  }
  // Measure whole commands first, because the peak memory of a child includes the memory of its parent.
  json["convert"] = bench_converting(o, common, source, work.path());
  if (!o.skip_pack) json["pack"] = bench_packing(o, common);
  if (common.json) print_json(json);
  return kDone;
}

void add_source_options(Arguments& args, ConvertBenchArguments& o) {
  args.option("--source", o.source, "Checkpoint to measure with, instead of one made by synth")
      .value_name("PATH");
  args.option("--shape", o.shape, "Shape of the checkpoint that is made").one_of(synth_shapes());
  args.option("--layers", o.layers, "Its layers").range(1, 1000);
  args.option("--experts", o.experts, "Experts of its layers")
      .range(1, kSynthMostExperts)
      .default_text("the model's");
  args.option("--work", o.work, "Directory to work in; a memory-backed one keeps the disk's noise out")
      .value_name("DIRECTORY");
  args.option("--rounds", o.rounds, "Measured rounds, after a warm-up").range(1, 1000);
}

}  // namespace

std::function<int()> setup_bench_convert(Arguments& args, const Common& common) {
  auto o = std::make_shared<ConvertBenchArguments>();
  std::vector<std::string> targets = convert_targets();
  targets.insert(targets.end(), {"prune", "quantize"});
  add_source_options(args, *o);
  args.option("--to", o->layout, "What convert writes; or prune, or quantize").one_of(targets);
  args.option("--option", o->options,
              "Word of the measured command line: --option=--block-scale --option=mse")
      .value_name("WORD");
  args.flag("--sync", o->sync, "End each run with sync -f, within its time");
  args.flag("--no-pack", o->skip_pack, "Only whole commands");
  return [o, &common] { return run_convert(*o, common); };
}

std::function<int()> setup_bench_lint(Arguments& args, const Common& common) {
  auto o = std::make_shared<ConvertBenchArguments>();
  add_source_options(args, *o);
  return [o, &common] { return run_lint(*o, common); };
}

}  // namespace twofour
