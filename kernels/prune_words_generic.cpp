#include "kernels/check.h"
#include "kernels/prune_words.h"

namespace twofour {

void prune_words_avx2(bool, const uint8_t*, int64_t, uint8_t*, uint64_t*, uint64_t*, uint64_t&) {
  check(false, "an instruction set that this processor has");
}

}  // namespace twofour
