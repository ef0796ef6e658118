#pragma once
#include <filesystem>

#include "lib/plan/transformation.h"
#include "lib/view/quantized_view.h"

namespace twofour {

/// Quantizes rows with the kernels and the arithmetic of Encoder: an encoder of the checkpoints that layouts
/// are packed from. `compute` says where groups as a whole are solved.
MakeRowQuantizer row_encoders(const Compute& compute = {best_isa()});

/// The source of a conversion, as open_source() has it, with what layouts need quantized. Solvers share the
/// threads of `compute`.
QuantizedSource open_to_pack(const std::filesystem::path& path, const Recipe& recipe, Io io = Io::kCached,
                             const MemoryLimits& limits = {}, const Compute& compute = {best_isa()});
/// What it shows alone.
Checkpoint open_to_convert(const std::filesystem::path& path, const Recipe& recipe, Io io = Io::kCached,
                           const MemoryLimits& limits = {}, const Compute& compute = {best_isa()});

}  // namespace twofour
