#pragma once
#include <filesystem>
#include <string>

namespace twofour {

struct CardOptions {
  std::string base_model = {};    ///< name of the source model; empty: not stated
  std::string quantized_by = {};  ///< likewise
};

/// The model card of an artifact, the text of a README.md for the Hugging Face Hub: front matter in YAML, the
/// recipe, figures of the matrices, how to load it, hashes of files. Its sources are twofour.json, the
/// quantization config and, for the license, the front matter of the README.md that was copied from the
/// source. Throws Error if `artifact` has no twofour.json or its twofour.json was changed.
std::string model_card(const std::filesystem::path& artifact, const CardOptions& options);

}  // namespace twofour
