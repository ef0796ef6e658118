#define COUNT_WIDTH 64
#include "kernels/numbers/count_planes.h"

namespace twofour {

const CountOps kCountAvx512{counting::codes<counting::add_code_planes>,
                            counting::fp8<counting::add_upper_planes>,
                            counting::largest,
                            counting::bf16,
                            counting::f32,
                            counting::bytes};

}  // namespace twofour
