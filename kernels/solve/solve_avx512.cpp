#include "kernels/solve/solve_tile.h"

namespace twofour {

const SolveOps kSolveAvx512 = solve_functions<16>();

}  // namespace twofour
