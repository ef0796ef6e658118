#define COUNT_WIDTH 64
#include "kernels/counts/count_bytes.h"
#include "kernels/counts/count_floats.h"
#include "kernels/counts/count_planes.h"

namespace twofour {

const CountOps kCountAvx512{counting::codes<counting::add_code_planes>,
                            counting::fp8<counting::add_upper_planes>,
                            counting::largest,
                            counting::are_within,
                            counting::squares,
                            counting::halves,
                            counting::histogram_planes,
                            counting::bf16,
                            counting::f32,
                            counting::bytes,
                            counting::levels<uint16_t>,
                            counting::levels<float>};

}  // namespace twofour
