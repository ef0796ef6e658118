#pragma once
#include "kernels/moe/sparse_cooperative.h"
#include "kernels/multiply/sparse_warp.cuh"

/// The kernel. A cluster of eight blocks shares the K of some gates and ups, and then the K of some columns
/// of the result. There is one block per multiprocessor. All run at once, since clusters wait for each other.
///   grid.x  blocks of a cluster
///   grid.y  clusters
/// Shared memory has a stage for every step, so a warp starts all copies of weights without waiting for room.
/// Memory is busy from one end of the layer to the other. A warp multiplies the weights that it copied. Warps
/// of a block synchronize to add up their sums. Blocks of a cluster exchange sums through shared memory.
/// Clusters exchange finished intermediates through the mailbox.
///   unit  64 gates and their ups of an expert: 64 k of the second product
///   job   a unit's part of K that one warp multiplies
///   tile  128 columns of the result
/// Tried without gain: the last tile in quarters, block scales converted once per warp, TMA.

namespace twofour::cuda {

inline constexpr int kClusterBlocks = 8, kCooperativeThreads = 512;
/// An intermediate step in the mailbox: 64 halves and their factor. Each word holds eight bytes of them. The
/// other eight bytes of a word become kSent when it is sent. All sixteen bytes are written and read at once.
/// Arbitrary contents of a workspace equal kSent once in 2^64 words. The block that reads a word clears it
/// for the next launch.
inline constexpr int kMailboxWords = 17;
inline constexpr uint2 kSent = {0x5EA7C0DEu, 0x9B1D3F62u};

__device__ __forceinline__ void send_word(uint4* to, const uint4& v) {
  asm volatile(
      "{ .reg .b128 v; .reg .b64 l, h; mov.b64 l, {%1, %2}; mov.b64 h, {%3, %4}; mov.b128 v, {l, h};\n"
      "st.relaxed.gpu.global.b128 [%0], v; }" ::"l"(to),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}
__device__ __forceinline__ uint4 read_word(const uint4* from) {
  uint4 v;
  asm volatile(
      "{ .reg .b128 v; .reg .b64 l, h; ld.relaxed.gpu.global.b128 v, [%4]; mov.b128 {l, h}, v;\n"
      "mov.b64 {%0, %1}, l; mov.b64 {%2, %3}, h; }"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from)
      : "memory");
  return v;
}

/// Waits until at most `pending` groups of this thread's copies are in progress, or at most three.
__device__ __forceinline__ void wait_copies_but(int pending) {
  asm volatile(
      "{ .reg .pred p; setp.ge.s32 p, %0, 3; @p cp.async.wait_group 3; setp.eq.s32 p, %0, 2;\n"
      "@p cp.async.wait_group 2; setp.eq.s32 p, %0, 1; @p cp.async.wait_group 1; setp.eq.s32 p, %0, 0;\n"
      "@p cp.async.wait_group 0; }" ::"r"(pending)
      : "memory");
}

/// The addresses from which a lane copies, as in LaneCursor: 16 columns of quad t of 16 k, and the metadata
/// and scales of group t (t = lane / 8).
struct CooperativeCursor {
  uint32_t comp, meta, scale;
  __device__ __forceinline__ CooperativeCursor(const CooperativeWeights& w, int column, int t)
      : comp(w.comp_quad[t] + column), meta(t * w.meta_group + column), scale(t * w.scale_group + column) {}

