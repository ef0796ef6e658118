#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/json.h"
#include "lib/recipe/artifact/recipe.h"

namespace twofour {

/// The facts about an artifact in its README.md and in its model card.
struct ArtifactFacts {
  /// Matrices that were made by the same method.
  struct Made {
    size_t matrices = 0;
    /// Relative error in the Frobenius norm and SNR in dB of each matrix that has them. An SNR is absent if
    /// nothing was lost.
    std::vector<std::pair<double, std::optional<double>>> errors;
    bool has_errors = false;
  };
  std::map<std::string, Made> made;  ///< by layout or method
  std::string command;               ///< "graft", "drop" or "repair", or empty
  std::string quant_method;          ///< method in the artifact's config; empty if it quantizes nothing
  std::string unloaded;  ///< a format of the artifact without a loader in vLLM; empty: none is known
  bool is_solved = false, is_masked = false;
  uint64_t bytes = 0, source_bytes = 0;  ///< bytes of all tensors, and of the source's weight files

  /// Takes an entry of `modules` in twofour.json.
  void take(const Json& entry);
  void take(const Recipe& recipe);
  /// Takes `quant_method` and formats of a config.json and a hf_quant_config.json, which may be JSON null.
  void take_config(const Json& config, const Json& hf_quant_config);
};

/// Paragraphs of Markdown about loading the artifact, and about its proof. In them PATH is the
/// artifact's directory.
std::string loading_text(const ArtifactFacts& facts);
std::string proof_text(const ArtifactFacts& facts);
/// A table of the methods by which matrices were made. Empty if none were.
std::string made_text(const ArtifactFacts& facts);

/// The text of README.md. Its length does not depend on figures, which only a run finds.
std::string readme_text(const ArtifactFacts& facts);

}  // namespace twofour
