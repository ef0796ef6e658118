// xxHash defines its state type only if this macro is set.
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "lib/base/io/hash_impl.h"
