#pragma once
#include <cstdint>
#include <filesystem>

#include "lib/bench_convert.h"

namespace twofour {

/// Opening a checkpoint of many tensors against what the JSON library needs for its headers: to read and to
/// parse them into documents, and nothing else. Alternating rounds; ratios are over that time, by round.
struct OpenBench {
  uint64_t tensors = 0, files = 0, header_bytes = 0, index_bytes = 0;
  Spread json_seconds;
  Spread open_ratio;     ///< Checkpoint::open, the index and all checks included
  Spread lint_ratio;     ///< lint with headers only
  Spread inspect_ratio;  ///< open and inspect, without weights
};

/// Makes a checkpoint of NVFP4 experts of about `tensors` tensors in 16 files below `work`, whose data are
/// holes that take no space, and opens it.
OpenBench bench_open(const std::filesystem::path& work, uint64_t tensors, int rounds);

}  // namespace twofour
