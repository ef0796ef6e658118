#include "formats/layouts/layouts.h"
#include "kernels/device/launch.cuh"
#include "kernels/pack/device_pack.h"

namespace twofour::cuda {
namespace {

constexpr const char* kWhere = "prune_pack";
constexpr int kThreads = 256;
/// The size of a block, 128 rows by 256 k. A thread prunes 4 rows by 32 k, which become words of four
/// adjacent rows.
constexpr int kRows = 128, kK = 256, kGroups = kK / kGroup;

struct PackArgs {
  const uint8_t *codes, *scales;
  uint8_t* parts[3];
  int32_t e, n, k;
  bool wide_in, wide_out;
};

/// Prunes both quads of eight codes at once, in 16-bit lanes. Kept codes are in bits 0-7 of a lane, and their
/// places in bits 8-11.
__device__ __forceinline__ uint32_t select_two(uint32_t codes) {
  uint32_t key[4];  // sorts by magnitude, then by the lower place; the sign has no effect
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t nibble = codes >> 4 * i;
    key[i] = (nibble << 3 & 0x00380038u) | (nibble >> 3 & 0x00010001u) | (3 - i) * 0x00020002u;
  }
  const uint32_t a = __vmaxu2(key[0], key[1]), b = __vminu2(key[0], key[1]);
  const uint32_t c = __vmaxu2(key[2], key[3]), d = __vminu2(key[2], key[3]);
  const uint32_t first = __vmaxu2(a, c), second = __vmaxu2(__vminu2(a, c), __vmaxu2(b, d));
  // Put the place in the bits above the code, so that keys sort by place.
  const auto turn = [](uint32_t k) {
    return (k >> 3 & 0x00070007u) | (k << 3 & 0x00080008u) | (~k << 3 & 0x00300030u);
  };
  const uint32_t x = turn(first), y = turn(second), low = __vminu2(x, y), high = __vmaxu2(x, y);
  return (low & 0x000F000Fu) | (high << 4 & 0x00F000F0u) | (low << 4 & 0x03000300u) |
         (high << 6 & 0x0C000C00u);
}

/// The index of a word in 32 rows of words in shared memory. The source chunk of 32 k spreads words over
/// banks.
__device__ __forceinline__ int setting_at(int row, int chunk, int word) {
  return row * 32 + (word ^ (chunk * 4));
}

template <class Layout>
__global__ void __launch_bounds__(kThreads) prune_pack_kernel(const __grid_constant__ PackArgs a) {
  __shared__ __align__(16) uint32_t comp[kGroups * 4 * 32], meta[kGroups * 2 * 32], scale[kGroups * 32];
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % 8, word = thread / 8;
  const int k0 = static_cast<int>(blockIdx.x) * kK, n0 = static_cast<int>(blockIdx.y) * kRows;
  const int64_t e = blockIdx.z;

  // Load
  uint4 codes[4];
  const int64_t pitch = a.k / 2, at = k0 / 2 + chunk * 16;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int n = n0 + word * 4 + r;
    const uint8_t* from = a.codes + (e * a.n + n) * pitch + at;
    codes[r] = {0, 0, 0, 0};
    if (n >= a.n || at >= pitch) continue;
    if (a.wide_in) {
      codes[r] = __ldcs(reinterpret_cast<const uint4*>(from));
    } else {
      const auto byte = [&](int i) { return at + i < pitch ? uint32_t{from[i]} << 8 * (i % 4) : 0u; };
      codes[r] = {byte(0) | byte(1) | byte(2) | byte(3), byte(4) | byte(5) | byte(6) | byte(7),
                  byte(8) | byte(9) | byte(10) | byte(11), byte(12) | byte(13) | byte(14) | byte(15)};
    }
  }
  const int scale_row = n0 + thread / 2, group0 = k0 / kGroup + thread % 2 * 8, groups = a.k / kGroup;
  auto* scale_bytes = reinterpret_cast<uint8_t*>(scale);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = thread % 2 * 8 + i;
    if (scale_row < a.n && group0 + i < groups) {
      scale_bytes[setting_at(row, row / 2, thread / 8) * 4 + thread / 2 % 4] =
          a.scales[(e * a.n + scale_row) * groups + group0 + i];
    }
  }

  // Select
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // 8 k
    uint32_t kept[4];
