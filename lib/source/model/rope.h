#pragma once
#include "formats/families/family.h"
#include "lib/source/model/model_shape.h"
#include "lib/source/model/settings.h"

namespace twofour {

/// Determines the numbers, among a head's `size` numbers, that are rotated, and their angles. Multiplies
/// attention.scale by the factor that latent attention takes from the scaling. `positions` is the number of
/// positions that the model was trained for. Throws Error on an unknown rope type.
void read_rope(const Settings& settings, const FamilyTraits& family, int64_t size, int64_t positions,
               AttentionShape& attention);

}  // namespace twofour
