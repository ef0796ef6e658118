#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/artifact/manifest.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/matrices.h"
#include "lib/metrics/value_error.h"
#include "lib/plan/plan.h"
#include "lib/threads/progress.h"
#include "lib/validate/validate.h"

namespace twofour {

/// Adds a difference, which makes the artifact wrong.
void differ(ValidateReport& report, const char* id, std::string where, std::string message);

/// Hash of bytes [begin, begin + bytes) of a tensor, which count as done.
Hash128 hash_tensor(const Checkpoint& c, size_t tensor, uint64_t begin, uint64_t bytes, Progress& progress);

/// The tensors that twofour.json names must be there.
void check_names(const Checkpoint& artifact, const Manifest& manifest, ValidateReport& report);

/// The files that are no tensors: headers, index, configs, copies. Each as twofour.json says, and no others.
void check_listed_files(const Checkpoint& artifact, const Manifest& manifest, ValidateReport& report);

/// Files, headers, index and config must be what the plan says, byte for byte. Of other files in the
/// artifact, those that twofour.json lists are reported; check_listed_files() reports the rest.
void check_files(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                 const Manifest& manifest, ValidateReport& report);

/// Derives the text of twofour.json again: the results of the proofs, recipe, source and files. Only for an
/// artifact that is equal to what its source derives to; a text that differs becomes a difference "manifest".
void check_manifest(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                    const Manifest& manifest, std::map<uint32_t, Json> results, Progress& progress,
                    ValidateReport& report);

/// Asks engines' rules what the artifact's config files say of each linear, as its headers have it. What they
/// would read wrongly is a difference, unless the source's config is read wrongly, too, or not known:
/// nullptr.
void check_engines(const Checkpoint& artifact, const Checkpoint* source, ValidateReport& report);

/// Of an artifact with weights that statistics chose, without these: the source's files are those that
/// twofour.json names, kept tensors are the source's, and codes keep to pattern and layout.
void check_unsolved(const std::filesystem::path& artifact, const std::filesystem::path& source,
                    const Manifest& manifest, Io io, Progress& progress, ValidateReport& report);

/// Which modules of the source to look at.
using ModuleFilter = std::function<bool(const Linear&)>;

/// Compares the weights of two checkpoints as numbers, however each stores them: one report for each module
/// of the source that `filter` picks, in natural order. Matrices that `other` lacks or has in another shape
/// are findings, and so is what cannot be read (severity error).
std::vector<ValueReport> compare_values(const Matrices& source, const Matrices& other,
                                        const ModuleFilter& filter, double tolerance, Progress& progress,
                                        Findings& findings);

/// Holds a rewritten checkpoint against its source in value space: weights where the rewrite keeps them all,
/// and the outputs of its feed-forward blocks. Adds to `report`.
void check_values(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                  const ValidateOptions& options, Progress& progress, ValidateReport& report);

}  // namespace twofour
