#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/checkpoint.h"
#include "lib/finding.h"
#include "lib/plan.h"
#include "lib/progress.h"
#include "lib/quality.h"
#include "lib/value_error.h"

namespace twofour {

struct ValidateOptions {
  int jobs = 1;
  int64_t tokens = 4;  ///< a layer is run on; 0: no layer is run
  uint64_t seed = 0;   ///< of activations and routing
};

/// What running one layer on seeded activations showed.
struct LayerReport {
  std::string block;
  int64_t tokens = 0, experts_used = 0;
  bool reference = true;      ///< the source was also run pruned; else `exact` says nothing
  bool exact = false;         ///< artifact and pruned source give the same doubles
  double cosine = 0;          ///< between the layer's output with dense and with the artifact's weights
  double relative_error = 0;  ///< in Frobenius norm, likewise
};

/// What pruning cost one matrix.
struct WeightReport {
  std::string target;
  Shape shape;
  Quality quality;
  double zero_share = 0;  ///< codes of magnitude 0 in the source
};

struct ValidateReport {
  Findings differences;  ///< any makes the artifact wrong
  Findings notes;
  uint64_t tensors = 0, bytes = 0;                ///< of the artifact, checked
  uint64_t source_tensors = 0, source_bytes = 0;  ///< accounted for
  std::vector<WeightReport> weights;              ///< with a source, of what was pruned
  std::vector<ValueReport> values;                ///< with a source, of other rewritten modules
  std::vector<LayerReport> layers;                ///< with a source
  double seconds = 0;
};

/// Holds an artifact against the hashes of its own manifest.
ValidateReport validate(const std::filesystem::path& artifact, const ValidateOptions& options,
                        Progress& progress);

/// Proves an artifact from its source: same files and headers, every byte derived again through the slow
/// path, every source tensor accounted for, twofour.json said again, layers run against the double reference.
ValidateReport validate(const std::filesystem::path& artifact, const std::filesystem::path& source,
                        const ValidateOptions& options, Progress& progress);

}  // namespace twofour
