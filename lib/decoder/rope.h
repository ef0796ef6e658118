#pragma once
#include "lib/decoder/family_traits.h"
#include "lib/decoder/model_shape.h"
#include "lib/decoder/settings.h"

namespace twofour {

/// Fills in what is rotated and how far, of heads of which `size` numbers may be, and multiplies `scale` by
/// what latent attention takes from the scaling. Throws Error on a rope type that is not known.
void read_rope(const Settings& settings, const FamilyTraits& family, int64_t size, int64_t positions,
               AttentionShape& attention);

}  // namespace twofour
