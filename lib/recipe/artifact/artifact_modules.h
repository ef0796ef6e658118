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
  std::vector<size_t> parts;  ///< tensors of the artifact, by part of the layout
  size_t global_scale;        ///< tensor of the artifact
};

/// A run of rows: row `first + i * step` of a module is row `n0 + i` of its matrix, for i < count.
struct RowRun {
  int64_t first, step, count, n0;
};

/// A module of the checkpoint that an artifact was made from.
struct SourceLinear {
  std::string name;
  const Nvfp4Dialect* dialect;
  size_t matrix;             ///< in ArtifactModules::matrices
  int64_t e, n, k;           ///< [E, N, K]; E = 1 if it is not a stack
  int64_t first_expert;      ///< number of its expert 0 in the matrix
  bool k_outer;              ///< true for a stack that is stored as [E, K/2, N]
  std::vector<RowRun> rows;  ///< cover each row of the module once
  std::vector<int64_t> global_scale_shape;
  std::vector<uint32_t> global_scale_bits;  ///< one float32 for each element of that shape
};

/// The matrices of an artifact and the modules of its source, from twofour.json.
struct ArtifactModules {
  std::vector<ArtifactMatrix> matrices;
  std::vector<SourceLinear> modules;
  std::set<std::string> copied;                 ///< tensors that passed through, by name
  std::shared_ptr<const Json> hf_quant_config;  ///< the source's; JSON null if the source had none
  Findings findings;                            ///< about folded global scales of gate and up
};

/// Reads twofour.json of an artifact in a layout. If global scales of gate and up were folded, the changed
/// module gets the stored bits of the other. Throws Error if twofour.json does not match the artifact's
/// tensors.
ArtifactModules read_artifact_modules(const Checkpoint& artifact);

}  // namespace twofour
