#include "formats/atom.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <set>

namespace atom_test {

using namespace twofour;

namespace {

struct Candidate {
  int k;
  unsigned code;
  unsigned magnitude() const { return code % 8; }
};

/// The four weights of a quad, the one to keep first in front.
std::array<Candidate, 4> ranked(unsigned quad) {
  std::array<Candidate, 4> all;
  for (int k = 0; k < 4; ++k) all[static_cast<size_t>(k)] = {k, (quad >> (4 * k)) % 16};
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.magnitude() != b.magnitude() ? a.magnitude() > b.magnitude() : a.k < b.k;
  });
  return all;
}

/// The 2:4 rule as product text says it, and slowly: rank, keep two, put them in the order of k.
Quad24 oracle(unsigned quad) {
  auto all = ranked(quad);
  if (all[0].k > all[1].k) std::swap(all[0], all[1]);
  return {static_cast<uint8_t>(all[0].code + 16 * all[1].code),
          static_cast<uint8_t>(all[0].k + 4 * all[1].k)};
}

/// Four codes of which the two that `kept` names are taken from it.
unsigned slow_expand(Quad24 kept) {
  std::array<unsigned, 4> codes{};
  codes[kept.meta % 4] = kept.comp % 16;
  codes[kept.meta / 4] = kept.comp / 16;
  return codes[0] + 16 * codes[1] + 256 * codes[2] + 4096 * codes[3];
}

bool same_bytes(const SparseGroup& a, const SparseGroup& b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

DenseGroup random_group(std::mt19937& random) {
  DenseGroup group{};
  for (uint8_t& byte : group.codes) byte = static_cast<uint8_t>(random());
  group.scale = static_cast<uint8_t>(random());
  return group;
}

}  // namespace

TEST_CASE("all 65,536 quads keep the two largest magnitudes, on a tie the lower k") {
  for (unsigned quad = 0; quad < 65536; ++quad) {
    const Quad24 kept = select_2_4(quad), expected = oracle(quad);
    CAPTURE(quad);
    CHECK(kept.comp == expected.comp);
    CHECK(kept.meta == expected.meta);
    CHECK(is_legal_meta(kept.meta));
  }
}

TEST_CASE("all 65,536 quads expand to their kept codes as stored, and 0x0 elsewhere") {
  for (unsigned quad = 0; quad < 65536; ++quad) {
    const Quad24 kept = select_2_4(quad);
    const unsigned expanded = expand_2_4(kept);
    CAPTURE(quad);
    CHECK(expanded == slow_expand(oracle(quad)));
    CHECK((expanded & ~quad) == 0);
    // Pruning what is pruned changes nothing.
    CHECK(select_2_4(expanded).comp == kept.comp);
    CHECK(select_2_4(expanded).meta == kept.meta);
  }
}

TEST_CASE("a quad is tied where its second and third largest magnitudes are equal") {
  for (unsigned quad = 0; quad < 65536; ++quad) {
    const auto all = ranked(quad);
    CAPTURE(quad);
    CHECK(is_tied_2_4(quad) == (all[1].magnitude() == all[2].magnitude()));
  }
}

TEST_CASE("six metadata nibbles are legal, ten are not") {
  const std::set<unsigned> legal = {0x4, 0x8, 0x9, 0xC, 0xD, 0xE};
  std::set<unsigned> seen;
  for (unsigned nibble = 0; nibble < 16; ++nibble) CHECK(is_legal_meta(nibble) == legal.contains(nibble));
  for (unsigned quad = 0; quad < 65536; ++quad) seen.insert(select_2_4(quad).meta);
  CHECK(seen == legal);
}

TEST_CASE("each kept code stands where its metadata says") {
  // k        0    1    2    3     kept
  // quad 0   1.0  -6   3    0.5   k = 1, 2
  // quad 1   2    2    2    2     k = 0, 1: a tie goes to the lower k
  // quad 2   0    0    0    -0.5  k = 3 and, all else being zero, k = 0
  // quad 3   -4   1.5  4    6     k = 3 and of the two fours k = 0
  const DenseGroup dense = {{0xF2, 0x15, 0x44, 0x44, 0x00, 0x90, 0x3E, 0x76}, 0x38};
  const SparseGroup sparse = prune(dense);
  CHECK(sparse.comp[0] == 0x5F);  // -6 low, 3 high
  CHECK(sparse.comp[1] == 0x44);
  CHECK(sparse.comp[2] == 0x90);
  CHECK(sparse.comp[3] == 0x7E);
  CHECK(sparse.meta[0] == 0x49);  // quad 0: 1 | 2 << 2 in the low nibble; quad 1: 0 | 1 << 2
  CHECK(sparse.meta[1] == 0xCC);  // quads 2 and 3: 0 | 3 << 2
  CHECK(sparse.scale == 0x38);
  const DenseGroup back = expand(sparse);
  const uint8_t expected[] = {0xF0, 0x05, 0x44, 0x00, 0x00, 0x90, 0x0E, 0x70};
  CHECK(std::equal(back.codes, back.codes + 8, expected));
  CHECK(back.scale == 0x38);
}

TEST_CASE("-0 counts as zero and stays as stored when kept") {
  // -0 at k = 0 ties with the zeros and wins by its place; it loses to the smallest number.
  CHECK(select_2_4(0x0008).comp == 0x08);
  CHECK(select_2_4(0x0008).meta == 0x4);
  CHECK(select_2_4(0x8888).comp == 0x88);
  CHECK(select_2_4(0x1808).comp == 0x18);
  CHECK(select_2_4(0x1808).meta == 0xC);
  CHECK(select_2_4(0x9180).comp == 0x91);  // -0.5 at k = 3, 0.5 at k = 2; the zeros go, -0 with them
  CHECK(select_2_4(0x9180).meta == 0xE);
  CHECK(expand_2_4(select_2_4(0x9180)) == 0x9100);
  CHECK(is_tied_2_4(0x8001));
  CHECK(is_tied_2_4(0x8000));
}

TEST_CASE("a quad prunes alike in each of the four places of a group") {
  std::mt19937 random(1);
  for (unsigned quad = 0; quad < 65536; ++quad) {
    const Quad24 expected = oracle(quad);
    for (unsigned q = 0; q < 4; ++q) {
      DenseGroup dense = random_group(random);
      dense.codes[2 * q] = static_cast<uint8_t>(quad);
      dense.codes[2 * q + 1] = static_cast<uint8_t>(quad >> 8);
      const SparseGroup sparse = prune(dense);
      REQUIRE(sparse.comp[q] == expected.comp);
      REQUIRE(((sparse.meta[q / 2] >> (4 * (q % 2))) & 15) == expected.meta);
      REQUIRE(sparse.scale == dense.scale);
    }
  }
}

TEST_CASE("a pruned group survives expanding and pruning, and what it dropped is 0x0") {
  std::mt19937 random(2);
  for (int i = 0; i < 10'000; ++i) {
    const DenseGroup dense = random_group(random);
    const SparseGroup sparse = prune(dense);
    const DenseGroup expanded = expand(sparse);
    CHECK(expanded.scale == dense.scale);
    for (int q = 0; q < 4; ++q) {
      const unsigned quad = dense.codes[2 * q] + 256u * dense.codes[2 * q + 1];
      CHECK(expanded.codes[2 * q] + 256u * expanded.codes[2 * q + 1] == slow_expand(oracle(quad)));
    }
    CHECK(same_bytes(prune(expanded), sparse));
  }
}

}  // namespace atom_test
