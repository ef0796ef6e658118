#pragma once
#include <filesystem>

#include "lib/write/plan/transformation.h"
#include "lib/write/view/quantized_view.h"

namespace twofour {

/// Makes encoders for checkpoints from which layouts are packed. They quantize rows by the kernels and
/// arithmetic of Encoder. `compute` solves whole groups.
MakeRowQuantizer row_encoders(const Compute& compute = {best_isa()});

/// Opens the source of a conversion by open_source(). Linears appear quantized if layouts need that. Solvers
/// share the threads of `compute`.
QuantizedSource open_to_pack(const std::filesystem::path& path, const Recipe& recipe, Io io = Io::kCached,
                             const MemoryLimits& limits = {}, const Compute& compute = {best_isa()});
/// Returns only `shown` of open_to_pack().
Checkpoint open_to_convert(const std::filesystem::path& path, const Recipe& recipe, Io io = Io::kCached,
                           const MemoryLimits& limits = {}, const Compute& compute = {best_isa()});

}  // namespace twofour
