#include "kernels/solve/solve_tile.h"

namespace twofour {

const SolveOps kSolvePortable = solve_functions<4>();

}  // namespace twofour
