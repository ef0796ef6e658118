#include "lib/bench_convert.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include "formats/error.h"
#include "formats/layouts/kmajor_planes.h"
#include "kernels/pack/prune_pack.h"
#include "lib/io/file.h"
#include "lib/threads/interrupt.h"
#include "lib/threads/stopwatch.h"

extern char** environ;

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// A buffer whose pages exist before the clock starts.
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

/// Random bytes; scales without the bytes that are no block scale.
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

/// `round()` runs both commands and gives our run and the other's seconds; the first warms the page cache.
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

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {values.front(), n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2, values.back()};
}

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
    for (int round = -1; round < rounds; ++round) {  // the first is not counted
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

ProcessRun run_process(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const Stopwatch watch;
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, argv[0], nullptr, nullptr, argv.data(), environ);
  if (error != 0) throw Error(fmt::format("{}: cannot start: {}", arguments[0], system_message(error)));
  int status = 0;
  struct rusage usage {};
  while (::wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  ProcessRun run{watch.seconds(), static_cast<uint64_t>(usage.ru_maxrss) * 1024};
  check_interrupt();
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw Error(fmt::format("{}: expected it to end with 0, found {}", fmt::join(arguments, " "),
                            WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status)));
  }
  return run;
}

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
  // A copy of the source comes first, and both start with the memory that the other has given back.
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

}  // namespace twofour
