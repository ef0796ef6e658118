#pragma once
#include <optional>
#include <span>
#include <string_view>

namespace twofour {

/// The instruction sets for which the CPU kernels are written. All of them give the same bytes.
enum class Isa { portable, avx2, avx512, neon };

std::string_view isa_name(Isa isa);

/// The instruction sets that this build and this processor support, the slowest first. There is always at
/// least one.
std::span<const Isa> available_isas();

/// The fastest available instruction set, unless the environment variable TWOFOUR_ISA names another. Throws
/// Error if the variable names an instruction set that does not exist or cannot run here.
Isa best_isa();

}  // namespace twofour
