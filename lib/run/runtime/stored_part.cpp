#include "lib/run/runtime/stored_part.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/e4m3.h"
#include "formats/error.h"
#include "formats/layouts/checkpoint_rows.h"
#include "lib/base/threads/parallel.h"

namespace twofour {
namespace {

/// True if both positions in both halves of a byte are ascending. The whole byte is checked at once, because
/// 8 + second - first - 1 has the top bit of a half set if second > first.
bool is_legal(uint8_t meta) {
  const unsigned first = meta & 0x33u, second = meta >> 2 & 0x33u;
  return (((second | 0x88u) - first - 0x11u) & 0x88u) == 0x88u;
}

/// The index of the first byte that is not legal, or the size if all bytes are legal. First searches without
/// branches.
template <class IsLegal>
size_t find_illegal(std::span<const uint8_t> bytes, IsLegal legal) {
  unsigned bad = 0;
  for (const uint8_t byte : bytes) bad |= unsigned{!legal(byte)};
  if (bad == 0) return bytes.size();
  return static_cast<size_t>(std::find_if_not(bytes.begin(), bytes.end(), legal) - bytes.begin());
}

}  // namespace

StoredPart make_stored_part(std::string_view layout, int part, const Shape& shape, std::string where) {
  StoredPart stored{{}, 0, std::move(where)};
  with_stored(layout, [&]<class L>() {
    stored.map = map_part<L>(part, shape);
    stored.cols = L::part(part, shape).cols;
  });
  return stored;
}

void check_stored(const StoredPart& part, int64_t offset, std::span<const uint8_t> bytes) {
  const PartMap& map = part.map;
  const auto end = offset + static_cast<int64_t>(bytes.size()), expert = map.unit * map.units;
  for (int64_t unit = offset / map.unit; unit * map.unit < end; ++unit) {
    const int64_t begin = unit * map.unit;
    const std::vector<PartRun>& runs = map.runs_of(unit % map.units);
    auto run = std::partition_point(runs.begin(), runs.end(),
                                    [&](const PartRun& r) { return begin + r.begin + r.count <= offset; });
    for (; run != runs.end() && begin + run->begin < end; ++run) {
      if (run->kind == ByteKind::kCodes) continue;
      const bool is_meta = run->kind == ByteKind::kMeta;
      const int64_t from = std::max(offset, begin + run->begin),
                    to = std::min(end, begin + run->begin + run->count);
      const auto some = bytes.subspan(static_cast<size_t>(from - offset), static_cast<size_t>(to - from));
      const size_t bad = is_meta ? find_illegal(some, is_legal)
                                 : find_illegal(some, [](uint8_t b) { return e4m3_is_block_scale(b); });
      if (bad == some.size()) continue;
      const int64_t at = from + static_cast<int64_t>(bad), place = at % expert;
      throw Error(fmt::format("{}: expert {}, row {}, column {}: expected {}, found 0x{:02X}", part.where,
                              at / expert, place / part.cols, place % part.cols,
                              is_meta ? "two ascending positions in each half of the metadata byte"
                                      : "a block scale that is neither NaN nor negative",
                              some[bad]));
    }
  }
}

void for_pieces(size_t bytes, const std::function<void(size_t, size_t)>& f) {
  constexpr size_t kBytes = 1u << 20;
  parallel_for((bytes + kBytes - 1) / kBytes, [&](size_t i) {
    const size_t at = i * kBytes;
    f(at, std::min(kBytes, bytes - at));
  });
}

std::optional<size_t> find_odd_global_scale(std::span<const float> scales) {
  const auto odd = std::ranges::find_if(scales, [](float s) { return !std::isfinite(s) || s <= 0; });
  if (odd == scales.end()) return std::nullopt;
  return static_cast<size_t>(odd - scales.begin());
}

}  // namespace twofour
