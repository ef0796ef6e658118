#include "kernels/prune.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "formats/atom.h"
#include "formats/e4m3.h"

namespace twofour {
namespace {

static_assert(std::endian::native == std::endian::little, "byte j of a row is byte j of a word");

/// Sums of squared halves by block scale: exact, and one addition a block.
struct Energies {
  std::array<uint64_t, 256> all{}, kept{};
  void add_to(PruneStats& stats) const {
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (all[byte] == 0 || !e4m3_is_block_scale(byte)) continue;
      const unsigned __int128 square = uint64_t{e4m3_units(byte)} * e4m3_units(byte);
      stats.energy += square * all[byte];
      stats.kept_energy += square * kept[byte];
    }
  }
};

struct Tables {
  std::array<uint16_t, 256> energy{};  ///< of a pair
  std::array<uint8_t, 256> rank{};     ///< of that energy among all that occur, below 128
  constexpr Tables() {
    std::array<bool, 289> occurs{};
    for (unsigned byte = 0; byte < 256; ++byte) {
      energy[byte] = static_cast<uint16_t>(pair_energy(byte));
      occurs[energy[byte]] = true;
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
      for (unsigned e = 0; e < energy[byte]; ++e) rank[byte] = static_cast<uint8_t>(rank[byte] + occurs[e]);
    }
  }
};
constexpr Tables kTables;
static_assert(*std::max_element(kTables.rank.begin(), kTables.rank.end()) < 128);

uint64_t word_energy(uint64_t codes) {
  uint64_t sum = 0;
  for (int i = 0; i < 8; ++i) sum += kTables.energy[(codes >> 8 * i) & 0xFF];
  return sum;
}

/// `lane` in every chunk of four lanes.
template <int Bits>
constexpr uint64_t in_lane(int index, uint64_t lane) {
  uint64_t word = 0;
  for (int at = index * Bits; at < 64; at += 4 * Bits) word |= lane << at;
  return word;
}

/// Which lanes stay, all their bits set, of a word in which four lanes of `Bits` bits make a chunk: the two
/// largest, on a tie the lower one. `size` has the top bit of each lane clear. `tied` counts the chunks that
/// a tie decided. All lanes are compared at once, each with the one, two and three places above it.
template <int Bits>
uint64_t keep_two(uint64_t size, uint64_t& tied) {
  constexpr uint64_t kTop = uint64_t{1} << (Bits - 1);
  const auto lane = [](int i, uint64_t bits) { return in_lane<Bits>(i, bits); };
  const uint64_t tops = lane(0, kTop) | lane(1, kTop) | lane(2, kTop) | lane(3, kTop);
  // The top bit of lane i: it is not smaller than lane i + d. The lanes next to a chunk's end mean nothing.
  const auto not_below = [&](int d) { return ((size | tops) - (size >> d * Bits)) & tops; };
  const auto equal = [&](int d) {
    return ~((size ^ (size >> d * Bits)) + (tops - (tops >> (Bits - 1)))) & tops;
  };
  const uint64_t wins1 = not_below(1), wins2 = not_below(2), wins3 = not_below(3);
  // A lane stays unless it loses two of its three matches: those with lanes below it come shifted to it.
  const uint64_t top0 = lane(0, kTop), top1 = lane(1, kTop), top2 = lane(2, kTop), top3 = lane(3, kTop);
  const uint64_t a = (~wins1 & top0) | ((wins1 << Bits) & top1) | ((wins2 << 2 * Bits) & top2) |
                     ((wins3 << 3 * Bits) & top3);
  const uint64_t b =
      (~wins2 & top0) | (~wins1 & top1) | ((wins1 << Bits) & top2) | ((wins2 << 2 * Bits) & top3);
  const uint64_t c = (~wins3 & top0) | (~wins2 & top1) | (~wins1 & top2) | ((wins1 << Bits) & top3);
  const uint64_t kept = tops & ~((a & b) | (c & (a | b)));
  // A chunk is tied where a lane that stays equals one that goes.
  const uint64_t split1 = equal(1) & (kept ^ (kept >> Bits)) & (top0 | top1 | top2);
  const uint64_t split2 = equal(2) & (kept ^ (kept >> 2 * Bits)) & (top0 | top1);
  const uint64_t split3 = equal(3) & (kept ^ (kept >> 3 * Bits)) & top0;
  uint64_t any = split1 | (split2) | (split3);
  any |= any >> 2 * Bits;
  any |= any >> Bits;
  any &= top0;
  // One bit a chunk; summed by a multiplication into the topmost one.
  constexpr int kChunk = 4 * Bits;
  tied += ((any >> (Bits - 1)) * in_lane<Bits>(0, 1)) >> (64 - kChunk);
  return kept | (kept - (kept >> (Bits - 1)));
}

/// Sixteen codes of one output as one word.
template <PrunePattern pattern>
uint64_t prune_word(uint64_t codes, uint64_t& tied) {
  if constexpr (pattern == PrunePattern::k2of4) {
    return codes & keep_two<4>(codes & 0x7777777777777777u, tied);
  } else {
    uint64_t ranks = 0;
    for (int i = 0; i < 8; ++i) ranks |= uint64_t{kTables.rank[(codes >> 8 * i) & 0xFF]} << 8 * i;
    return codes & keep_two<8>(ranks, tied);
  }
}

/// Bytes (i, j) of eight words of eight bytes change places.
void transpose(std::array<uint64_t, 8>& w) {
  const auto swap = [&](size_t step, int bits, uint64_t mask) {
    for (size_t i = 0; i < 8; ++i) {
      if (i & step) continue;
      const uint64_t t = ((w[i] >> bits) ^ w[i + step]) & mask;
      w[i + step] ^= t;
      w[i] ^= t << bits;
    }
  };
  swap(4, 32, 0x00000000FFFFFFFFu);
  swap(2, 16, 0x0000FFFF0000FFFFu);
  swap(1, 8, 0x00FF00FF00FF00FFu);
}

constexpr uint64_t chunks_of(PrunePattern pattern) { return pattern == PrunePattern::k2of4 ? 4 : 2; }

template <PrunePattern pattern>
PruneStats prune_all(const CodeBlocks& b, uint8_t* out) {
  Energies energies;
  uint64_t tied = 0;
  const auto prune_one = [&](uint64_t codes, uint8_t scale) {
    const uint64_t kept = prune_word<pattern>(codes, tied);
    energies.all[scale] += word_energy(codes);
    energies.kept[scale] += word_energy(kept);
    return kept;
  };
  for (int64_t block = 0; block < b.blocks; ++block) {
    const uint8_t *from = b.codes + block * 8 * b.n, *scales = b.scales + block * b.n;
    uint8_t* to = out + block * 8 * b.n;
    if (b.n == 1) {
      uint64_t word = 0;
      std::memcpy(&word, from, sizeof(word));
      word = prune_one(word, *scales);
      std::memcpy(to, &word, sizeof(word));
      continue;
    }
    for (int64_t n = 0; n < b.n; n += 8) {
      const auto width = static_cast<size_t>(std::min<int64_t>(8, b.n - n));
      std::array<uint64_t, 8> words{};
      for (int64_t line = 0; line < 8; ++line)
        std::memcpy(&words[static_cast<size_t>(line)], from + line * b.n + n, width);
      transpose(words);
      for (size_t i = 0; i < width; ++i) words[i] = prune_one(words[i], scales[n + static_cast<int64_t>(i)]);
      transpose(words);
      for (int64_t line = 0; line < 8; ++line)
        std::memcpy(to + line * b.n + n, &words[static_cast<size_t>(line)], width);
    }
  }
  PruneStats stats;
  stats.quads = static_cast<uint64_t>(b.blocks * b.n) * chunks_of(pattern);
  stats.tied = tied;
  for (int64_t i = 0; i < b.blocks * b.n; ++i) stats.bad_scales += !e4m3_is_block_scale(b.scales[i]);
  energies.add_to(stats);
  return stats;
}

}  // namespace

