#pragma once
#include "formats/layouts/layout.h"

namespace twofour {

/// g8 is a dense layout. Rows of gate and up are interleaved eight by eight, so both rows of a pair are in
/// the same tile of a matrix product. Block scales have the 128x4 order that block-scaled tensor cores read.
///   weight U8       [E, N, K/2]    two codes in each byte, the even k in the low nibble
///   scale  F8_E4M3  [E, Np, Sp]    Np is N rounded up to 128, Sp is K/16 rounded up to 4; padding is zero
/// In a gated matrix, let b = r / 16 and t = r % 16. Row r holds gate row 8b + t if t < 8, and up row 8b + t
/// - 8 otherwise. Rows of other matrices keep their order. cuBLASLt (VEC16_UE4M3), CUTLASS and vLLM use the
/// same 128x4 order.
struct GateUpInterleaved8 {
  using Atom = DenseGroup;
  static constexpr const char* name = "g8";
  static constexpr const char* summary =
      "dense NVFP4, 4.5 bits a weight: gate and up rows interleaved by 8, block scales in 128x4 tiles";
  static constexpr const char* pattern = "dense";
  static constexpr int part_count = 2;
  static constexpr Axis outer = Axis::kN;
  static constexpr bool pairs_gate_and_up = true;

  TWOFOUR_HD static constexpr Part part(int i, Shape s) {
    return i == 0 ? Part{"weight", DType::kU8, s.n, s.k / 2}
                  : Part{"scale", DType::kF8E4M3, (s.n + 127) / 128 * 128, (s.k / 16 + 3) / 4 * 4};
  }

  static constexpr Shape shape_of(int64_t e, int64_t rows, int64_t cols) { return {e, rows, 2 * cols}; }

  /// The row that is stored as row `r`, counted in the order with all gate rows before all up rows.
  TWOFOUR_HD static constexpr int64_t source_row(Shape s, int64_t r) {
    if (!s.gated) return r;
    const int64_t b = r / 16, t = r % 16;
    return t < 8 ? 8 * b + t : s.n / 2 + 8 * b + t - 8;
  }
  /// The stored row that holds row `n`, counted in the order with all gate rows before all up rows.
  TWOFOUR_HD static constexpr int64_t stored_row(Shape s, int64_t n) {
    if (!s.gated) return n;
    const int64_t i = n < s.n / 2 ? n : n - s.n / 2;
    return i / 8 * 16 + i % 8 + (n < s.n / 2 ? 0 : 8);
  }

  TWOFOUR_HD static constexpr Source source(int part, Shape s, Place at) {
    if (part == 0) return {at.e, source_row(s, at.row), at.col / 8, static_cast<int>(at.col % 8)};
    const int64_t tiles = (s.k / 16 + 3) / 4, offset = at.row * (4 * tiles) + at.col;
    const int64_t tile = offset / 512, in = offset % 512;
    const int64_t m = tile / tiles * 128 + in % 16 / 4 * 32 + in / 16, group = tile % tiles * 4 + in % 4;
    if (m >= s.n || group >= s.groups()) return {at.e, 0, 0, kPadding};
    return {at.e, source_row(s, m), group, 8};
  }

  TWOFOUR_HD static constexpr int copies(int /*byte*/) { return 1; }

  TWOFOUR_HD static constexpr Stored place(Shape shape, Source s, int /*copy*/ = 0) {
    const int64_t m = stored_row(shape, s.n);
    if (s.byte < 8) return {0, {s.e, m, s.group * 8 + s.byte}};
    const int64_t tiles = (shape.groups() + 3) / 4;
    const int64_t offset =
        (m / 128 * tiles + s.group / 4) * 512 + m % 32 * 16 + m % 128 / 32 * 4 + s.group % 4;
    return {1, {s.e, offset / (4 * tiles), offset % (4 * tiles)}};
  }
};

}  // namespace twofour
