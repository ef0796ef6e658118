#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "formats/dialect.h"
#include "formats/json.h"
#include "formats/layouts/layout.h"
#include "lib/base/findings/finding.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// One matrix of an artifact, with all its experts.
struct ArtifactMatrix {
  std::string name, layout;
  Shape shape;
  std::vector<size_t> parts;  ///< by part of the layout: tensors of the artifact
  size_t global_scale;        ///< likewise
};

/// Row `first + i * step` of a module is row `n0 + i` of its matrix.
struct RowRun {
  int64_t first, step, count, n0;
};

/// A module of the checkpoint that an artifact was made from.
struct SourceLinear {
  std::string name;
  const Nvfp4Dialect* dialect;
  size_t matrix;             ///< in ArtifactModules::matrices
  int64_t e, n, k;           ///< [E, N, K]; E = 1 if it is no stack
  int64_t first_expert;      ///< the expert of the matrix that its expert 0 is
  bool k_outer;              ///< a stack stored as [E, K/2, N]
  std::vector<RowRun> rows;  ///< cover its rows once
  std::vector<int64_t> global_scale_shape;
  std::vector<uint32_t> global_scale_bits;  ///< as many as that shape has
};

/// The layout and the source of an artifact, from twofour.json.
struct ArtifactModules {
  std::vector<ArtifactMatrix> matrices;
  std::vector<SourceLinear> modules;
  std::set<std::string> copied;                 ///< tensors that passed through, by name
  std::shared_ptr<const Json> hf_quant_config;  ///< of the source; JSON's null if it had none
  Findings findings;                            ///< gate and up that were folded
};

/// Reads twofour.json of an artifact in a layout and compares it with the artifact's tensors. If gate and up
/// were folded, the changed module gets the stored bits of the other. Throws Error if they do not match.
ArtifactModules read_artifact_modules(const Checkpoint& artifact);

}  // namespace twofour