  /// Starts the copies of a step into a stage. `more` is added to the number of the first column.
  __device__ __forceinline__ void copy(const CooperativeWeights& w, int e, int step, int more, uint32_t stage,
                                       int lane) const {
    const uint32_t to = stage + static_cast<uint32_t>(lane / 8 * kWarpColumns + chunk_at(lane % 8, lane / 8));
    const uint64_t expert = static_cast<uint32_t>(e);
    const auto group = static_cast<uint32_t>(step * kStepGroups);
    const uint8_t* from = w.comp + expert * w.comp_expert + (comp + more + group * w.comp_group);
#pragma unroll
    for (int i = 0; i < 4; ++i, from += w.comp_group) copy_async16_once(to + i * 512, from);
    from = w.meta + expert * w.meta_expert + (meta + more + group * w.meta_group);
    copy_async16_once(to + 2048, from);
    copy_async16_once(to + 2560, from + w.meta_odd);
    copy_async16_once(to + 3072, w.scale + expert * w.scale_expert + (scale + more + group * w.scale_group));
    commit_copies();
  }
};

/// Stores the sums of 128 columns in the memory of a step that the warp has multiplied.
__device__ __forceinline__ void store_sums(const float (&sums)[8][1][4], int lane, uint8_t* stage) {
  const int t = lane % 4;
  float4 mine{};
#pragma unroll
  for (int j = 0; j < 8; j += 2)
    if (t == j / 2) mine = {sums[j][0][0], sums[j][0][2], sums[j + 1][0][0], sums[j + 1][0][2]};
  __syncwarp();
  const int column = lane / 4 * 16 + ((4 * t) ^ (lane >> 3 & 1) * 8);  // first_column(lane, 2 * t)
  *reinterpret_cast<float4*>(stage + column * 4) = mine;
}

/// Adds the sums of `count` warps, which are `stride` bytes apart. Each lane adds four columns.
__device__ __forceinline__ float4 add_up(const uint8_t* stage, int lane, int count, int stride) {
  float4 sum{};
#pragma unroll 4
  for (int i = 0; i < count; ++i)
    sum = sum4(sum, *reinterpret_cast<const float4*>(stage + i * stride + lane * 16));
  return sum;
}

__device__ __forceinline__ void multiply_step(const uint8_t* stage, int lane, const uint4 (&b)[2][1],
                                              float factor, float (*sums)[1][4]) {
  const float2 factors[1] = {{factor, factor}};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Fragment fragment;
    fragment.read_codes(stage, lane, half);
    fragment.convert_scales(stage, lane, half);
    multiply_half<1>(fragment, b, factors, sums + 4 * half);
  }
}

/// Loads like load_pair, but leaves the conversion to pair_of, because the conversion has to wait for the
/// numbers.
__device__ __forceinline__ uint2 load_bits(const void* x, Float type, int i) {
  uint2 bits{};
  if (type == Float::f32) {
    bits = *reinterpret_cast<const uint2*>(static_cast<const float*>(x) + i);
  } else {
    bits.x = *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(x) + i);
  }
  return bits;
}
__device__ __forceinline__ float2 pair_of(uint2 bits, Float type) { return load_pair(&bits, type, 0); }

/// Turns 64 adjacent numbers along k, two in each lane, into the lane's fragment for 8 equal rows. Returns
/// the factor of the products.
__device__ __forceinline__ float fragment_of(float2 x, int t, uint4 (&b)[2][1]) {
  const uint32_t largest =
      __reduce_max_sync(0xFFFFFFFFu, max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y))));
  const auto [scale, factor] = half_scale(largest);
  const uint32_t pair = half2_of(x.x * scale, x.y * scale);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    b[h][0].x = __shfl_sync(0xFFFFFFFFu, pair, 16 * h + t);
    b[h][0].y = __shfl_sync(0xFFFFFFFFu, pair, 16 * h + 4 + t);
    b[h][0].z = __shfl_sync(0xFFFFFFFFu, pair, 16 * h + 8 + t);
    b[h][0].w = __shfl_sync(0xFFFFFFFFu, pair, 16 * h + 12 + t);
  }
  return factor;
}

/// Does the same for numbers from the mailbox, and clears them there.
__device__ __forceinline__ float receive(uint4* mailbox, int lane, uint4 (&b)[2][1]) {
  uint4 word{};
  if (lane < kMailboxWords) {
    do {
      word = read_word(mailbox + lane);
    } while (word.z != kSent.x || word.w != kSent.y);
  }
  __syncwarp();
  const int t = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    b[h][0].x = __shfl_sync(0xFFFFFFFFu, word.x, 8 * h + t);
    b[h][0].y = __shfl_sync(0xFFFFFFFFu, word.y, 8 * h + t);
    b[h][0].z = __shfl_sync(0xFFFFFFFFu, word.x, 8 * h + 4 + t);
    b[h][0].w = __shfl_sync(0xFFFFFFFFu, word.y, 8 * h + 4 + t);
  }
  if (lane < kMailboxWords) send_word(mailbox + lane, uint4{});
  return __uint_as_float(__shfl_sync(0xFFFFFFFFu, word.x, 16));
}

