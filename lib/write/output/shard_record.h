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
  uint32_t file = 0;                 ///< index in Plan::files
  std::vector<Hash128> outputs;      ///< one hash for each tensor of the file
  std::map<uint32_t, Json> results;  ///< results by index in Plan::transformations; transformations without a
                                     ///< result are absent
  bool operator==(const ShardRecord&) const = default;
};

/// The record as one line of JSON, without the newline.
std::string format_shard_record(const Plan& plan, const ShardRecord& record);
/// Throws Error, which names `where`, if the text is not the record of a file of this plan.
ShardRecord parse_shard_record(std::string_view where, const Plan& plan, std::string_view text);

/// Opens a weight file of the plan. Throws Error if it is a symbolic link, or if its size or the bytes before
/// its data differ from the plan.
InputFile open_shard(const std::filesystem::path& directory, const OutputFile& file);

/// Reads weight files again, in parallel and in bounded pieces, and compares every byte with plan and
/// records. Returns one text for each record: the error of its file, or an empty text. Throws ReadError if a
/// file cannot be read.
std::vector<std::string> check_shards(const std::filesystem::path& directory, const Plan& plan,
                                      std::span<const ShardRecord> records, Progress& progress);

/// Makes the record of a conversion from the records of its files, in any order. ConversionRecord::files
/// stays empty. Throws Error if a file has no record, or has two records that differ.
ConversionRecord join_records(const Plan& plan, std::span<const ShardRecord> records);

}  // namespace twofour
