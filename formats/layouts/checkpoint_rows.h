#pragma once
#include <string_view>

#include "formats/layouts/layouts.h"

namespace twofour {

/// Dense NVFP4 as checkpoints store it. It has the same map as a layout, so that code that multiplies layouts
/// can multiply it too. No output is written in it.
///   weight  U8       [E, N, K/2]   two codes in each byte, the even k in the low nibble
///   scale   F8_E4M3  [E, N, K/16]
struct CheckpointRows {
  using Atom = DenseGroup;
  static constexpr const char* name = "nvfp4";
  static constexpr int part_count = 2;
  static constexpr Axis outer = Axis::kN;

  TWOFOUR_HD static constexpr Part part(int i, Shape s) {
    return i == 0 ? Part{"weight", DType::kU8, s.n, s.k / 2} : Part{"scale", DType::kF8E4M3, s.n, s.k / 16};
  }
  TWOFOUR_HD static constexpr Source source(int part, Shape, Place at) {
    if (part == 0) return {at.e, at.row, at.col / 8, static_cast<int>(at.col % 8)};
    return {at.e, at.row, at.col, 8};
  }
  TWOFOUR_HD static constexpr int copies(int /*byte*/) { return 1; }
  TWOFOUR_HD static constexpr Stored place(Shape, Source s, int /*copy*/ = 0) {
    if (s.byte < 8) return {0, {s.e, s.n, s.group * 8 + s.byte}};
    return {1, {s.e, s.n, s.group}};
  }
};

/// Same as with_layout(), but accepts CheckpointRows as well as layouts.
template <class F>
bool with_stored(std::string_view name, F&& f) {
  if (name != CheckpointRows::name) return with_layout(name, f);
  f.template operator()<CheckpointRows>();
  return true;
}

}  // namespace twofour
