#pragma once
#include <string_view>

#include "formats/json.h"

namespace twofour {

/// True if a setting of a quantization config, or an entry of a file's header, states that codes or scales
/// are stored in an arrangement of their own: swizzled, interleaved, tiled, transposed, padded, repacked for
/// a kernel, or in another order of bits. No reader undoes any. Known settings with a known value, and
/// settings that turn nothing on (false, "none") or name the usual arrangement ("linear"), state none.
bool names_arrangement(std::string_view key, const Json& value);

}  // namespace twofour