std::string_view prune_pattern_name(PrunePattern pattern) {
  return pattern == PrunePattern::k2of4 ? "2:4" : "4:8-paired";
}

std::optional<PrunePattern> prune_pattern_from_name(std::string_view name) {
  for (const PrunePattern p : {PrunePattern::k2of4, PrunePattern::k4of8Paired}) {
    if (name == prune_pattern_name(p)) return p;
  }
  return std::nullopt;
}

PruneStats prune_codes(PrunePattern pattern, const CodeBlocks& blocks, uint8_t* out) {
  return pattern == PrunePattern::k2of4 ? prune_all<PrunePattern::k2of4>(blocks, out)
                                        : prune_all<PrunePattern::k4of8Paired>(blocks, out);
}

PruneStats prune_codes_reference(PrunePattern pattern, const CodeBlocks& b, uint8_t* out) {
  PruneStats stats;
  for (int64_t block = 0; block < b.blocks; ++block) {
    for (int64_t n = 0; n < b.n; ++n) {
      const uint8_t scale = b.scales[block * b.n + n];
      stats.bad_scales += !e4m3_is_block_scale(scale);
      const uint64_t units = e4m3_is_block_scale(scale) ? e4m3_units(scale) : 0;
      const auto at = [&](int j) { return (8 * block + j) * b.n + n; };
      for (int j = 0; j < 8; j += pattern == PrunePattern::k2of4 ? 2 : 4) {
        uint32_t codes = 0, kept = 0;
        if (pattern == PrunePattern::k2of4) {
          codes = b.codes[at(j)] | uint32_t{b.codes[at(j + 1)]} << 8;
          kept = expand_2_4(select_2_4(codes));
          stats.tied += is_tied_2_4(codes);
        } else {
          for (int i = 0; i < 4; ++i) codes |= uint32_t{b.codes[at(j + i)]} << 8 * i;
          kept = mask_4_8(codes, select_4_8(codes));
          stats.tied += is_tied_4_8(codes);
        }
        ++stats.quads;
        for (int i = 0; i < (pattern == PrunePattern::k2of4 ? 2 : 4); ++i) {
          const auto square = static_cast<unsigned __int128>(units * units);
          stats.energy += square * static_cast<unsigned>(pair_energy(codes >> 8 * i));
          stats.kept_energy += square * static_cast<unsigned>(pair_energy(kept >> 8 * i));
          out[at(j + i)] = static_cast<uint8_t>(kept >> 8 * i);
        }
      }
    }
  }
  return stats;
}

}  // namespace twofour
