#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "lib/bench_convert.h"
#include "lib/io/file.h"

namespace twofour {

struct IoBenchOptions {
  std::filesystem::path work;    ///< directory where files are made and removed
  std::filesystem::path source;  ///< a file, or a directory whose *.safetensors are read; empty: one is made
  uint64_t bytes = 2'000'000'000;
  uint64_t request = 4u << 20;
  int rounds = 3;
};

/// How fast bytes pass one way.
struct IoRate {
  bool write = false;
  Io io = Io::kCached;  ///< kCached: a plain loop of read(2), or of write(2) and then fsync(2), as dd's
  int in_flight = 1;
  Spread gb_s{};
};

struct IoBench {
  uint64_t read_bytes = 0, written_bytes = 0;  ///< by each measurement
  bool in_memory = false;                      ///< the work directory: nothing there is cold
  std::vector<IoRate> rates;
};

/// Reads files whose pages were dropped before, and writes files to the disk, fsync included, through the
/// page cache and past it, by 1, 2, 4 and 8 requests at a time, in alternating rounds. What file system
/// refuses direct I/O has no such rates. The pages of `source` are not in the page cache afterwards.
IoBench bench_io(const IoBenchOptions& options);

}  // namespace twofour