/// The bytes of the sums of 128 columns.
inline constexpr int kItem = kWarpColumns * 4;
/// The bytes of the barriers and of each expert's factors in both products, which follow them.
inline constexpr int kCooperativeHead = 128 + 2 * 32 * 4;
/// The number of cycles between the starts of copies of four jobs, one for each scheduler, and of the next
/// four. If all jobs started at once, the first copies would arrive hardly before the last, and nothing would
/// be multiplied meanwhile. With this delay, copies still request more than twice the bandwidth of memory.
/// 200 and 400 take the same time, and 0 takes 0.3 us more.
inline constexpr int kTurn = 300;

__global__ void __launch_bounds__(kCooperativeThreads)
    cooperative_kernel(const __grid_constant__ CooperativeArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0);
  const int warps = static_cast<int>(blockDim.x / 32), rank = static_cast<int>(blockIdx.x);
  const int cluster = static_cast<int>(blockIdx.y), clusters = static_cast<int>(gridDim.y);
  const int t = lane % 4, g = lane / 4;

  // The barriers for the sums of the first and of the second product.
  const uint32_t base = shared_address(shared), up_barrier = base, down_barrier = base + 8;
  if (threadIdx.x == 0) {
    begin_barrier(up_barrier);
    begin_barrier(down_barrier);
  }
  arrive_at_cluster();
  wait_for_predecessor();
  // Load x first, since everything waits for it.
  const int topk = a.rows.rows;
  const int id = lane < topk ? a.rows.ids[lane] : 0;
  const int part = warp & ((1 << a.parts_log2) - 1), parts = 1 << a.parts_log2;
  const int part_step = part * kClusterBlocks + rank, stride = parts * kClusterBlocks;
  // A step of x for the warp. It is the next step of this job, or the first step of the next job.
  const auto load_x = [&](int step) {
    return load_bits(a.x, a.type, min(step, a.up_steps - 1) * kStepK + 2 * lane);
  };
  uint2 next = load_x(part_step);
  const CooperativeCursor up_cursor(a.up, lane % 4 * 16 + (lane % 8 < 4 ? 0 : a.intermediate), lane / 8);
  const CooperativeCursor down_cursor(a.down, lane % 8 * 16, lane / 8);

  const int own_tiles = (a.tiles - cluster - 1) / clusters + 1;
  const auto segment_of = [&](int unit) {
    return static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(unit)) * a.strip_multiplier >> 36);
  };
  int units = topk * a.strips, first_unit = a.first_unit[cluster], last_unit = a.first_unit[cluster + 1];
  // The next job of the warp. It is known before the ids if all experts are on this device.
  int unit = first_unit + (warp >> a.parts_log2), segment = segment_of(unit);

  // The experts on this device, one in each lane, in their order.
  int own_expert = lane < topk ? local_expert_of(a.rows, id) : -1;
  const uint32_t here = __ballot_sync(0xFFFFFFFFu, own_expert >= 0);
  const int segments = __popc(here);
  int row = lane;
  if (segments < topk) {
    row = lane < segments ? static_cast<int>(__fns(here, 0, lane + 1)) : 0;
    own_expert = __shfl_sync(0xFFFFFFFFu, own_expert, row);
  }
  // The factors of the products. One warp loads them before the weights; otherwise they would arrive last.
  float up_scale = 0, up_weight = 1, down_scale = 0, down_weight = 1;
  if (warp == warps - 1 && lane < segments) {
    up_scale = a.up.global_scale[own_expert], down_scale = a.down.global_scale[own_expert];
    if (a.up.row_weight) up_weight = a.up.row_weight[row];
    if (a.down.row_weight) down_weight = a.down.row_weight[row];
  }
  float* scales = reinterpret_cast<float*>(shared + 128);  // factors of the first product, then of the second
  // The units of a cluster in the first product, and the steps of a block in the second.
  if (segments < topk) {
    units = segments * a.strips;
    first_unit = first_unit * segments / topk, last_unit = last_unit * segments / topk;
    unit = first_unit + (warp >> a.parts_log2), segment = segment_of(unit);
  }
  const int own_units = last_unit - first_unit;
  const int first_step = units * rank / kClusterBlocks;
  const int own_steps = units * (rank + 1) / kClusterBlocks - first_step;

  // Start the copies. Each step of the block has a stage: first the steps of the first product, by job, and
  // then the steps of the second.
  uint8_t* stages = shared + a.stages;
  uint8_t* down_stages = stages + (own_units << a.parts_log2) * a.job_steps * kStageBytes;
  int pending = 0;
  const auto begun = clock();
