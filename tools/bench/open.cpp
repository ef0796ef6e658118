#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "formats/error.h"
#include "formats/safetensors.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/stopwatch.h"
#include "lib/lint/lint.h"
#include "lib/look/inspect/inspect.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tools/bench/bench.h"
#include "tools/cli/arguments.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The time to open a checkpoint of many tensors, compared with the time in which the JSON library reads and
/// parses its headers into documents. Both alternate in rounds. Ratios are to the time of the JSON library in
/// the same round.
struct OpenBench {
  uint64_t tensors = 0, files = 0, header_bytes = 0, index_bytes = 0;
  Spread json_seconds;
  Spread open_ratio;     ///< Checkpoint::open, the index and all checks included
  Spread lint_ratio;     ///< lint with headers only
  Spread inspect_ratio;  ///< open and inspect, without weights
};

constexpr uint64_t kFiles = 16, kExperts = 128;

std::string file_name(uint64_t i) { return fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, kFiles); }

/// Adds the four tensors of one small matrix, as ModelOpt stores it.
void add_matrix(const std::string& module, std::vector<TensorInfo>& to) {
  constexpr int64_t kN = 64, kK = 128;
  to.push_back({module + ".weight", DType::kU8, {kN, kK / 2}});
  to.push_back({module + ".weight_scale", DType::kF8E4M3, {kN, kK / 16}});
  to.push_back({module + ".weight_scale_2", DType::kF32, {}});
  to.push_back({module + ".input_scale", DType::kF32, {}});
}

/// Writes the headers of files that have layers of routed experts. Returns the number of tensors.
uint64_t write_headers(const fs::path& directory, uint64_t tensors) {
  const uint64_t matrices = std::max(kFiles, tensors / 4);
  nlohmann::json map;
  uint64_t made = 0, bytes = 0;
  for (uint64_t file = 0, matrix = 0; file < kFiles; ++file) {
    std::vector<TensorInfo> infos;
    for (; matrix < matrices * (file + 1) / kFiles; ++matrix) {
      const uint64_t expert = matrix / 3;
      const char* leaf = matrix % 3 == 0 ? "gate_proj" : matrix % 3 == 1 ? "up_proj" : "down_proj";
      add_matrix(fmt::format("model.layers.{}.mlp.experts.{}.{}", expert / kExperts, expert % kExperts, leaf),
                 infos);
    }
    const uint64_t data = assign_offsets(infos);
    const std::string header = format_safetensors_header(infos, {{"format", "pt"}});
    write_text(directory / file_name(file), header);
    fs::resize_file(directory / file_name(file), header.size() + data);
    for (const TensorInfo& t : infos) map[t.name] = file_name(file);
    made += infos.size();
    bytes += data;
  }
  write_text(directory / kIndexName,
             nlohmann::json{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}.dump());
  write_text(directory / "config.json", "{}");
  return made;
}

/// Reads and parses every header into a document. Returns the bytes of the headers.
uint64_t parse_made_headers(const fs::path& directory) {
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < kFiles; ++i) {
    const InputFile file(directory / file_name(i));
    uint8_t prefix[kSafetensorsPrefix];
    file.read(0, prefix);
    std::string text(parse_safetensors_prefix("bench", prefix, file.size()), '\0');
    file.read(kSafetensorsPrefix, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
    if (!nlohmann::json::parse(text).is_object()) throw Error("bench: expected an object");
    bytes += kSafetensorsPrefix + text.size();
  }
  return bytes;
}

template <class F>
double seconds_of(F&& f) {
  check_interrupt();
  const Stopwatch watch;
  f();
  return watch.seconds();
}

/// Makes a checkpoint of NVFP4 experts and opens it. The checkpoint has about `tensors` tensors in 16 files
/// below `work`. The files are sparse, so their data take no space.
OpenBench bench_open(const fs::path& work, uint64_t tensors, int rounds) {
  const fs::path directory = work / "headers";
  fs::create_directory(directory);
  OpenBench bench;
  bench.tensors = write_headers(directory, tensors);
  bench.files = kFiles;
  bench.index_bytes = fs::file_size(directory / kIndexName);
  std::vector<double> json, open, lint_headers, inspected;
  for (int round = -1; round < rounds; ++round) {  // round -1 is not counted
    const double base = seconds_of([&] { bench.header_bytes = parse_made_headers(directory); });
    const double opened = seconds_of([&] { Checkpoint::open(directory); });
    Progress progress;
    const double linted = seconds_of([&] { lint(directory, {.headers_only = true}, progress); });
    const double seen = seconds_of([&] { inspect(Checkpoint::open(directory), {}, false, 1); });
    if (round < 0) continue;
    json.push_back(base);
    open.push_back(opened / base);
    lint_headers.push_back(linted / base);
    inspected.push_back(seen / base);
  }
  bench.json_seconds = spread_of(json);
  bench.open_ratio = spread_of(open);
  bench.lint_ratio = spread_of(lint_headers);
  bench.inspect_ratio = spread_of(inspected);
  return bench;
}

struct OpenArguments {
  std::string work = "/dev/shm";
  uint64_t tensors = 100'000;
  int rounds = 10;
};

int run_open(const OpenArguments& o, const Common& common) {
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

std::function<int()> setup_bench_open(Arguments& args, const Common& common) {
  auto o = std::make_shared<OpenArguments>();
  args.option("--tensors", o->tensors, "Tensors of the checkpoint that is made").range(64, 10'000'000);
  args.option("--work", o->work, "Directory to work in").value_name("DIRECTORY");
  args.option("--rounds", o->rounds, "Measured rounds, after a warm-up").range(1, 1000);
  return [o, &common] { return run_open(*o, common); };
}

}  // namespace twofour
