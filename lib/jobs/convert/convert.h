#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/device/isa.h"
#include "lib/base/findings/finding.h"
#include "lib/base/io/file_states.h"
#include "lib/base/threads/progress.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/output/output_directory.h"
#include "lib/write/output/shard_record.h"
#include "lib/write/plan/plan.h"
#include "lib/write/transform/reference_checkpoint.h"

namespace twofour {

struct ConvertOptions {
  int jobs = 1;
  bool verify = true;                     ///< read the output back and compare hashes
  Existing existing = Existing::kRefuse;  ///< of a destination that is not claimed before
  Isa isa = Isa::portable;
  Device device = Device::cpu;  ///< of solvers
  Io io = Io::kBuffered;        ///< how output is written; the source has its own
  const ReferenceCheckpoint* kept =
      nullptr;  ///< quantize: the checkpoint of the recipe's given scales, to compare with
  const FileStates* inputs = nullptr;  ///< must not change until the end of the run
};

struct ConvertResult {
  uint64_t source_bytes = 0;    ///< whole weight files of the source
  uint64_t bytes_read = 0;      ///< of them; a byte counts each time it is read
  uint64_t bytes_written = 0;   ///< whole weight files, headers included
  uint64_t bytes_verified = 0;  ///< read back
  bool was_complete = false;    ///< resumed: everything was finished and was only verified; the rest is empty
  size_t files_kept = 0;        ///< resumed: weight files that were finished
  uint64_t bytes_kept = 0;      ///< bytes of these files, verified too
  double seconds = 0;
  std::vector<ModuleReport> modules;  ///< modules that were made, in the plan's order
  Findings findings;                  ///< of the plan and of the run
};

/// A file of an artifact that holds no weights.
struct PlannedFile {
  std::string name;
  uint64_t bytes;
  bool exact = true;  ///< twofour.json has figures that only the run finds
};
/// All files without weights, as convert() will write them.
std::vector<PlannedFile> planned_files(const Checkpoint& source, const Plan& plan);

/// Writes the artifact that `plan` describes, expert by expert, in bounded memory; files appear by rename,
/// the index and twofour.json last. Throws Error on I/O errors, bad block scales and hashes that differ,
/// Interrupted on Ctrl-C. Weight files that are finished by then stay for a run that resumes, in a directory
/// that is marked as unfinished. Nothing stays if no file was finished or the source is refused.
ConvertResult convert(const Checkpoint& source, const Plan& plan, const Destination& destination,
                      const ConvertOptions& options, Progress& progress);
/// Claims the destination first. Throws Error like Destination, and if it overlaps the reference checkpoint.
ConvertResult convert(const Checkpoint& source, const Plan& plan, const std::filesystem::path& destination,
                      const ConvertOptions& options, Progress& progress);

/// Completes an artifact that has all its weight files in `directory` and a record of each: writes the other
/// files, the index and twofour.json. The directory remains to be finished. Throws Error like join_records()
/// and on I/O errors.
ConvertResult complete_artifact(const Checkpoint& source, const Plan& plan, OutputDirectory& directory,
                                std::vector<ShardRecord> records, Progress& progress);

}  // namespace twofour
