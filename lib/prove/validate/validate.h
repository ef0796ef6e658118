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
  int64_t tokens = 2;  ///< number of tokens on which a layer is run; no layer is run if 0
  uint64_t seed = 0;   ///< seed of the sample of layers and experts, and of activations and routing
  /// With Device::cuda, the device checks source and artifact in addition to the CPU's checks.
  Device device = Device::cpu;
  Io io = Io::kBuffered;  ///< the way in which artifact and source are read
  int64_t experts = 4;    ///< largest number of experts of a layer that its tokens use; no limit if 0
  int64_t layers = 4;     ///< largest number of layers that are run, see sample_layers(); all if 0
  std::filesystem::path donor = {};       ///< the checkpoint that was grafted onto the source, if there is
                                          ///< one
  std::filesystem::path statistics = {};  ///< the statistics by which weights were chosen
  std::filesystem::path masks = {};       ///< the masks by which weights were chosen
  bool all_rows = false;                  ///< solve all rows of solved matrices again, instead of 64 of each
};

/// The number of found layers, and the reasons why some were not run. All other layers were run and have one
/// LayerReport or DeviceLayerReport each.
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
  bool reference = true;      ///< the pruned source was run, too; otherwise `exact` has no meaning
  bool exact = false;         ///< the artifact and the pruned source give exactly the same doubles
  double cosine = 0;          ///< between the layer's outputs with dense weights and with the artifact's
                              ///< weights
  double relative_error = 0;  ///< relative error of the same outputs, in the Frobenius norm
};

/// The comparison of a layer on the CUDA device with the reference in double over the same weights. The
/// device runs float32 and BF16 activations, once for one token and once for all tokens.
struct DeviceLayerReport {
  std::string block, layout;
  int64_t tokens = 0, experts_used = 0;
  double cosine = 0, relative_error = 0;  ///< for BF16 activations and output
  uint64_t beyond = 0;  ///< numbers that differ from the reference by more than rounding explains, see
                        ///< moe_tolerance()
  struct {
    double share = 0;  ///< the error divided by the allowed error; infinite for NaN
    int64_t token = 0, column = 0;
    double expected = 0, found = 0;
  } worst;
};

/// The change of one matrix by pruning.
struct WeightReport {
  std::string target;
  Shape shape;
  Quality quality;
  double zero_share = 0;  ///< share of codes with magnitude 0 in the source
  /// The change if statistics or masks chose all weights of the matrix. Then `quality` has no meaning, since
  /// packing drops none of the chosen weights.
  std::optional<EncodeError> chosen = {};
};

/// The changes by one mend of a repaired artifact: names of tensors, "FILE: NAME" of dropped ones, "FILE:
/// KEY" of settings, and files that it wrote for another reason.
struct ProvenMend {
  std::string mend;
  std::vector<std::string> tensors = {}, dropped = {}, settings = {}, files = {};
};

struct ValidateReport {
  Findings differences;  ///< a single one makes the artifact wrong
  Findings notes;
  uint64_t tensors = 0, bytes = 0;                ///< tensors and bytes of the artifact that were checked
  uint64_t source_tensors = 0, source_bytes = 0;  ///< tensors and bytes of the source that are accounted for
  std::vector<WeightReport> weights;              ///< for pruned matrices, if a source is given
  std::vector<ValueReport> values;                ///< for other rewritten modules, if a source is given
  std::vector<LayerReport> layers;                ///< empty without a source
  LayerCoverage coverage;                         ///< belongs to `layers`
  std::vector<DeviceLayerReport> device_layers;   ///< for layers in a layout, with Device::cuda
  LayerCoverage device_coverage;                  ///< belongs to `device_layers`
  uint64_t solved_rows = 0;                       ///< rows of matrices that statistics solved
  uint64_t rows_not_drawn = 0;      ///< solved rows for which only the pattern and the loss were derived
                                    ///< again
  uint64_t recovered = 0;           ///< tensors that recovery tuned; their hash was compared, and what they
                                    ///< were tuned from was derived again
  bool without_statistics = false;  ///< the artifact is solved, but no row was solved again
  std::vector<ProvenMend> mends;    ///< proven mends of a repaired artifact, if a source is given
  double seconds = 0;
};

/// The verdict on an artifact without differences, in words.
std::string sound_verdict(const ValidateReport& report, bool with_source);

/// Compares an artifact with the hashes in its manifest. This function and the next throw Error if a file
/// changes during the run.
ValidateReport validate(const std::filesystem::path& artifact, const ValidateOptions& options,
                        Progress& progress);

/// Proves an artifact from its source. Files and headers must be as planned. Every byte is derived again by
/// the slow path. Every tensor of the source is accounted for. twofour.json is derived again. Layers are
/// compared with the reference in double. If statistics chose weights and `options` names no statistics, the
/// proof covers only hashes, kept tensors, pattern and layout.
ValidateReport validate(const std::filesystem::path& artifact, const std::filesystem::path& source,
                        const ValidateOptions& options, Progress& progress);

}  // namespace twofour
