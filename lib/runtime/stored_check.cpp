#include "lib/runtime/stored_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/e4m3.h"
#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "lib/threads/parallel.h"

namespace twofour {
namespace {

/// What a run of stored bytes holds.
enum class Kind { kCodes, kMeta, kScales };

template <class Atom>
Kind kind_of(int byte) {
  if (byte == kPadding) return Kind::kCodes;
  if (byte == static_cast<int>(sizeof(Atom)) - 1) return Kind::kScales;
  return std::is_same_v<Atom, SparseGroup> && byte >= 4 ? Kind::kMeta : Kind::kCodes;
}

/// Whether both places of both nibbles are in order, for the whole byte at once: 8 + second - first - 1 keeps
/// the top bit of a nibble where second > first.
bool is_legal(uint8_t meta) {
  const unsigned first = meta & 0x33u, second = meta >> 2 & 0x33u;
  return (((second | 0x88u) - first - 0x11u) & 0x88u) == 0x88u;
}

/// Position of the first byte that is not legal; all of them: none. Looks without branches first.
template <class IsLegal>
size_t find_illegal(std::span<const uint8_t> bytes, IsLegal legal) {
  unsigned bad = 0;
  for (const uint8_t byte : bytes) bad |= unsigned{!legal(byte)};
  if (bad == 0) return bytes.size();
  return static_cast<size_t>(std::find_if_not(bytes.begin(), bytes.end(), legal) - bytes.begin());
}

template <class L>
void check_part(const StoredPart& p, int64_t offset, std::span<const uint8_t> bytes) {
  const Part part = L::part(p.part, {1, p.shape.n, p.shape.k, p.shape.gated});
  // Bytes of one kind lie next to each other: a row of N with K outermost, else a whole part.
  const int64_t run = L::outer == Axis::kK ? p.shape.n : part.bytes();
  const int64_t end = offset + static_cast<int64_t>(bytes.size());
  for (int64_t at = offset; at < end;) {
    const int64_t next = std::min(end, (at / run + 1) * run), in = at % part.bytes();
    const auto some = bytes.subspan(static_cast<size_t>(at - offset), static_cast<size_t>(next - at));
    const Place first{0, in / run * run / part.cols, in / run * run % part.cols};
    const Kind kind = kind_of<typename L::Atom>(L::source(p.part, p.shape, first).byte);
    size_t bad = some.size();
    if (kind == Kind::kMeta) bad = find_illegal(some, is_legal);
    if (kind == Kind::kScales) bad = find_illegal(some, [](uint8_t b) { return e4m3_is_block_scale(b); });
    if (bad < some.size()) {
      const int64_t place = in + static_cast<int64_t>(bad);
      throw Error(fmt::format("{}: expert {}, row {}, column {}: expected {}, found 0x{:02X}", p.where,
                              at / part.bytes(), place / part.cols, place % part.cols,
                              kind == Kind::kMeta ? "two places in order in each half of the metadata"
                                                  : "a block scale that is neither NaN nor negative",
                              some[bad]));
    }
    at = next;
  }
}

}  // namespace

void check_stored(const StoredPart& part, int64_t offset, std::span<const uint8_t> bytes) {
  with_layout(part.layout, [&]<class L>() { check_part<L>(part, offset, bytes); });
}

void for_pieces(size_t bytes, const std::function<void(size_t, size_t)>& f) {
  constexpr size_t kPiece = 1u << 20;
  parallel_for((bytes + kPiece - 1) / kPiece, [&](size_t i) {
    const size_t at = i * kPiece;
    f(at, std::min(kPiece, bytes - at));
  });
}

}  // namespace twofour
