#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/findings/finding.h"
#include "lib/metrics/quality.h"
#include "lib/metrics/value_error.h"
#include "lib/plan/plan.h"
#include "lib/threads/progress.h"

namespace twofour {

struct ValidateOptions {
  int jobs = 1;
  int64_t tokens = 2;  ///< a layer is run on; 0: no layer is run
  uint64_t seed = 0;   ///< of the sample: layers, experts, activations and routing
  /// On Device::cuda it is also asked what the device makes of source and artifact; the CPU's checks remain.
  Device device = Device::cpu;
  Io io = Io::kBuffered;  ///< how artifact and source pass
  int64_t experts = 4;    ///< of a layer that its tokens go to at most; 0: all that its router may pick
  int64_t layers = 4;     ///< that are run at most, see sample_layers(); 0: all
  std::filesystem::path donor = {};       ///< of what was grafted, beside the source
  std::filesystem::path statistics = {};  ///< that weights were chosen by
  std::filesystem::path masks = {};       ///< likewise
  bool all_rows = false;  ///< of matrices that were solved, all rows are solved again, not 64 of each
};

/// Which layers were run. The rest of `found` was run: one LayerReport or DeviceLayerReport each.
struct LayerCoverage {
  struct NotRun {
    std::string block, why;
  };
  uint64_t found = 0;           ///< layers that have w13 and w2
  uint64_t not_sampled = 0;     ///< that could be run and are not in the sample
  std::vector<NotRun> not_run;  ///< that cannot be run
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

/// How a layer on the CUDA device, which runs float32 and BF16 activations, one token and all, compares with
/// the reference in double over the same weights.
struct DeviceLayerReport {
  std::string block, layout;
  int64_t tokens = 0, experts_used = 0;
  double cosine = 0, relative_error = 0;  ///< of BF16 activations and output
  uint64_t beyond = 0;  ///< numbers further from the reference than roundings explain: see moe_tolerance()
  struct {
    double share = 0;  ///< error over what is allowed; infinite for NaN
    int64_t token = 0, column = 0;
    double expected = 0, found = 0;
  } worst;
};

/// What pruning cost one matrix.
struct WeightReport {
  std::string target;
  Shape shape;
  Quality quality;
  double zero_share = 0;  ///< codes of magnitude 0 in the source
  /// Set where statistics or masks chose all its weights: what that changed. `quality` then says nothing, for
  /// packing drops nothing of what was chosen.
  std::optional<EncodeError> chosen = {};
};

struct ValidateReport {
  Findings differences;  ///< any makes the artifact wrong
  Findings notes;
  uint64_t tensors = 0, bytes = 0;                ///< of the artifact, checked
  uint64_t source_tensors = 0, source_bytes = 0;  ///< accounted for
  std::vector<WeightReport> weights;              ///< with a source, of what was pruned
  std::vector<ValueReport> values;                ///< with a source, of other rewritten modules
  std::vector<LayerReport> layers;                ///< with a source
  LayerCoverage coverage;                         ///< of `layers`
  std::vector<DeviceLayerReport> device_layers;   ///< on Device::cuda, of the layouts
  LayerCoverage device_coverage;                  ///< of `device_layers`
  uint64_t solved_rows = 0;                       ///< of matrices that were solved by statistics
  uint64_t rows_not_drawn = 0;  ///< of these, those of which only the pattern and the loss were derived again
  bool without_statistics = false;  ///< of such an artifact: no row was solved again
  double seconds = 0;
};

/// What can be said of an artifact without differences.
std::string sound_verdict(const ValidateReport& report, bool with_source);

/// Holds an artifact against the hashes of its own manifest. Both throw Error where a file changed meanwhile.
ValidateReport validate(const std::filesystem::path& artifact, const ValidateOptions& options,
                        Progress& progress);

/// Proves an artifact from its source: same files and headers, every byte derived again through the slow
/// path, every source tensor accounted for, twofour.json said again, layers run against the double reference.
/// Where statistics chose weights and `options` names none: hashes, kept tensors, pattern and layout alone.
ValidateReport validate(const std::filesystem::path& artifact, const std::filesystem::path& source,
                        const ValidateOptions& options, Progress& progress);

}  // namespace twofour
