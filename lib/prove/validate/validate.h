#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "lib/base/findings/finding.h"
#include "lib/base/threads/progress.h"
#include "lib/look/metrics/quality.h"
#include "lib/look/metrics/value_error.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/plan.h"

namespace twofour {

struct ValidateOptions {
  int jobs = 1;
  int64_t tokens = 2;  ///< on which a layer is run; 0: no layer is run
  uint64_t seed = 0;   ///< of the sample: layers, experts, activations and routing
  /// With Device::cuda, the device also checks source and artifact; the CPU's checks remain.
  Device device = Device::cpu;
  Io io = Io::kBuffered;  ///< how artifact and source are read
  int64_t experts = 4;    ///< most experts of a layer that its tokens go to; 0: all that its router may pick
  int64_t layers = 4;     ///< most layers that are run, see sample_layers(); 0: all
  std::filesystem::path donor = {};       ///< the checkpoint that was grafted, beside the source
  std::filesystem::path statistics = {};  ///< by which weights were chosen
  std::filesystem::path masks = {};       ///< likewise
  bool all_rows = false;                  ///< all rows of solved matrices are solved again, not 64 of each
};

/// Counts of layers that were not run. The rest of `found` was run: one LayerReport or DeviceLayerReport
/// each.
struct LayerCoverage {
  struct NotRun {
    std::string block, why;
  };
  uint64_t found = 0;           ///< layers that have w13 and w2
  uint64_t not_sampled = 0;     ///< layers that could be run but are not in the sample
  std::vector<NotRun> not_run;  ///< layers that cannot be run
};

/// The result of running one layer on seeded activations.
struct LayerReport {
  std::string block;
  int64_t tokens = 0, experts_used = 0;
  bool reference = true;      ///< the source was also run pruned; else `exact` has no meaning
  bool exact = false;         ///< artifact and pruned source give the same doubles
  double cosine = 0;          ///< between the layer's output with dense and with the artifact's weights
  double relative_error = 0;  ///< in Frobenius norm, likewise
};

/// The comparison of a layer on the CUDA device with the reference in double over the same weights. The
/// device runs float32 and BF16 activations, of one token and of all.
struct DeviceLayerReport {
  std::string block, layout;
  int64_t tokens = 0, experts_used = 0;
  double cosine = 0, relative_error = 0;  ///< of BF16 activations and output
  uint64_t beyond = 0;  ///< numbers further from the reference than roundings explain: see moe_tolerance()
  struct {
    double share = 0;  ///< error divided by the allowed error; infinite for NaN
    int64_t token = 0, column = 0;
    double expected = 0, found = 0;
  } worst;
};

/// The loss of one matrix by pruning.
struct WeightReport {
  std::string target;
  Shape shape;
  Quality quality;
  double zero_share = 0;  ///< codes of magnitude 0 in the source
  /// The change if statistics or masks chose all its weights. `quality` has no meaning then, since packing
  /// drops none of the chosen weights.
  std::optional<EncodeError> chosen = {};
};

struct ValidateReport {
  Findings differences;  ///< any makes the artifact wrong
  Findings notes;
  uint64_t tensors = 0, bytes = 0;                ///< of the artifact, checked
  uint64_t source_tensors = 0, source_bytes = 0;  ///< accounted for
  std::vector<WeightReport> weights;              ///< with a source, of pruned matrices
  std::vector<ValueReport> values;                ///< with a source, of other rewritten modules
  std::vector<LayerReport> layers;                ///< with a source
  LayerCoverage coverage;                         ///< of `layers`
  std::vector<DeviceLayerReport> device_layers;   ///< on Device::cuda, of the layouts
  LayerCoverage device_coverage;                  ///< of `device_layers`
  uint64_t solved_rows = 0;                       ///< of matrices that were solved by statistics
  uint64_t rows_not_drawn = 0;      ///< solved rows of which only the pattern and the loss were derived again
  bool without_statistics = false;  ///< the artifact is solved, but no row was solved again
  double seconds = 0;
};

/// The verdict on an artifact without differences.
std::string sound_verdict(const ValidateReport& report, bool with_source);

/// Compares an artifact with the hashes of its own manifest. Both functions throw Error if a file changed
/// meanwhile.
ValidateReport validate(const std::filesystem::path& artifact, const ValidateOptions& options,
                        Progress& progress);

/// Proves an artifact from its source: same files and headers, every byte derived again through the slow
/// path, every source tensor accounted for, twofour.json derived again, layers compared with the reference in
/// double. If statistics chose weights and `options` names none: hashes, kept tensors, pattern and layout
/// alone.
ValidateReport validate(const std::filesystem::path& artifact, const std::filesystem::path& source,
                        const ValidateOptions& options, Progress& progress);

}  // namespace twofour
