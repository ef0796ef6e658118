#pragma once
#include <filesystem>
#include <memory>
#include <optional>

#include "lib/base/threads/progress.h"
#include "lib/jobs/compress/compress.h"
#include "lib/jobs/compress/work_folder.h"
#include "lib/jobs/convert/convert.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/write/output/destination.h"

namespace twofour {

/// The folder that has statistics and streams until an artifact is complete. It is DESTINATION.compressing,
/// beside the destination.
std::filesystem::path work_folder_of(const std::filesystem::path& destination);

/// Compresses a whole checkpoint: collects statistics, chooses weights by them, and writes the artifact.
class CompressedCheckpoint {
 public:
  /// Opens the model and plans. `recipe` must have no statistics. `keep` is the file in which to store them,
  /// or empty. `jobs`, `isa` and `device` of `options` also apply to solving, and `io` to reading the source.
  /// Throws Error like Compression.
  CompressedCheckpoint(const std::filesystem::path& source, const Destination& destination, Recipe recipe,
                       CompressInput input, std::filesystem::path keep, const ConvertOptions& options);

  const Compression& compression() const { return compression_; }

  /// The result of writing the artifact, and its plan.
  struct Written {
    Plan plan;
    ConvertResult result;
  };
  /// Collects into the work folder, which exists until the artifact is complete. A run that resumes continues
  /// after the last complete layer. A complete artifact needs no collecting. Throws Error and Interrupted;
  /// another run can resume after either.
  void collect(Progress& progress);
  /// Tunes norms and global scales after everything is collected, if CompressInput::recover_passes asks for
  /// it: writes the artifact without that into the work folder, and learns from it. Does nothing for a
  /// complete artifact. Throws like collect().
  void recover(Progress& progress);
  /// Writes the artifact after collect() and recover(). If the artifact is complete, it is verified, and its
  /// source, recipe and input are compared with this object's. Throws like collect().
  Written write(Progress& progress);

 private:
  void prepare_work();
  Recipe solved_recipe() const;
  /// Throws Error unless a complete artifact was recovered as this run asks for.
  void check_recovered(const Manifest& manifest) const;
  Recipe recipe_of_complete() const;
  void check_kept_hash(const Manifest& manifest) const;
  Compute compute() const { return {options_.isa, options_.device, options_.jobs}; }

  std::filesystem::path source_, work_, keep_;
  std::unique_ptr<WorkFolder> folder_;  ///< null for a complete artifact
  Destination destination_;
  Recipe recipe_;
  ConvertOptions options_;
  Compression compression_;
  std::optional<Recovery> recovery_;
};

}  // namespace twofour
