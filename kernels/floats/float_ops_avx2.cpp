#define Eigen EigenAvx2
#include "kernels/floats/float_ops_eigen.h"

namespace twofour {

const FloatOps kFloatOpsAvx2 = kOps;

}  // namespace twofour
