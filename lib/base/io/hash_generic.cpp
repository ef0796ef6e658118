// The state type is complete only with this.
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "lib/base/io/hash_impl.h"
