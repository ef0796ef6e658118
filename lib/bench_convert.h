#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/device/isa.h"

namespace twofour {

/// Smallest, middle and largest of some measurements.
struct Spread {
  double min = 0, median = 0, max = 0;
};
Spread spread_of(std::vector<double> values);

/// Prune and pack in memory on one core, against memcpy of the same buffer in the same round.
struct PackBench {
  Isa isa;
  Spread ratio;                    ///< input bytes/s over those of memcpy
  double input_gb_s, memcpy_gb_s;  ///< medians
};

/// `bytes` of random codes and scales of [n, k] matrices, packed as v7 to fresh cache lines, `rounds` times.
std::vector<PackBench> bench_pack(uint64_t bytes, int64_t n, int64_t k, int rounds);

/// How a whole command ran.
struct ProcessRun {
  double seconds = 0;
  uint64_t max_rss = 0;  ///< bytes
};

/// Starts a program, waits for it, throws Error unless it ends with 0.
ProcessRun run_process(const std::vector<std::string>& arguments);

/// A command of twofour against one of the system's, in turn, round by round.
struct CommandBench {
  uint64_t bytes = 0;             ///< that the system's command copies or reads
  Spread seconds, other_seconds;  ///< of ours and of the system's
  Spread ratio;                   ///< the system's time over ours, by round
  uint64_t max_rss = 0;           ///< of ours, bytes
};

struct ConvertBenchOptions {
  std::filesystem::path program;     ///< twofour itself
  std::filesystem::path source;      ///< checkpoint
  std::filesystem::path work;        ///< directory where copies are made and removed
  std::vector<std::string> command;  ///< what is measured: {"convert", "--to", "v7"}, without its directories
  bool copy_output = false;          ///< against `cp` of what was written; else of the source
  bool verify = false;
  bool sync = false;  ///< `sync -f` of the work directory within the time of both
  int jobs = 1;
  int rounds = 10;
};

/// A command that writes an artifact against `cp -r --reflink=never` of its source or of what it wrote.
CommandBench bench_convert(const ConvertBenchOptions& options);

/// lint of a sound checkpoint against `cat` of its weight files to /dev/null. `program` is twofour itself,
/// `source` a directory.
CommandBench bench_lint(const std::filesystem::path& program, const std::filesystem::path& source, int jobs,
                        int rounds);

}  // namespace twofour
