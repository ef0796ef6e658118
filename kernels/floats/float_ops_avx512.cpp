#define Eigen EigenAvx512
#include "kernels/floats/float_ops_eigen.h"

namespace twofour {

const FloatOps kFloatOpsAvx512 = kOps;

}  // namespace twofour
