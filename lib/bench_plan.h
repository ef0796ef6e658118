#pragma once
#include <cstdint>
#include <filesystem>

#include "lib/bench_convert.h"
#include "lib/plan/plan.h"

namespace twofour {

/// Planning alone, of a checkpoint whose files are all there but hold headers and scalars only.
struct PlanBench {
  size_t tensors = 0, shards = 0, outputs = 0;  ///< tensors and files of the source, files of the artifact
  uint64_t source_bytes = 0, header_bytes = 0;
  Spread parse_seconds;  ///< all headers, read and parsed by the JSON library, one after the other
  Spread open_seconds, plan_seconds, split_seconds;
  Spread ratio;  ///< opening, planning and splitting over parsing, by round
  double balance = 0, overhead = 0;
};

/// Opens `source`, plans and splits, `rounds` times.
PlanBench bench_plan(const std::filesystem::path& source, const Recipe& recipe, size_t tasks, int rounds);

}  // namespace twofour
