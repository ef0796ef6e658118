// xxHash defines its state type only if this macro is set.
#define XXH_STATIC_LINKING_ONLY
#include <xxh_x86dispatch.h>  // XXH3_128bits_update then picks SSE2, AVX2 or AVX-512 at run time

#include "lib/base/io/hash_impl.h"