#pragma unroll 1
  for (int job = warp; job < own_units << a.parts_log2; job += warps) {
    const int e = __shfl_sync(0xFFFFFFFFu, own_expert, segment);
    uint32_t to = shared_address(stages + job * a.job_steps * kStageBytes);
    while (static_cast<int>(clock() - begun) < job / 4 * kTurn) {
    }
#pragma unroll 1
    for (int step = part_step; step < a.up_steps; step += stride, to += kStageBytes, ++pending)
      up_cursor.copy(a.up, e, step, (unit - segment * a.strips) * 64, to, lane);
    unit += warps >> a.parts_log2, segment = segment_of(unit);
  }
  // Splits a job of the second product into a tile and a step. All steps of a tile come before the steps of
  // the next tile.
  const auto split = [&](int job, int& tile, int& step) {
    for (tile = 0; job >= own_steps; ++tile) job -= own_steps;
    tile = cluster + tile * clusters, step = first_step + job;
  };
#pragma unroll 1
  for (int job = warp; job < own_steps * own_tiles; job += warps, ++pending) {
    int tile, step;
    split(job, tile, step);
    segment = segment_of(step);
    down_cursor.copy(a.down, __shfl_sync(0xFFFFFFFFu, own_expert, segment), step - segment * a.strips,
                     tile * kWarpColumns, shared_address(down_stages + job * kStageBytes), lane);
  }

  const int finished_units = (own_units - rank + kClusterBlocks - 1) / kClusterBlocks;
  if (threadIdx.x == 0) {
    if (finished_units > 0) expect_bytes(up_barrier, finished_units * kClusterBlocks * kItem);
    expect_bytes(down_barrier, own_tiles * kItem);
  }
  uint8_t* up_received = shared + kCooperativeHead;                // [finished_units][rank][128]
  uint8_t* down_received = shared + a.stages - own_tiles * kItem;  // [own_tiles][rank][16]
  const auto mailbox_of_tile = static_cast<uint32_t>(topk * a.strips * kMailboxWords);
  const int up_count = part_step < a.up_steps ? (a.up_steps - 1 - part_step) / stride + 1 : 0;

  // Multiply
  const int up_bytes = a.job_steps * kStageBytes;
#pragma unroll 1
  for (int job = warp; job < own_units << a.parts_log2; job += warps) {
    uint8_t* stage = stages + job * up_bytes;
    float sums[8][1][4] = {};
#pragma unroll 1
    for (int s = 0; s < up_count; ++s) {
      uint4 b[2][1];
      wait_copies_but(--pending);
      __syncwarp();
      const float factor = fragment_of(pair_of(next, a.type), t, b);
      next = load_x(s + 1 < up_count ? part_step + (s + 1) * stride : part_step);
      multiply_step(stage + s * kStageBytes, lane, b, factor, sums);
    }
    store_sums(sums, lane, stage);
  }
  if (warp == warps - 1) scales[lane] = up_scale * up_weight, scales[32 + lane] = down_scale * down_weight;
  wait_for_cluster();
  __syncthreads();

  // Add the sums, in the block that finishes the unit.
#pragma unroll 1
  for (int i = warp; i < own_units; i += warps) {
    const auto to = static_cast<uint32_t>(i % kClusterBlocks);
    uint8_t* at = up_received + (i / kClusterBlocks * kClusterBlocks + rank) * kItem + lane * 16;
    store_cluster(cluster_address(shared_address(at), to),
                  add_up(stages + (i << a.parts_log2) * up_bytes, lane, parts, up_bytes),
                  cluster_address(up_barrier, to));
  }

  // Most weights have arrived, so copies that the next kernel starts ahead hardly delay the remaining copies.
  release_successor();

  // Activation