#pragma unroll
    for (int r = 0; r < 4; ++r)
      kept[r] = select_two(i == 0 ? codes[r].x : i == 1 ? codes[r].y : i == 2 ? codes[r].z : codes[r].w);
    // Put bytes of four rows next to each other.
    const uint32_t first = __byte_perm(kept[0], kept[1], 0x6240),
                   second = __byte_perm(kept[2], kept[3], 0x6240);
    comp[setting_at(chunk * 8 + i * 2, chunk, word)] = __byte_perm(first, second, 0x5410);
    comp[setting_at(chunk * 8 + i * 2 + 1, chunk, word)] = __byte_perm(first, second, 0x7632);
    const uint32_t even =
        __byte_perm(__byte_perm(kept[0], kept[1], 0x0051), __byte_perm(kept[2], kept[3], 0x0051), 0x5410);
    const uint32_t odd =
        __byte_perm(__byte_perm(kept[0], kept[1], 0x0073), __byte_perm(kept[2], kept[3], 0x0073), 0x5410);
    meta[setting_at(chunk * 4 + i, chunk, word)] = even | odd << 4;
  }
  __syncthreads();

  // Store
  const Shape shape{a.e, a.n, a.k};
  const auto store = [&](const uint32_t* from, int group, int byte, int row_chunk, int row, int piece) {
    const int n = n0 + piece * 16;
    if (group >= groups || n >= a.n) return;
    const uint32_t* words = from + setting_at(row, row_chunk, piece * 4);
    for (int copy = 0; copy < Layout::copies(byte); ++copy) {
      const Stored s = Layout::place(shape, {e, n, group, byte}, copy);
      const Part part = Layout::part(s.part, shape);
      uint8_t* to = a.parts[s.part] + (s.at.e * part.rows + s.at.row) * part.cols + s.at.col;
      if (a.wide_out) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(words);
      } else {
        for (int i = 0; i < min(16, a.n - n); ++i) to[i] = reinterpret_cast<const uint8_t*>(words)[i];
      }
    }
  };
  const int g0 = k0 / kGroup, piece = thread % 8;
#pragma unroll
  for (int row = thread / 8; row < kGroups * 4; row += kThreads / 8)
    store(comp, g0 + row / 4, row % 4, row / 8, row, piece);
  store(meta, g0 + thread / 16, 4 + thread / 8 % 2, thread / 32, thread / 8, piece);
  if (thread < kGroups * 8) store(scale, g0 + thread / 8, 6, thread / 16, thread / 8, piece);
}

}  // namespace

void prune_pack(const DenseMatrices& d, SparseLayout layout, uint8_t* const (&parts)[3], Stream stream) {
  expect(d.e >= 0 && d.n >= 0 && d.k >= 0 && d.k % kGroup == 0 && d.e < 65536 && d.n < (1 << 22) &&
             d.k < (1 << 24),
         kWhere, "K a multiple of 16", std::to_string(d.n) + " x " + std::to_string(d.k));
  if (d.e == 0 || d.n == 0 || d.k == 0) return;
  const int count = layout == SparseLayout::planes ? 3 : 1;
  uintptr_t out_bits = 0;
  for (int p = 0; p < count; ++p) {
    expect(parts[p] != nullptr, kWhere, "a pointer to every part", "nullptr");
    out_bits |= reinterpret_cast<uintptr_t>(parts[p]);
  }
  const PackArgs a{d.codes,
                   d.scales,
                   {parts[0], parts[1], parts[2]},
                   static_cast<int32_t>(d.e),
                   static_cast<int32_t>(d.n),
                   static_cast<int32_t>(d.k),
                   d.k % 32 == 0 && reinterpret_cast<uintptr_t>(d.codes) % 16 == 0,
                   d.n % 16 == 0 && out_bits % 16 == 0};
  const Launch how{dim3(static_cast<unsigned>((d.k + kK - 1) / kK),
                        static_cast<unsigned>((d.n + kRows - 1) / kRows), static_cast<unsigned>(d.e)),
                   kThreads};
  launch(kWhere, stream, how,
         layout == SparseLayout::planes ? prune_pack_kernel<KMajorPlanes> : prune_pack_kernel<KMajorPacked>,
         a);
}

}  // namespace twofour::cuda
