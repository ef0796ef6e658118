#include "lib/lint/bytes/blocks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "formats/e2m1.h"
#include "formats/e4m3.h"

namespace lint_blocks_test {

using namespace twofour;

namespace {

struct Block {
  uint8_t codes[16];
  uint8_t scale;
};

/// The same counts, block by block and with nothing clever.
BlockCounts count_slowly(const std::vector<Block>& blocks, uint64_t first) {
  BlockCounts c;
  double amax = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const uint8_t s = blocks[i].scale;
    unsigned largest = 0;
    for (const uint8_t code : blocks[i].codes) largest = std::max(largest, code & 7u);
    ++c.blocks;
    const bool nan = s == 0x7F || s == 0xFF, negative = s >= 0x80 && !nan;
    c.nan += nan;
    c.negative += negative;
    if (nan || negative) c.first_bad = std::min(c.first_bad, first + i);
    c.zero += s == 0;
    c.subnormal += s > 0 && s < 8;
    c.top += s == 0x7E;
    c.top_full += s == 0x7E && largest == 7;
    if (s == 0 && largest > 0) {
      ++c.vanished;
      c.first_vanished = std::min(c.first_vanished, first + i);
    }
    c.any_code = c.any_code || largest > 0;
    if (!nan && !negative) amax = std::max(amax, double{e2m1_to_float(largest)} * e4m3_to_float(s));
  }
  c.amax = static_cast<uint32_t>(amax * 1024);
  return c;
}

void check_equal(const BlockCounts& a, const BlockCounts& b) {
  CHECK(a.blocks == b.blocks);
  CHECK(a.nan == b.nan);
  CHECK(a.negative == b.negative);
  CHECK(a.zero == b.zero);
  CHECK(a.subnormal == b.subnormal);
  CHECK(a.vanished == b.vanished);
  CHECK(a.top == b.top);
  CHECK(a.top_full == b.top_full);
  CHECK(a.first_bad == b.first_bad);
  CHECK(a.first_vanished == b.first_vanished);
  CHECK(a.amax == b.amax);
  CHECK(a.any_code == b.any_code);
}

}  // namespace

TEST_CASE("blocks are counted as one would by hand, whichever way they lie") {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const uint64_t groups = 1 + random() % 9, n = 1 + random() % 77;
    // Some rounds lack large scales, some codes, some both.
    const unsigned top = round % 4 == 0   ? 256
                         : round % 4 == 1 ? 0x7F
                                          : static_cast<unsigned>(1 + random() % 0x7E);
    const unsigned mask = round % 5 == 0 ? 0x88 : round % 5 == 1 ? 0x99 : 0xFF;
    std::vector<Block> blocks(groups * n);
    for (Block& b : blocks) {
      b.scale = static_cast<uint8_t>(random() % top);
      for (uint8_t& code : b.codes)
        code = static_cast<uint8_t>(random() % 3 == 0 ? random() & mask & 15 : random() & 8);
    }
    std::vector<uint8_t> codes, scales, outer(groups * n * 8);
    for (size_t i = 0; i < blocks.size(); ++i) {
      scales.push_back(blocks[i].scale);
      for (size_t j = 0; j < 8; ++j) {
        const auto byte = static_cast<uint8_t>(blocks[i].codes[2 * j] | blocks[i].codes[2 * j + 1] << 4);
        codes.push_back(byte);
        outer[(i / n * 8 + j) * n + i % n] = byte;
      }
    }
    const BlockCounts expected = count_slowly(blocks, 1000);
    BlockCounts inner_counts, outer_counts;
    count_blocks(codes.data(), scales.data(), groups * n, 1000, inner_counts);
    count_blocks_k_outer(outer.data(), scales.data(), groups, n, 1000, outer_counts);
    check_equal(inner_counts, expected);
    check_equal(outer_counts, expected);
    // In two parts it comes to the same.
    const uint64_t half = groups * n / 2;
    BlockCounts a, b;
    count_blocks(codes.data(), scales.data(), half, 1000, a);
    count_blocks(codes.data() + 8 * half, scales.data() + half, groups * n - half, 1000 + half, b);
    a += b;
    check_equal(a, expected);
  }
}

TEST_CASE("every octet of non-zero places is judged by either pattern") {
  for (unsigned places = 0; places < 256; ++places) {
    std::vector<uint8_t> codes(4);
    int quads[2] = {}, pairs = 0;
    for (unsigned i = 0; i < 8; ++i) {
      const bool set = places >> i & 1;
      codes[i / 2] =
          static_cast<uint8_t>(codes[i / 2] | (set ? 1 + i % 7 : 8 * (i % 2)) << i % 2 * 4);  // -0 is zero
      quads[i / 4] += set;
      pairs += i % 2 == 0 && (places >> i & 3) != 0;
    }
    BlockCounts by_quads, by_pairs;
    count_pattern(codes, "2:4", 7, by_quads);
    count_pattern(codes, "4:8-paired", 7, by_pairs);
    CHECK(by_quads.dense == (quads[0] > 2 || quads[1] > 2));
    CHECK(by_pairs.dense == (pairs > 2));
    CHECK(by_quads.groups == 1);
    CHECK(by_pairs.first_dense == (pairs > 2 ? 7 : BlockCounts::kNone));
  }
}

}  // namespace lint_blocks_test
