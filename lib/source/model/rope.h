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

/// Determines the angles of two ropes: one for layers with a window, and one, which may be scaled, for the
/// others.
void read_window_ropes(const Settings& settings, const FamilyTraits& family, int64_t positions,
                       AttentionShape& attention);

/// Determines the angles of the two ropes of DeepSeek-V4: `attention` has that of layers with a window alone,
/// `compressed` that of layers with entries. `rotated` is the count of rotated numbers.
void read_two_ropes(const Settings& settings, int64_t rotated, int64_t positions, AttentionShape& attention,
                    CompressedShape& compressed);

}  // namespace twofour
