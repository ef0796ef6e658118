#pragma once
#include <optional>
#include <span>
#include <string_view>

namespace twofour {

/// Instruction sets that the CPU kernels are written for. All give the same bytes.
enum class Isa { portable, avx2, avx512, neon };

std::string_view isa_name(Isa isa);

/// The instruction sets that this build and this processor can run, the slowest first; never empty.
std::span<const Isa> available_isas();

/// The fastest of them, unless the environment variable TWOFOUR_ISA names another. Throws Error if it names
/// one that does not exist or cannot run here.
Isa best_isa();

}  // namespace twofour
