#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "formats/layouts/layout.h"

namespace twofour {

/// A part of a matrix in a layout.
struct StoredPart {
  std::string_view layout;
  int part;
  Shape shape;
  std::string where;  ///< file and tensor, for messages
};

/// Throws Error where bytes from `offset` on of a part are what no kernel may meet: metadata that is no two
/// places in order, and block scales that are NaN or negative.
void check_stored(const StoredPart& part, int64_t offset, std::span<const uint8_t> bytes);

/// Calls `f(offset, count)` for all pieces of some bytes, by several threads; throws what the first piece
/// threw.
void for_pieces(size_t bytes, const std::function<void(size_t, size_t)>& f);

}  // namespace twofour
