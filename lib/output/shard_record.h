#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/checkpoint/checkpoint.h"
#include "lib/metrics/quality.h"
#include "lib/io/hash.h"
#include "lib/artifact/manifest.h"
#include "lib/plan/plan.h"
#include "lib/threads/progress.h"
#include "lib/quality.h"

namespace twofour {

/// All that the manifest says of one finished weight file and of what lies in it. A file is the unit in which
/// a conversion is resumed and distributed: what lies in several files is recorded whole with each of them.
struct ShardRecord {
  uint32_t file = 0;             ///< in Plan::files
  std::vector<Hash128> outputs;  ///< one a tensor of the file
  struct Target {
    size_t index;  ///< in Plan::targets
    Quality quality;
    std::vector<SliceHashes> slices;  ///< one a source of the target
    bool operator==(const Target&) const = default;
  };
  std::vector<Target> targets;  ///< with a part in the file
  struct Module {
    size_t index;  ///< in Plan::modules
    Quality quality;
    SliceHashes source;  ///< scales only where they went into the same tensor as the codes
    bool operator==(const Module&) const = default;
  };
  std::vector<Module> modules;  ///< whose codes became a tensor of the file
  struct Matrix {
    size_t index;  ///< in Plan::matrices
    EncodedResult result;
    bool operator==(const Matrix&) const = default;
  };
  std::vector<Matrix> matrices;  ///< with a tensor in the file
  bool operator==(const ShardRecord&) const = default;
};

/// The record as one line of JSON, without the line's end.
std::string format_shard_record(const Plan& plan, const ShardRecord& record);
/// Throws Error naming `where` on what is no record of a file of this plan.
ShardRecord parse_shard_record(std::string_view where, const Plan& plan, std::string_view text);

/// Opens a weight file of the plan. Throws Error on a symbolic link and where its size or what is
/// before its data is not as planned.
InputFile open_shard(const std::filesystem::path& directory, const OutputFile& file);

/// Re-reads weight files in parallel, by bounded reads: are they what plan and records describe, byte for
/// byte? One entry a record: what is wrong with its file, empty where nothing is. Throws ReadError where one
/// cannot be read.
std::vector<std::string> check_shards(const std::filesystem::path& directory, const Plan& plan,
                                      std::span<const ShardRecord> records, Progress& progress);

/// What twofour.json says, from one record a file, in any order; ConversionRecord::files stays empty. Throws
/// Error where a file has no record or two that differ.
ConversionRecord join_records(const Checkpoint& source, const Plan& plan,
                              std::span<const ShardRecord> records);

}  // namespace twofour
