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
  int64_t cols = 0;   ///< number of bytes of a row
  std::string where;  ///< file and tensor; for messages
};

StoredPart make_stored_part(std::string_view layout, int part, const Shape& shape, std::string where);

/// Throws Error if bytes of a part are data that kernels must not read. These are metadata that is not two
/// ascending positions in each half of a byte, and block scales that are NaN or negative. The first byte is
/// at `offset` in the part.
void check_stored(const StoredPart& part, int64_t offset, std::span<const uint8_t> bytes);

/// Calls `f(offset, count)` for all pieces of a range of `bytes` bytes, on several threads. Throws the
/// exception of the first piece that failed.
void for_pieces(size_t bytes, const std::function<void(size_t, size_t)>& f);

/// The index of the first global scale that is not both finite and above 0.
std::optional<size_t> find_odd_global_scale(std::span<const float> scales);

}  // namespace twofour
