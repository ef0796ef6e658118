#pragma once
#include <filesystem>
#include <string>

#include "lib/recipe/artifact/manifest.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The text of the file in which an artifact describes itself, derived from its twofour.json, config files
/// and headers. Throws Error like read_manifest(). The twofour.json must be undamaged.
std::string expected_readme(const Checkpoint& artifact, const Manifest& manifest);

/// The name of that file, derived from the files of the source. Empty if the recipe wants none.
std::string expected_readme_name(const std::filesystem::path& source, size_t source_tensors,
                                 const Recipe& recipe);

}  // namespace twofour
