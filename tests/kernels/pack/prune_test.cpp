#include "kernels/pack/prune.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <vector>

namespace prune_test {

using namespace twofour;

namespace {

constexpr int kSquaredHalves[8] = {0, 1, 4, 9, 16, 36, 64, 144};

/// Which of four stay, by sorting: the two largest, on a tie the lower place.
std::array<bool, 4> two_largest(const std::array<int, 4>& sizes) {
  std::array<int, 4> order{0, 1, 2, 3};
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return sizes[static_cast<size_t>(a)] > sizes[static_cast<size_t>(b)];
  });
  std::array<bool, 4> stays{};
  stays[static_cast<size_t>(order[0])] = stays[static_cast<size_t>(order[1])] = true;
  return stays;
}

bool is_tied(std::array<int, 4> sizes) {
  std::sort(sizes.begin(), sizes.end());
  return sizes[1] == sizes[2];
}

/// Sixteen codes as they should be left, found by sorting each chunk; counts the tied ones.
std::array<unsigned, 16> expected_codes(PrunePattern pattern, const std::array<unsigned, 16>& codes,
                                        uint64_t& tied) {
  std::array<unsigned, 16> kept{};
  const size_t width = pattern == PrunePattern::k2of4 ? 1 : 2;  // codes that stay or go together
  for (size_t first = 0; first < 16; first += 4 * width) {
    std::array<int, 4> sizes{};
    for (size_t i = 0; i < 4 * width; ++i) sizes[i / width] += kSquaredHalves[codes[first + i] & 7];
    const auto stays = two_largest(sizes);
    for (size_t i = 0; i < 4 * width; ++i) kept[first + i] = stays[i / width] ? codes[first + i] : 0;
    tied += is_tied(sizes);
  }
  return kept;
}

unsigned __int128 energy_of(const std::array<unsigned, 16>& codes, uint64_t units) {
  uint64_t sum = 0;
  for (const unsigned c : codes) sum += static_cast<uint64_t>(kSquaredHalves[c & 7]);
  return static_cast<unsigned __int128>(units * units) * sum;
}

/// Scales in units of 2^-9, by the definition of E4M3.
uint64_t units_of(uint8_t scale) {
  if (scale >= 0x7F) return 0;
  const unsigned e = scale >> 3, m = scale & 7u;
  return e == 0 ? m : uint64_t{8 + m} << (e - 1);
}

struct Weights {
  std::vector<uint8_t> codes, scales;
  int64_t blocks, n;
  CodeBlocks view() const { return {codes.data(), scales.data(), blocks, n}; }
  size_t at(int64_t block, int64_t j, int64_t column) const {
    return static_cast<size_t>((block * 8 + j) * n + column);
  }
};

Weights random_weights(int64_t blocks, int64_t n, unsigned seed, bool bad_scales = false) {
  std::mt19937 random(seed);
  Weights w{std::vector<uint8_t>(static_cast<size_t>(blocks * 8 * n)),
            std::vector<uint8_t>(static_cast<size_t>(blocks * n)), blocks, n};
  for (uint8_t& b : w.codes) b = static_cast<uint8_t>(random());
  for (uint8_t& b : w.scales) b = static_cast<uint8_t>(bad_scales ? random() : random() % 0x7F);
  return w;
}

void check_weights(PrunePattern pattern, const Weights& w) {
  std::vector<uint8_t> expected(w.codes.size());
  PruneStats stats;
  stats.quads = static_cast<uint64_t>(w.blocks * w.n) * (pattern == PrunePattern::k2of4 ? 4 : 2);
  for (int64_t block = 0; block < w.blocks; ++block) {
    for (int64_t column = 0; column < w.n; ++column) {
      const uint8_t scale = w.scales[static_cast<size_t>(block * w.n + column)];
      std::array<unsigned, 16> codes{};
      for (size_t k = 0; k < 16; ++k)
        codes[k] = w.codes[w.at(block, static_cast<int64_t>(k / 2), column)] >> k % 2 * 4 & 15u;
      const auto kept = expected_codes(pattern, codes, stats.tied);
      for (size_t k = 0; k < 16; ++k)
        expected[w.at(block, static_cast<int64_t>(k / 2), column)] |=
            static_cast<uint8_t>(kept[k] << k % 2 * 4);
      stats.bad_scales += scale >= 0x7F;
      stats.energy += energy_of(codes, units_of(scale));
      stats.kept_energy += energy_of(kept, units_of(scale));
    }
  }
  std::vector<uint8_t> found(w.codes.size());
  for (const Isa isa : available_isas()) {
    CAPTURE(isa_name(isa));
    std::fill(found.begin(), found.end(), uint8_t{0xAA});
    CHECK((prune_codes(pattern, w.view(), found.data(), isa) == stats));
    CHECK((found == expected));
  }
  CHECK((prune_codes_reference(pattern, w.view(), found.data()) == stats));
  CHECK((found == expected));
  // Pruning again changes nothing; the destination may be the source.
  const PruneStats again = prune_codes(pattern, {found.data(), w.scales.data(), w.blocks, w.n}, found.data());
  CHECK((found == expected));
  CHECK((again.energy == stats.kept_energy));
  CHECK((again.kept_energy == stats.kept_energy));
}

