#pragma once
#include <filesystem>

#include "lib/write/plan/transformation.h"
#include "lib/write/view/quantized_view.h"

namespace twofour {

/// Makes encoders for the checkpoints from which layouts are packed: they quantize rows with the kernels and
/// arithmetic of Encoder. `compute` solves whole groups.
MakeRowQuantizer row_encoders(const Compute& compute = {best_isa()});

/// The source of a conversion, from open_source(), with linears quantized as layouts need them. Solvers share
/// the threads of `compute`.
QuantizedSource open_to_pack(const std::filesystem::path& path, const Recipe& recipe, Io io = Io::kCached,
                             const MemoryLimits& limits = {}, const Compute& compute = {best_isa()});
/// Only `shown` of open_to_pack().
Checkpoint open_to_convert(const std::filesystem::path& path, const Recipe& recipe, Io io = Io::kCached,
                           const MemoryLimits& limits = {}, const Compute& compute = {best_isa()});

}  // namespace twofour
