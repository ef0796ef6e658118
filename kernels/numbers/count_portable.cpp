#define COUNT_WIDTH 16
#include "kernels/numbers/count_vector.h"

namespace twofour {

const CountOps kCountPortable{counting::codes<>, counting::fp8<>, counting::largest,
                              counting::bf16,    counting::f32,   counting::bytes};

}  // namespace twofour