#pragma unroll 1
  for (int i = warps - 1 - warp; i < finished_units; i += warps) {
    const int unit = first_unit + i * kClusterBlocks + rank;
    const float scale = scales[segment_of(unit)];
    wait_barrier(up_barrier, 0);
    float4 sum = add_up(up_received + i * kClusterBlocks * kItem, lane, kClusterBlocks, kItem);
    sum = {sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
    float4 v;  // in lanes 0 to 15, gate and up
    v.x = swiglu(sum.x, __shfl_down_sync(0xFFFFFFFFu, sum.x, 16), a.limit);
    v.y = swiglu(sum.y, __shfl_down_sync(0xFFFFFFFFu, sum.y, 16), a.limit);
    v.z = swiglu(sum.z, __shfl_down_sync(0xFFFFFFFFu, sum.z, 16), a.limit);
    v.w = swiglu(sum.w, __shfl_down_sync(0xFFFFFFFFu, sum.w, 16), a.limit);
    uint32_t largest = __float_as_uint(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
    if (lane >= 16) largest = 0;
    const auto [to_half, factor] = half_scale(__reduce_max_sync(0xFFFFFFFFu, largest));
    const uint32_t p0 = half2_of(v.x * to_half, v.y * to_half);
    const uint32_t p1 = half2_of(v.z * to_half, v.w * to_half);
    // Word 4c + t holds the pairs of k 8c + t and 8c + t + 4, which lane t of a fragment of x needs together.
    const int low = lane % 16 / 4 * 4 + t / 2;
    const uint32_t a0 = __shfl_sync(0xFFFFFFFFu, p0, low), a1 = __shfl_sync(0xFFFFFFFFu, p1, low);
    const uint32_t b0 = __shfl_sync(0xFFFFFFFFu, p0, low + 2), b1 = __shfl_sync(0xFFFFFFFFu, p1, low + 2);
    uint4 word = {t % 2 ? a1 : a0, t % 2 ? b1 : b0, kSent.x, kSent.y};
    if (lane == 16) word.x = __float_as_uint(factor);
    uint4* to = a.mailbox + unit * kMailboxWords + lane;
    if (lane < kMailboxWords) {
#pragma unroll 4
      for (int tile = 0; tile < a.tiles; ++tile, to += mailbox_of_tile) send_word(to, word);
    }
  }

  // Multiply. Weights are decoded before the intermediates arrive.
#pragma unroll 1
  for (int job = warp; job < own_steps * own_tiles; job += warps) {
    uint8_t* stage = down_stages + job * kStageBytes;
    wait_copies_but(--pending);
    __syncwarp();
    int tile, step;
    split(job, tile, step);
    Fragment f[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      f[half].read_codes(stage, lane, half), f[half].convert_scales(stage, lane, half);
    const Quarter quarters[4] = {{f[0], 0}, {f[0], 1}, {f[1], 0}, {f[1], 1}};
    const float scale = scales[32 + segment_of(step)];
    uint4 b[2][1];
    const float factor =
        scale * receive(a.mailbox + (tile * mailbox_of_tile + step * kMailboxWords), lane, b);
    const float2 factors[1] = {{factor, factor}};
    float sums[8][1][4] = {};
#pragma unroll
    for (int q = 0; q < 4; ++q) multiply_quarter<1>(quarters[q], b, factors, sums + 2 * q);
    store_sums(sums, lane, stage);
  }
  __syncthreads();

  // Add the sums, and finish 16 columns of a tile.
  if (warp >= own_tiles) return;
#pragma unroll 1
  for (int tile = warp; tile < own_tiles; tile += warps) {
    const auto to = static_cast<uint32_t>(g);
    uint8_t* at = down_received + tile * kItem + rank * (kItem / kClusterBlocks) + t * 16;
    store_cluster(cluster_address(shared_address(at), to),
                  add_up(down_stages + tile * own_steps * kStageBytes, lane, own_steps, kStageBytes),
                  cluster_address(down_barrier, to));
  }
  wait_barrier(down_barrier, 0);
#pragma unroll 1
  for (int tile = warp; tile < own_tiles; tile += warps) {
    float4 sum = *reinterpret_cast<const float4*>(down_received + tile * kItem + lane * 16);
#pragma unroll
    for (int d = 4; d <= 16; d *= 2) {
      sum = sum4(sum, {__shfl_xor_sync(0xFFFFFFFFu, sum.x, d), __shfl_xor_sync(0xFFFFFFFFu, sum.y, d),
                       __shfl_xor_sync(0xFFFFFFFFu, sum.z, d), __shfl_xor_sync(0xFFFFFFFFu, sum.w, d)});
    }
    // All lanes have the same sums. Lane (g, t) stores column 4t + g.
    const float mine = g == 0 ? sum.x : g == 1 ? sum.y : g == 2 ? sum.z : sum.w;
    const int column = (cluster + tile * clusters) * kWarpColumns + rank * 16 + 4 * t + g;
    if (g < 4) store_float(a.out, a.type, column, mine);
  }
}

}  // namespace twofour::cuda
