#define Eigen EigenPortable
#include "kernels/floats/float_ops_eigen.h"

namespace twofour {

const FloatOps kFloatOpsPortable = kOps;

}  // namespace twofour
