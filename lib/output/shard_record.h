#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "lib/io/hash.h"
#include "lib/output/manifest_writer.h"
#include "lib/plan/plan.h"
#include "lib/threads/progress.h"

namespace twofour {

/// All that the manifest says of one finished weight file. A file is the unit in which a conversion is
/// resumed and distributed. A transformation's result is recorded with the file that holds its part 0.
struct ShardRecord {
  uint32_t file = 0;                 ///< in Plan::files
  std::vector<Hash128> outputs;      ///< one a tensor of the file
  std::map<uint32_t, Json> results;  ///< by transformation of the plan, of those that have any
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
ConversionRecord join_records(const Plan& plan, std::span<const ShardRecord> records);

}  // namespace twofour
