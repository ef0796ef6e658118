#define COUNT_WIDTH 32
#include "kernels/numbers/count_vector.h"

namespace twofour {

const CountOps kCountAvx2{counting::codes<>, counting::fp8<>, counting::largest,
                          counting::bf16,    counting::f32,   counting::bytes};

}  // namespace twofour
