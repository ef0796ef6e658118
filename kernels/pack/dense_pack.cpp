#include "kernels/pack/dense_pack.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "formats/e4m3.h"
#include "formats/layouts/layouts.h"
#include "kernels/device/check.h"

namespace twofour {
namespace {

/// The number of groups whose block scales are adjacent in the 128x4 order.
constexpr int64_t kScaleRun = 4;

/// The offset of a byte of row `n` in its part.
template <class Layout>
int64_t offset_of(Shape shape, int64_t n, int64_t group, int byte) {
  const Stored s = Layout::place(shape, {0, n, group, byte});
  return s.at.row * Layout::part(s.part, shape).cols + s.at.col;
}

}  // namespace

template <class Layout>
uint64_t dense_pack(const DenseRows& rows, Shape shape, int64_t n0, std::span<uint8_t* const> parts) {
  check(shape.e == 1 && shape.k == rows.k && rows.k % kGroup == 0, "one expert and the same K on both sides");
  check(n0 >= 0 && rows.n >= 0 && n0 + rows.n <= shape.n, "rows inside the expert");
  check(parts.size() == static_cast<size_t>(Layout::part_count), "a pointer for every part of the layout");
  const int64_t groups = shape.groups();
  uint64_t bad = 0;
  for (int64_t r = 0; r < rows.n; ++r) {
    const int64_t n = n0 + r;
    // The codes of a row are one run.
    const Stored head = Layout::place(shape, {0, n, 0, 0});
    const int64_t first = offset_of<Layout>(shape, n, 0, 0);
    check(offset_of<Layout>(shape, n, groups - 1, 7) == first + rows.k / 2 - 1,
          "a layout that keeps a row's codes together");
    std::memcpy(parts[static_cast<size_t>(head.part)] + first, rows.codes + r * rows.codes_pitch,
                static_cast<size_t>(rows.k / 2));

    // The scales of a row are runs of four at equal distances.
    const uint8_t* scales = rows.scales + r * rows.scales_pitch;
    uint8_t* to = parts[static_cast<size_t>(Layout::place(shape, {0, n, 0, 8}).part)] +
                  offset_of<Layout>(shape, n, 0, 8);
    const int64_t step = groups > kScaleRun
                             ? offset_of<Layout>(shape, n, kScaleRun, 8) - offset_of<Layout>(shape, n, 0, 8)
                             : 0;
    const int64_t last = groups - 1;
    check(offset_of<Layout>(shape, n, last, 8) - offset_of<Layout>(shape, n, 0, 8) ==
              last / kScaleRun * step + last % kScaleRun,
          "a layout that keeps scales in runs of four");
    for (int64_t g = 0; g < groups; g += kScaleRun) {
      std::memcpy(to + g / kScaleRun * step, scales + g,
                  static_cast<size_t>(std::min(kScaleRun, groups - g)));
    }
    for (int64_t g = 0; g < groups; ++g) bad += !e4m3_is_block_scale(scales[g]);
  }
  return bad;
}

// This function is never called. It takes addresses, which instantiates dense_pack for every dense layout of
// the list.
std::vector<DensePackFunction*> dense_pack_functions() {
  std::vector<DensePackFunction*> functions;
  for_each_layout([&]<class Layout>() {
    if constexpr (std::is_same_v<typename Layout::Atom, DenseGroup>) functions.push_back(&dense_pack<Layout>);
  });
  return functions;
}

}  // namespace twofour
