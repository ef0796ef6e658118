#pragma once
#include <string>

#include "lib/checkpoint/checkpoint.h"
#include "lib/artifact/manifest.h"
#include "lib/plan/plan.h"
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

/// Files, headers, index and config must be what the plan says, byte for byte. Of files that the artifact has
/// beyond them, those that twofour.json lists are told; check_listed_files() tells the others.
void check_files(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                 const Manifest& manifest, ValidateReport& report);

}  // namespace twofour
