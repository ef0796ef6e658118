#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/threads/progress.h"
#include "lib/look/metrics/value_error.h"
#include "lib/prove/validate/validate.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/linears/matrices.h"
#include "lib/write/plan/plan.h"
#include "lib/write/view/substituted_tensors.h"

namespace twofour {

/// Adds a difference, which makes the artifact wrong.
void differ(ValidateReport& report, const char* id, std::string where, std::string message);

/// The hash of bytes [begin, begin + bytes) of a tensor. Adds these bytes to the progress.
Hash128 hash_tensor(const Checkpoint& c, size_t tensor, uint64_t begin, uint64_t bytes, Progress& progress);

/// Checks that the artifact has the tensors that twofour.json lists.
void check_names(const Checkpoint& artifact, const Manifest& manifest, ValidateReport& report);

/// Checks everything except tensors: headers, index, configs and copied files. Each must have its hash in
/// twofour.json. There must be no other files. Derives the file in which the artifact describes itself from
/// an undamaged twofour.json, config files and headers.
void check_listed_files(const Checkpoint& artifact, const Manifest& manifest, ValidateReport& report);

/// Checks that files, headers, index and config equal the plan, byte for byte. Reports files of the artifact
/// that twofour.json lists but the plan does not have; check_listed_files() reports the rest.
void check_files(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                 const Manifest& manifest, ValidateReport& report);

/// Derives the text of twofour.json again from the results of the proofs, the recipe, the source and the
/// files. Call it only if the artifact has no differences from its source. If the texts differ, adds a
/// difference "manifest".
void check_manifest(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                    const Manifest& manifest, std::map<uint32_t, Json> results, Progress& progress,
                    ValidateReport& report);

/// For each linear, compares the format that an engine's rules find in the artifact's config files with the
/// format in its headers. A module that an engine would read wrongly is a difference. It is not a difference
/// if the engine reads the source's config wrongly, too, or if the source is not known (null).
void check_engines(const Checkpoint& artifact, const Checkpoint* source, ValidateReport& report);

/// Checks an artifact whose weights statistics chose, without these statistics. The source's files must be
/// those that twofour.json names, kept tensors must equal the source's, and codes must obey pattern and
/// layout.
void check_unsolved(const std::filesystem::path& artifact, const std::filesystem::path& source,
                    const Manifest& manifest, Io io, Progress& progress, ValidateReport& report);

/// Checks the tensors that recovery tuned, which nothing can derive: that only norms and global scales are
/// among them, that their bytes have the recorded hashes and are finite, and that scales are positive.
/// Returns the bytes that they were tuned from, which the proof derives: a norm's are those of `source`, a
/// global scale's are in the record. Null if nothing was tuned. A difference leaves a tensor out.
std::shared_ptr<const TensorBytes> check_recovered(const Checkpoint& artifact, const Checkpoint& source,
                                                   const Manifest& manifest, ValidateReport& report);

/// True for modules of the source that are to be examined.
using ModuleFilter = std::function<bool(const Linear&)>;

/// Compares the weights of two checkpoints as numbers, in any format. Returns one report for each module of
/// the source that `filter` accepts, in natural order. A matrix is a finding if `other` lacks it or has a
/// different shape for it. A matrix that cannot be read is a finding with severity error.
std::vector<ValueReport> compare_values(const Matrices& source, const Matrices& other,
                                        const ModuleFilter& filter, double tolerance, Progress& progress,
                                        Findings& findings);

/// Compares a rewritten checkpoint with its source by values. It compares weights, if the rewrite keeps them
/// all, and the outputs of the feed-forward blocks. Adds to `report`.
void check_values(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                  const ValidateOptions& options, Progress& progress, ValidateReport& report);

}  // namespace twofour
