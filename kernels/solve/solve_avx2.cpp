#include "kernels/solve/solve_tile.h"

namespace twofour {

const SolveOps kSolveAvx2 = solve_functions<8>();

}  // namespace twofour
