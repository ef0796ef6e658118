#define Eigen EigenPortable
#include "kernels/multiply/float_ops_eigen.h"

namespace twofour {

const FloatOps kFloatOpsPortable = kOps;

}  // namespace twofour
