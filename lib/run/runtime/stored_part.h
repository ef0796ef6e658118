#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "formats/layouts/layout.h"
#include "formats/layouts/part_map.h"

namespace twofour {

/// A part of a matrix in a layout.
struct StoredPart {
  PartMap map;
  int64_t cols = 0;   ///< bytes of a row
  std::string where;  ///< file and tensor, for messages
};

StoredPart make_stored_part(std::string_view layout, int part, const Shape& shape, std::string where);

/// Throws Error if bytes of a part from `offset` on are data that kernels must not read: metadata that is not
/// two places in order, and block scales that are NaN or negative.
void check_stored(const StoredPart& part, int64_t offset, std::span<const uint8_t> bytes);

/// Calls `f(offset, count)` for all pieces of some bytes, on several threads; throws the exception of the
/// first piece that failed.
void for_pieces(size_t bytes, const std::function<void(size_t, size_t)>& f);

/// The first global scale that is not finite and above 0.
std::optional<size_t> find_odd_global_scale(std::span<const float> scales);

}  // namespace twofour