constexpr PrunePattern kPatterns[] = {PrunePattern::k2of4, PrunePattern::k4of8Paired};

}  // namespace

TEST_CASE("each of the 65,536 quads keeps its two largest codes, wherever it stands in a block") {
  for (int64_t place = 0; place < 4; ++place) {
    Weights w{std::vector<uint8_t>(65536 * 8), std::vector<uint8_t>(65536, 0x38), 65536, 1};
    for (unsigned quad = 0; quad < 65536; ++quad) {
      w.codes[w.at(quad, 2 * place, 0)] = static_cast<uint8_t>(quad);
      w.codes[w.at(quad, 2 * place + 1, 0)] = static_cast<uint8_t>(quad >> 8);
    }
    check_weights(PrunePattern::k2of4, w);
  }
}

TEST_CASE("octets of any four pairs keep the two with the most energy") {
  // A pair matters by its energy alone; of equal energies one stands for all: 36 pairs, 36^4 octets.
  std::vector<uint8_t> pairs;
  std::vector<int> energies;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const int energy = kSquaredHalves[byte & 7] + kSquaredHalves[byte >> 4 & 7];
    if (std::find(energies.begin(), energies.end(), energy) != energies.end()) continue;
    energies.push_back(energy);
    pairs.push_back(static_cast<uint8_t>(byte));
  }
  const size_t count = pairs.size(), blocks = count * count;
  CHECK(count > 25);
  Weights w{std::vector<uint8_t>(blocks * 8), std::vector<uint8_t>(blocks, 0x38),
            static_cast<int64_t>(blocks), 1};
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < count; ++b) {
      for (size_t i = 0; i < blocks; ++i) {
        const uint8_t octet[4] = {pairs[a], pairs[b], pairs[i / count], pairs[i % count]};
        std::copy_n(octet, 4, &w.codes[8 * i]);
        std::reverse_copy(octet, octet + 4, &w.codes[8 * i + 4]);
      }
      check_weights(PrunePattern::k4of8Paired, w);
    }
  }
}

TEST_CASE("all 65,536 pairs of pairs, signs and negative zeros among them, are told apart by energy alone") {
  for (const int other : {0x00, 0x88, 0x11, 0x77}) {
    Weights w{std::vector<uint8_t>(65536 * 8, static_cast<uint8_t>(other)), std::vector<uint8_t>(65536, 0x7E),
              65536, 1};
    for (unsigned quad = 0; quad < 65536; ++quad) {
      w.codes[8 * quad + 1] = static_cast<uint8_t>(quad);
      w.codes[8 * quad + 2] = static_cast<uint8_t>(quad >> 8);
    }
    check_weights(PrunePattern::k4of8Paired, w);
  }
}

TEST_CASE("random weights of odd shapes, K contiguous and K outermost, are pruned as by sorting") {
  unsigned seed = 0;
  for (const PrunePattern pattern : kPatterns) {
    for (const int64_t blocks : {1, 2, 3, 7}) {
      for (const int64_t n : {1, 2, 3, 7, 8, 9, 15, 16, 17, 40, 101, 256, 300}) {
        check_weights(pattern, random_weights(blocks, n, ++seed));
      }
    }
    check_weights(pattern, random_weights(1000, 1, ++seed));
  }
}

TEST_CASE("every block scale weighs the figures, and bad ones count as zero and are counted") {
  for (const PrunePattern pattern : kPatterns) {
    Weights w = random_weights(256, 1, 5);
    std::iota(w.scales.begin(), w.scales.end(), uint8_t{0});
    check_weights(pattern, w);
    check_weights(pattern, random_weights(3, 33, 6, true));
  }
}

TEST_CASE("pruned weights keep negative zeros that stay and drop the sign of what goes") {
  // Magnitudes 0 0 0 0: the first two stay as stored. 4:8: pairs of no energy, the first two stay.
  const std::vector<uint8_t> codes(8, 0x88), scales{0x38};
  std::vector<uint8_t> out(8);
  prune_codes(PrunePattern::k2of4, {codes.data(), scales.data(), 1, 1}, out.data());
  CHECK((out == std::vector<uint8_t>{0x88, 0, 0x88, 0, 0x88, 0, 0x88, 0}));
  prune_codes(PrunePattern::k4of8Paired, {codes.data(), scales.data(), 1, 1}, out.data());
  CHECK((out == std::vector<uint8_t>{0x88, 0x88, 0, 0, 0x88, 0x88, 0, 0}));
}

TEST_CASE("the octet that formats/README.md works out is pruned as it says") {
  const std::vector<uint8_t> codes{0x71, 0x05, 0x22, 0x50, 0, 0, 0, 0}, scales{0x38};
  std::vector<uint8_t> out(8);
  const PruneStats stats =
      prune_codes(PrunePattern::k4of8Paired, {codes.data(), scales.data(), 1, 1}, out.data());
  CHECK((out == std::vector<uint8_t>{0x71, 0x05, 0, 0, 0, 0, 0, 0}));
  CHECK(stats.tied == 2);  // the octet of zeros, too
}

TEST_CASE("patterns have names") {
  CHECK(prune_pattern_name(PrunePattern::k2of4) == "2:4");
  CHECK(prune_pattern_name(PrunePattern::k4of8Paired) == "4:8-paired");
}

}  // namespace prune_test
