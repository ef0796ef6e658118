#include "kernels/pack/prune_pack.h"

#include <memory>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/layouts/layouts.h"
#include "kernels/pack/prune_pack_driver.h"

namespace twofour {
namespace {

// 128 rows give two whole lines at a time for every output row. 512 groups hold a K of 8192 in one piece,
// because reading pieces of rows is slower. The scratch memory is 400 KiB in total, which fits an L2 cache of
// 512 KiB.
constexpr int64_t kBlockRows = 128;
constexpr int64_t kChunkGroups = 512;
// The distance by which codes are prefetched ahead of the selection. Half and four times this distance are
// measurably slower.
constexpr int64_t kPrefetchBytes = 2048;
static_assert(kChunkGroups <= kMaxRunGroups);

// Pads a row to an odd number of cache lines, so that the 64 rows of a tile are in different sets of the
// cache.
constexpr int64_t padded_pitch(int64_t bytes) { return ((bytes + kSelectSlack) / 64 | 1) * 64; }
constexpr int64_t kCompPitch = padded_pitch(kChunkGroups * 4);
constexpr int64_t kMetaPitch = padded_pitch(kChunkGroups * 2);

/// Memory for selected rows before they are transposed.
struct Scratch {
  alignas(64) uint8_t comp[kBlockRows * kCompPitch];
  alignas(64) uint8_t meta[kBlockRows * kMetaPitch];
};
static_assert(sizeof(Scratch) <= 512 << 10);

Scratch& thread_scratch() {
  thread_local const std::unique_ptr<Scratch> scratch = std::make_unique_for_overwrite<Scratch>();
  return *scratch;
}

int64_t misalignment(const uint8_t* p) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) % 64); }

bool all_aligned(const PackSweep& sweep, int64_t offset) {
  int64_t bits = 0;
  for (const uint8_t* row : sweep.rows) bits |= misalignment(row + offset);
  return bits == 0;
}

}  // namespace

PruneStats& PruneStats::operator+=(const PruneStats& other) {
  quads += other.quads;
  tied += other.tied;
  bad_scales += other.bad_scales;
  energy += other.energy;
  kept_energy += other.kept_energy;
  return *this;
}

void check_prune_pack(const DenseRows& rows, Shape shape, int64_t n0, size_t given_parts, int layout_parts) {
  check(shape.e == 1, "one expert");
  check(shape.k == rows.k && rows.k >= 0 && rows.k % kGroup == 0,
        "the same K on both sides, a multiple of 16");
  check(rows.n >= 0 && n0 >= 0 && rows.n <= shape.n && n0 <= shape.n - rows.n,
        "rows [n0, n0 + n) inside the expert");
  check(rows.codes_pitch >= rows.k / 2 && rows.scales_pitch >= rows.k / kGroup,
        "pitches no shorter than a row");
  check(given_parts == static_cast<size_t>(layout_parts), "a pointer for every part of the layout");
}

SparseGroup prune_counted(const DenseGroup& dense, PruneStats& stats) {
  const SparseGroup sparse = prune(dense);
  const bool good = e4m3_is_block_scale(dense.scale);
  const unsigned __int128 units = good ? e4m3_units(dense.scale) : 0;
  const auto add_squares = [&](unsigned __int128& energy, uint8_t codes) {
    for (const int shift : {0, 4}) {
      const auto halves = static_cast<unsigned>(e2m1_halves((codes >> shift) & 7u));
      energy += units * units * (halves * halves);
    }
  };
  for (const uint8_t codes : dense.codes) add_squares(stats.energy, codes);
  for (const uint8_t codes : sparse.comp) add_squares(stats.kept_energy, codes);
  for (int q = 0; q < 4; ++q) {
    stats.tied += is_tied_2_4(dense.codes[2 * q] | (unsigned{dense.codes[2 * q + 1]} << 8));
  }
  stats.quads += 4;
  stats.bad_scales += !good;
  return sparse;
}

std::vector<KChunk> k_chunks(int64_t groups) {
  // Use chunks of nearly equal size, since a short last chunk would have short tiles. Sizes are multiples of
  // 16 groups, which the widest selection processes at once.
  const int64_t count = (groups + kChunkGroups - 1) / kChunkGroups;
  std::vector<KChunk> chunks;
  for (int64_t g0 = 0; g0 < groups;) {
    const int64_t left = count - static_cast<int64_t>(chunks.size());
    const int64_t size = std::min(groups - g0, ((groups - g0 + left - 1) / left + 15) / 16 * 16);
    chunks.push_back({g0, size});
    g0 += size;
  }
  return chunks;
}

PruneStats pack_chunk(const DenseRows& rows, KChunk chunk, std::span<const PackSweep> sweeps,
                      const PrunePackOps& ops, Stores stores) {
  check(chunk.groups <= kChunkGroups, "a chunk that fits the scratch");
  Scratch& scratch = thread_scratch();
  PruneStats stats;
  stats.quads = static_cast<uint64_t>(rows.n * chunk.groups * 4);

  const int64_t rows_ahead = (kPrefetchBytes + chunk.groups * 8 - 1) / (chunk.groups * 8);

  // A short first block aligns the destination to a cache line. Later blocks then stay aligned.
  const int64_t head = (64 - misalignment(sweeps.front().rows.front())) % 64;
  for (int64_t n = 0, size = 0; n < rows.n; n += size) {
    size = std::min(n == 0 && head != 0 ? head : kBlockRows, rows.n - n);
    const uint8_t* scales = rows.scales + n * rows.scales_pitch + chunk.g0;

    // Select
    for (int64_t r = 0; r < size; ++r) {
      const uint8_t* codes = rows.codes + chunk.g0 * 8;
      const int64_t ahead = std::min(n + r + rows_ahead, rows.n - 1);
      const RunTally tally = ops.select(codes + (n + r) * rows.codes_pitch, scales + r * rows.scales_pitch,
                                        chunk.groups, codes + ahead * rows.codes_pitch,
                                        scratch.comp + r * kCompPitch, scratch.meta + r * kMetaPitch);
      stats.tied += tally.tied;
      stats.bad_scales += tally.bad_scales;
      stats.energy += tally.energy;
      stats.kept_energy += tally.kept_energy;
    }

    // Transpose
    for (const PackSweep& sweep : sweeps) {
      const uint8_t* src = sweep.run == 0 ? scratch.comp : sweep.run == 1 ? scratch.meta : scales;
      const int64_t pitch = sweep.run == 0 ? kCompPitch : sweep.run == 1 ? kMetaPitch : rows.scales_pitch;
      ops.transpose(src, pitch, size, static_cast<int64_t>(sweep.rows.size()), sweep.rows.data(), n,
                    stores == Stores::streaming && all_aligned(sweep, n));
    }
  }
  return stats;
}

// This function is never called. It takes addresses, which instantiates both functions for every 2:4 layout
// of the list.
std::vector<PackFunctions> prune_pack_functions() {
  std::vector<PackFunctions> functions;
  for_each_layout([&]<class Layout>() {
    if constexpr (std::is_same_v<typename Layout::Atom, SparseGroup>) {
      functions.push_back({&prune_pack<Layout>, &prune_pack_reference<Layout>});
    }
  });
  return functions;
}

}  // namespace twofour
