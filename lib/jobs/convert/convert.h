#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "kernels/device/isa.h"
#include "lib/base/findings/finding.h"
#include "lib/base/io/file_states.h"
#include "lib/base/threads/progress.h"
#include "lib/lint/weights/written_weights.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/output/output_directory.h"
#include "lib/write/output/shard_record.h"
#include "lib/write/plan/plan.h"
#include "lib/write/transform/reference_checkpoint.h"

namespace twofour {

struct ConvertOptions {
  int jobs = 1;
  bool verify = true;                     ///< read the output back and compare hashes
  Existing existing = Existing::kRefuse;  ///< for a destination that is not claimed yet
  Isa isa = Isa::portable;
  Device device = Device::cpu;  ///< the device of solvers
  Io io = Io::kBuffered;        ///< the way in which the output is written; the source has a separate setting
  const ReferenceCheckpoint* kept =
      nullptr;  ///< for quantize, the checkpoint of the recipe's given scales, whose codes are compared
  const FileStates* inputs = nullptr;  ///< files that must not change until the end of the run
  /// Counts weights as they are read back, so that lint() of the result need not read them. Null: they are
  /// only compared with their hashes. Used if `verify` is set.
  WrittenWeights* written = nullptr;
  /// Called when all files are written, before the directory counts as complete. An exception leaves it
  /// unfinished. A resumed run that finds everything finished does not call it.
  std::function<void(Progress&)> before_end = {};
};

struct ConvertResult {
  uint64_t source_bytes = 0;    ///< size of all weight files of the source
  uint64_t bytes_read = 0;      ///< bytes of these files that were read; a byte counts each time it is read
  uint64_t bytes_written = 0;   ///< size of all weight files that were written, with headers
  uint64_t bytes_verified = 0;  ///< bytes that were read back
  bool was_complete = false;    ///< a resumed run found everything finished and only verified it; the other
                                ///< figures are empty
  size_t files_kept = 0;        ///< number of weight files that were finished before a run resumed
  uint64_t bytes_kept = 0;      ///< size of these files, which were verified, too
  double seconds = 0;
  std::vector<ModuleReport> modules;  ///< modules that were made, in the order of the plan
  Findings findings;                  ///< findings of the plan and of the run
};

/// A file of an artifact that has no weights.
struct PlannedFile {
  std::string name;
  uint64_t bytes;
  bool exact = true;  ///< false for twofour.json, whose length depends on figures that only the run finds
};
/// All files without weights that convert() will write.
std::vector<PlannedFile> planned_files(const Checkpoint& source, const Plan& plan);

/// Writes the artifact that `plan` describes, expert by expert, in bounded memory. Files appear under their
/// names by rename; the index and twofour.json come last. Throws Error on I/O errors, bad block scales and
/// different hashes, and Interrupted on Ctrl-C. Weight files that are finished by then stay, in a directory
/// that is marked as unfinished, so that another run can resume. Nothing stays if no file was finished or if
/// the source was refused.
ConvertResult convert(const Checkpoint& source, const Plan& plan, const Destination& destination,
                      const ConvertOptions& options, Progress& progress);
/// Claims the destination first and then converts as above. Throws Error like Destination, and if the
/// destination overlaps the reference checkpoint.
ConvertResult convert(const Checkpoint& source, const Plan& plan, const std::filesystem::path& destination,
                      const ConvertOptions& options, Progress& progress);

/// Completes an artifact whose weight files are all in `directory`. `records` has a record of each. It writes
/// the other files, the index and twofour.json, but does not call finish() of the directory. Throws Error
/// like join_records(), and on I/O errors.
ConvertResult complete_artifact(const Checkpoint& source, const Plan& plan, OutputDirectory& directory,
                                std::vector<ShardRecord> records, Progress& progress);

/// The path that names a checkpoint: its directory or, if it is one file, that file.
std::filesystem::path given_path(const Checkpoint& checkpoint);

}  // namespace twofour
