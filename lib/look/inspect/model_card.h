#pragma once
#include <filesystem>
#include <string>

namespace twofour {

struct CardOptions {
  std::string base_model = {};    ///< name of the source model; empty if not stated
  std::string quantized_by = {};  ///< empty if not stated
};

/// The model card of an artifact, which is the text of a README.md for the Hugging Face Hub. It has front
/// matter in YAML, the recipe, figures of the matrices, instructions to load the artifact, and hashes of
/// files. Its sources are twofour.json, the quantization config and, for the license, the front matter of the
/// README.md that was copied from the source. Throws Error if `artifact` has no twofour.json or if its
/// twofour.json was changed.
std::string model_card(const std::filesystem::path& artifact, const CardOptions& options);

}  // namespace twofour
