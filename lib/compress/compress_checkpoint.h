#pragma once
#include <filesystem>
#include <memory>

#include "lib/artifact/manifest.h"
#include "lib/artifact/recipe.h"
#include "lib/compress/compress.h"
#include "lib/compress/work_folder.h"
#include "lib/convert/convert.h"
#include "lib/output/destination.h"
#include "lib/threads/progress.h"

namespace twofour {

/// Where statistics and streams are until an artifact is whole: beside it, DESTINATION.compressing.
std::filesystem::path work_folder_of(const std::filesystem::path& destination);

/// A checkpoint that is compressed as a whole: statistics are collected, weights chosen by them, the artifact
/// written.
class CompressedCheckpoint {
 public:
  /// Opens the model and plans. `recipe` is without statistics; `keep` is the file that they are to stay in,
  /// or empty. Of `options` `jobs`, `isa` and `device` say what solves, too, and `io` how the source is read.
  /// Throws Error as Compression does.
  CompressedCheckpoint(const std::filesystem::path& source, const Destination& destination, Recipe recipe,
                       CompressInput input, std::filesystem::path keep, const ConvertOptions& options);

  const Compression& compression() const { return compression_; }

  /// What was written, and by which plan.
  struct Written {
    Plan plan;
    ConvertResult result;
  };
  /// Collects into the work folder, which is there until the artifact is whole. A run that resumes goes on
  /// behind the last layer that is whole; of a complete artifact there is nothing to collect. Throws Error,
  /// and Interrupted, after which another run can resume.
  void collect(Progress& progress);
  /// Writes the artifact once all is collected. Of a complete one it compares source, recipe and input with
  /// what that is of, and verifies it. Throws as collect() does.
  Written write(Progress& progress);

 private:
  void prepare_work();
  Recipe recipe_of_complete() const;
  void check_kept_hash(const Manifest& manifest) const;
  Compute compute() const { return {options_.isa, options_.device, options_.jobs}; }

  std::filesystem::path source_, work_, keep_;
  std::unique_ptr<WorkFolder> folder_;  ///< none of a complete artifact
  Destination destination_;
  Recipe recipe_;
  ConvertOptions options_;
  Compression compression_;
};

}  // namespace twofour
