#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/threads/progress.h"
#include "lib/look/metrics/value_error.h"
#include "lib/prove/validate/validate.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/matrices.h"
#include "lib/write/plan/plan.h"

namespace twofour {

/// Adds a difference, which makes the artifact wrong.
void differ(ValidateReport& report, const char* id, std::string where, std::string message);

/// Hash of bytes [begin, begin + bytes) of a tensor; adds them to the progress.
Hash128 hash_tensor(const Checkpoint& c, size_t tensor, uint64_t begin, uint64_t bytes, Progress& progress);

/// Checks that the tensors of twofour.json are there.
void check_names(const Checkpoint& artifact, const Manifest& manifest, ValidateReport& report);

/// Checks everything beside tensors: headers, index, configs, copies. Each must have its hash in
/// twofour.json, and there must be no other files.
void check_listed_files(const Checkpoint& artifact, const Manifest& manifest, ValidateReport& report);

/// Checks that files, headers, index and config are as planned, byte for byte. Reports other files of the
/// artifact that twofour.json lists; check_listed_files() reports the rest.
void check_files(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                 const Manifest& manifest, ValidateReport& report);

/// Derives the text of twofour.json again: the results of the proofs, recipe, source and files. Only for an
/// artifact without differences from its source; a text that differs becomes a difference "manifest".
void check_manifest(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                    const Manifest& manifest, std::map<uint32_t, Json> results, Progress& progress,
                    ValidateReport& report);

/// Compares the format that engines' rules find in the artifact's config files for each linear with its
/// headers. A module that they would read wrongly is a difference, unless the source's config is read
/// wrongly, too, or is not known (nullptr).
void check_engines(const Checkpoint& artifact, const Checkpoint* source, ValidateReport& report);

/// Checks an artifact whose weights statistics chose, without the statistics: the source's files are those
/// that twofour.json names, kept tensors are the source's, and codes obey pattern and layout.
void check_unsolved(const std::filesystem::path& artifact, const std::filesystem::path& source,
                    const Manifest& manifest, Io io, Progress& progress, ValidateReport& report);

/// True for modules of the source to examine.
using ModuleFilter = std::function<bool(const Linear&)>;

/// Compares the weights of two checkpoints as numbers, in any format: one report for each module of the
/// source that `filter` picks, in natural order. Matrices that `other` lacks or has in another shape are
/// findings, and so are matrices that cannot be read (severity error).
std::vector<ValueReport> compare_values(const Matrices& source, const Matrices& other,
                                        const ModuleFilter& filter, double tolerance, Progress& progress,
                                        Findings& findings);

/// Compares a rewritten checkpoint with its source by values: weights if the rewrite keeps them all, and the
/// outputs of its feed-forward blocks. Adds to `report`.
void check_values(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                  const ValidateOptions& options, Progress& progress, ValidateReport& report);

}  // namespace twofour
