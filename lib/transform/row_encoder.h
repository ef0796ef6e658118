#pragma once
#include <filesystem>

#include "lib/view/quantized_view.h"

namespace twofour {

/// Quantizes rows with the kernels and the arithmetic of Encoder: an encoder of the checkpoints that layouts
/// are packed from.
MakeRowQuantizer row_encoders(Isa isa = best_isa());

/// The source of a conversion, as open_source() has it, with what layouts need quantized.
Checkpoint open_to_convert(const std::filesystem::path& path, const Recipe& recipe, Io io = Io::kCached,
                           const MemoryLimits& limits = {});

}  // namespace twofour
