#include <algorithm>
#include <array>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "kernels/pack/prune_pack_ops.h"

// Plain loops over arrays of bytes, which compilers vectorize for the processor.

namespace twofour {
namespace {

constexpr int kStepGroups = 16;
constexpr int kStepQuads = 4 * kStepGroups;

// Sums of the two squares for each byte of codes. Separate nibbles would take twice as many look-ups.
constexpr std::array<uint16_t, 256> kByteSquares = [] {
  std::array<uint16_t, 256> squares{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    for (const unsigned code : {byte & 15u, byte >> 4}) {
      const int halves = e2m1_halves(code);
      squares[byte] = static_cast<uint16_t>(squares[byte] + halves * halves);
    }
  }
  return squares;
}();
static_assert([] {
  for (unsigned code = 0; code < 8; ++code) {
    if (kHalvesSquared[code] != e2m1_halves(code) * e2m1_halves(code)) return false;
  }
  return true;
}());

// A key that sorts by magnitude, then by the lower place. It also carries the sign.
constexpr uint8_t sort_key(unsigned code, unsigned place) {
  return static_cast<uint8_t>((code & 7u) << 5 | (3 - place) << 3 | (code >> 3 & 1u));
}

// Puts the place in bits 6 and 7 and the code below it, so that sorting puts the lower place first.
constexpr uint8_t place_and_code(unsigned key) {
  return static_cast<uint8_t>((key >> 5) | (key & 1u) << 3 | ((~key << 3) & 0xC0u));
}

int select_step(const uint8_t* codes, uint8_t* comp, uint8_t* meta) {
  uint8_t nibbles[kStepQuads];
  int tied = 0;
  for (int q = 0; q < kStepQuads; ++q) {
    const unsigned even = codes[2 * q], odd = codes[2 * q + 1];
    const uint8_t k0 = sort_key(even & 15u, 0), k1 = sort_key(even >> 4, 1);
    const uint8_t k2 = sort_key(odd & 15u, 2), k3 = sort_key(odd >> 4, 3);
    // Sort two pairs. The larger head is first, and second and third are among the rest.
    const uint8_t a = std::max(k0, k1), b = std::min(k0, k1), c = std::max(k2, k3), d = std::min(k2, k3);
    const uint8_t p = std::min(a, c), r = std::max(b, d);
    const uint8_t first = place_and_code(std::max(a, c)), second = place_and_code(std::max(p, r));
    const uint8_t low = std::min(first, second), high = std::max(first, second);
    comp[q] = static_cast<uint8_t>((low & 15u) | (high & 15u) << 4);
    nibbles[q] = static_cast<uint8_t>((low >> 6) | (high >> 6) << 2);
    tied += ((p ^ r) & 0xE0) == 0;
  }
  for (int i = 0; i < kStepQuads / 2; ++i) {
    meta[i] = static_cast<uint8_t>(nibbles[2 * i] | nibbles[2 * i + 1] << 4);
  }
  return tied;
}

RunTally select(const uint8_t* codes, const uint8_t* scales, int64_t groups, const uint8_t* /*ahead*/,
                uint8_t* comp, uint8_t* meta) {
  RunTally tally{};
  int64_t g = 0;
  for (; g + kStepGroups <= groups; g += kStepGroups) {
    tally.tied += static_cast<uint64_t>(select_step(codes + 8 * g, comp + 4 * g, meta + 2 * g));
  }
  if (const int64_t left = groups - g; left > 0) {
    uint8_t padded[8 * kStepGroups] = {}, comp_step[4 * kStepGroups], meta_step[2 * kStepGroups];
    std::copy_n(codes + 8 * g, 8 * left, padded);
    const int tied = select_step(padded, comp_step, meta_step);
    std::copy_n(comp_step, 4 * left, comp + 4 * g);
    std::copy_n(meta_step, 2 * left, meta + 2 * g);
    // Quads of padding are zeros and therefore tied.
    tally.tied += static_cast<uint64_t>(tied - 4 * (kStepGroups - left));
  }
  for (g = 0; g < groups; ++g) {
    uint64_t energy = 0, kept = 0;
    for (int i = 0; i < 8; ++i) energy += kByteSquares[codes[8 * g + i]];
    for (int i = 0; i < 4; ++i) kept += kByteSquares[comp[4 * g + i]];
    const bool good = e4m3_is_block_scale(scales[g]);
    const uint64_t units = good ? e4m3_units(scales[g]) : 0;
    tally.bad_scales += !good;
    tally.energy += units * units * energy;
    tally.kept_energy += units * units * kept;
  }
  return tally;
}

void transpose(const uint8_t* src, int64_t pitch, int64_t rows, int64_t cols, uint8_t* const* dst,
               int64_t offset, bool /*streaming*/) {
  // Tiles let the L1 cache hold the lines that adjacent columns share.
  constexpr int64_t kTile = 64;
  for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
    for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
      const int64_t c1 = std::min(cols, c0 + kTile), r1 = std::min(rows, r0 + kTile);
      for (int64_t c = c0; c < c1; ++c) {
        for (int64_t r = r0; r < r1; ++r) dst[c][offset + r] = src[r * pitch + c];
      }
    }
  }
}

void fence() {}

}  // namespace

const PrunePackOps kPrunePackPortable = {select, transpose, fence};

}  // namespace twofour
