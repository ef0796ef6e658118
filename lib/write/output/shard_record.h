#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "lib/base/io/hash.h"
#include "lib/base/threads/progress.h"
#include "lib/write/output/manifest_writer.h"
#include "lib/write/plan/plan.h"

namespace twofour {

/// The manifest's entries for one finished weight file. A file is the unit in which a conversion is resumed
/// and distributed. A transformation's result is recorded with the file that holds its part 0.
struct ShardRecord {
  uint32_t file = 0;                 ///< in Plan::files
  std::vector<Hash128> outputs;      ///< one for each tensor of the file
  std::map<uint32_t, Json> results;  ///< by transformation of the plan, if it has a result
  bool operator==(const ShardRecord&) const = default;
};

/// The record as one line of JSON, without the line's end.
std::string format_shard_record(const Plan& plan, const ShardRecord& record);
/// Throws Error naming `where` if the text is no record of a file of this plan.
ShardRecord parse_shard_record(std::string_view where, const Plan& plan, std::string_view text);

/// Opens a weight file of the plan. Throws Error on a symbolic link, and if its size or the bytes before its
/// data are not as planned.
InputFile open_shard(const std::filesystem::path& directory, const OutputFile& file);

/// Re-reads weight files in parallel, by bounded reads, and compares them with plan and records, byte for
/// byte. Returns one entry per record: the error of its file, or empty. Throws ReadError if a file cannot be
/// read.
std::vector<std::string> check_shards(const std::filesystem::path& directory, const Plan& plan,
                                      std::span<const ShardRecord> records, Progress& progress);

/// The record of a conversion, from one record per file, in any order; ConversionRecord::files stays empty.
/// Throws Error if a file has no record or two that differ.
ConversionRecord join_records(const Plan& plan, std::span<const ShardRecord> records);

}  // namespace twofour
