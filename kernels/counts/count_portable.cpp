#define COUNT_WIDTH 16
#include "kernels/counts/count_bytes.h"
#include "kernels/counts/count_floats.h"

namespace twofour {

const CountOps kCountPortable{
    counting::codes<>, counting::fp8<>,  counting::largest,          counting::are_within,
    counting::squares, counting::halves, counting::histogram,        counting::bf16,
    counting::f32,     counting::bytes,  counting::levels<uint16_t>, counting::levels<float>};

}  // namespace twofour
