#include "kernels/pack/prune.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "formats/atom.h"
#include "formats/e4m3.h"
#include "kernels/device/check.h"
#include "kernels/numbers/quantize_ops.h"
#include "kernels/pack/prune_words.h"

namespace twofour {

namespace {

static_assert(std::endian::native == std::endian::little, "byte j of a row is byte j of a word");

/// Sums of squared halves, separate for each block scale. They are exact and need one addition for each
/// block.
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
  std::array<uint16_t, 256> energy{};  ///< energy of a pair
  std::array<uint8_t, 256> rank{};     ///< rank of the energy among all that occur, below 128
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

/// Prunes the sixteen codes of one output as one word.
uint64_t prune_word(bool pairs, uint64_t codes, uint64_t& tied) {
  if (!pairs) return codes & keep_two<4>(codes & 0x7777777777777777u, tied);
  uint64_t ranks = 0;
  for (int i = 0; i < 8; ++i) ranks |= uint64_t{kTables.rank[(codes >> 8 * i) & 0xFF]} << 8 * i;
  return codes & keep_two<8>(ranks, tied);
}

void prune_words_portable(bool pairs, const uint8_t* codes, int64_t count, uint8_t* out, uint64_t* energy,
                          uint64_t* kept_energy, uint64_t& tied) {
  for (int64_t i = 0; i < count; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, codes + 8 * i, sizeof(word));
    const uint64_t kept = prune_word(pairs, word, tied);
    energy[i] = word_energy(word);
    kept_energy[i] = word_energy(kept);
    std::memcpy(out + 8 * i, &kept, sizeof(kept));
  }
}

/// Transposes a matrix of eight words with eight bytes each.
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

/// Prunes runs of words and adds their energies by block scale.
class Pruner {
 public:
  Pruner(bool pairs, Isa isa) : pairs_(pairs), wide_(wide_prune_words(isa)) {}

  void prune(const uint8_t* codes, const uint8_t* scales, int64_t count, uint8_t* out) {
    for (int64_t at = 0; at < count; at += kRun) {
      const int64_t run = std::min(kRun, count - at), whole = wide_ != nullptr ? run / 4 * 4 : 0;
      if (whole > 0) {
        wide_(pairs_, codes + 8 * at, whole, out + 8 * at, all_.data(), kept_.data(), tied_);
      }
      prune_words_portable(pairs_, codes + 8 * (at + whole), run - whole, out + 8 * (at + whole),
                           all_.data() + whole, kept_.data() + whole, tied_);
      for (int64_t i = 0; i < run; ++i) {
        energies_.all[scales[at + i]] += all_[static_cast<size_t>(i)];
        energies_.kept[scales[at + i]] += kept_[static_cast<size_t>(i)];
      }
    }
  }
  void add_to(PruneStats& stats) const {
    stats.tied += tied_;
    energies_.add_to(stats);
  }

 private:
  static constexpr int64_t kRun = 256;  // the sums stay in the L1 cache
  bool pairs_;
  PruneWords* wide_;
  uint64_t tied_ = 0;
  Energies energies_;
  std::array<uint64_t, kRun> all_, kept_;
};

/// Prunes one block of many outputs. Transposes it so that the sixteen codes of each output are a word, and
/// transposes the result back.
void prune_turned(const uint8_t* from, const uint8_t* scales, int64_t n, uint8_t* to, Pruner& pruner) {
  constexpr int64_t kColumns = 256;
  std::array<uint64_t, kColumns> words;
  for (int64_t first = 0; first < n; first += kColumns) {
    const int64_t columns = std::min(kColumns, n - first);
    const auto turn = [&](bool back) {
      for (int64_t c = 0; c < columns; c += 8) {
        const auto width = static_cast<size_t>(std::min<int64_t>(8, columns - c));
        std::array<uint64_t, 8> square{};
        for (size_t i = 0; i < 8; ++i) {
          const int64_t line = static_cast<int64_t>(i) * n + first + c;
          if (!back) std::memcpy(&square[i], from + line, width);
          if (back && i < width) square[i] = words[static_cast<size_t>(c) + i];
        }
        transpose(square);
        for (size_t i = 0; i < 8; ++i) {
          const int64_t line = static_cast<int64_t>(i) * n + first + c;
          if (back) std::memcpy(to + line, &square[i], width);
          if (!back && i < width) words[static_cast<size_t>(c) + i] = square[i];
        }
      }
    };
    turn(false);
    auto* bytes = reinterpret_cast<uint8_t*>(words.data());
    pruner.prune(bytes, scales + first, columns, bytes);
    turn(true);
  }
}

}  // namespace

std::string_view prune_pattern_name(PrunePattern pattern) {
  return pattern == PrunePattern::k2of4 ? "2:4" : "4:8-paired";
}

PruneStats prune_codes(PrunePattern pattern, const CodeBlocks& b, uint8_t* out, Isa isa) {
  const bool pairs = pattern == PrunePattern::k4of8Paired;
  Pruner pruner(pairs, isa);
  if (b.n == 1) {
    pruner.prune(b.codes, b.scales, b.blocks, out);
  } else {
    for (int64_t i = 0; i < b.blocks; ++i) {
      prune_turned(b.codes + i * 8 * b.n, b.scales + i * b.n, b.n, out + i * 8 * b.n, pruner);
    }
  }
  PruneStats stats;
  stats.quads = static_cast<uint64_t>(b.blocks * b.n) * (pairs ? 2 : 4);
  for (int64_t i = 0; i < b.blocks * b.n; ++i) stats.bad_scales += !e4m3_is_block_scale(b.scales[i]);
  pruner.add_to(stats);
  return stats;
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

void prune_2_4(std::span<float> weights, Isa isa) {
  check(weights.size() % 4 == 0, "K a multiple of 4");
  const QuantizeOps* ops = quantize_ops(isa);
  const auto count = static_cast<int64_t>(weights.size());
  const int64_t done = ops == nullptr ? 0 : ops->prune_2_4(weights.data(), count);
  for (float* x = weights.data() + done; x != weights.data() + count; x += 4) {
    int32_t size[4];  // magnitudes sort like their bits
    for (int i = 0; i < 4; ++i) size[i] = std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF;
    for (int i = 0; i < 4; ++i) {
      int stronger = 0;
      for (int j = 0; j < 4; ++j) stronger += j < i ? size[j] >= size[i] : size[j] > size[i];
      if (stronger >= 2) x[i] = 0.0f;
    }
  }
}

}  // namespace twofour
