#include "kernels/staged_pack.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "formats/atom.h"
#include "formats/layouts/layout_ops.h"
#include "formats/layouts/layouts.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/device_memory.h"
#include "kernels/pack/device_pack.h"

namespace twofour::cuda {
namespace {

constexpr const char* kWhere = "staged_pack";
constexpr int kThreads = 256;
/// Groups that a block tallies: 32 bits hold their energy, at most 16 * 12^2 each.
constexpr int64_t kBlockGroups = 4096;

struct TallyArgs {
  const uint8_t* codes;  ///< [groups, 8]
  uint8_t* scales;       ///< [groups]
  int64_t groups;
  ScaleTally* tally;
  bool fold;
  uint8_t table[256];
};

/// Counts groups by their block scale, which is folded behind that.
__global__ void __launch_bounds__(kThreads) tally_kernel(const __grid_constant__ TallyArgs a) {
  __shared__ uint32_t groups[256], energy[256], kept[256], tied;
  const int thread = static_cast<int>(threadIdx.x);
  groups[thread] = energy[thread] = kept[thread] = 0;
  if (thread == 0) tied = 0;
  __syncthreads();

  // Count
  uint32_t ties = 0;
  const int64_t first = blockIdx.x * kBlockGroups, end = min(a.groups, first + kBlockGroups);
  for (int64_t i = first + thread; i < end; i += kThreads) {
    const uint64_t codes = *reinterpret_cast<const uint64_t*>(a.codes + 8 * i);
    const uint8_t scale = a.scales[i];
    uint32_t all = 0, largest = 0;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      uint32_t square[4];  // orders like the magnitudes
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int halves = e2m1_halves(static_cast<unsigned>(codes >> (16 * q + 4 * j)) & 7u);
        square[j] = static_cast<uint32_t>(halves * halves);
      }
      const uint32_t high0 = max(square[0], square[1]), low0 = min(square[0], square[1]);
      const uint32_t high1 = max(square[2], square[3]), low1 = min(square[2], square[3]);
      const uint32_t middle0 = min(high0, high1), middle1 = max(low0, low1);
      all += high0 + low0 + high1 + low1;
      largest += max(high0, high1) + max(middle0, middle1);
      ties += middle0 == middle1;
    }
    atomicAdd(&groups[scale], 1u);
    atomicAdd(&energy[scale], all);
    atomicAdd(&kept[scale], largest);
    if (a.fold) a.scales[i] = a.table[scale];
  }
  atomicAdd(&tied, ties);
  __syncthreads();

  // Add to the other blocks'
  const auto add = [](uint64_t* to, uint32_t value) {
    if (value != 0) atomicAdd(reinterpret_cast<unsigned long long*>(to), value);
  };
  add(a.tally->groups.data() + thread, groups[thread]);
  add(a.tally->energy.data() + thread, energy[thread]);
  add(a.tally->kept.data() + thread, kept[thread]);
  if (thread == 0) add(&a.tally->tied, tied);
}

/// At least `bytes` bytes in `memory`; false where they were there, else what was is lost.
template <class Memory>
bool reserve(Memory& memory, int64_t bytes) {
  if (static_cast<int64_t>(memory.bytes()) >= bytes) return false;
  memory = Memory();  // first the old, so that both never stand side by side
  memory = Memory(static_cast<size_t>(bytes));
  return true;
}

}  // namespace

struct StagedPacker::State {
  std::string layout;
  DeviceStream stream;
  struct Stage {
    PinnedMemory memory;
    DeviceEvent copied;
  } stages[kStages];
  int stage = 0;
  Shape shape{1, 0, 0};
  DeviceMemory dense;   ///< codes [N, K/2], then scales [N, K/16]
  DeviceMemory packed;  ///< tallies, then parts
  PinnedMemory result;  ///< the same
  struct Range {
    int64_t begin, bytes;
  };
  std::vector<Range> parts;  ///< in `packed`
  int64_t bytes = 0;         ///< of `packed`, of this matrix

  explicit State(const std::string& name) : layout(name) {}
  ~State() { cudaStreamSynchronize(stream.get()); }  // nobody copies from memory that is about to go

  uint8_t* codes() const { return dense.as<uint8_t>(); }
  uint8_t* scales() const { return dense.as<uint8_t>() + align_up(shape.n * shape.k / 2); }
};

StagedPacker::StagedPacker(const std::string& layout) : state_(std::make_unique<State>(layout)) {}
StagedPacker::~StagedPacker() = default;

void StagedPacker::begin(Shape shape) {
  State& s = *state_;
  s.shape = shape;
  reserve(s.dense, align_up(shape.n * shape.k / 2) + shape.n * shape.groups());
}

uint8_t* StagedPacker::stage(size_t bytes) {
  State& s = *state_;
  s.stages[s.stage].copied.record(s.stream);
  s.stage = (s.stage + 1) % kStages;
  State::Stage& next = s.stages[s.stage];
  next.copied.wait();
  reserve(next.memory, static_cast<int64_t>(bytes));
  return next.memory.data();
}

void StagedPacker::add(const DenseRows& rows, int64_t n0) {
  State& s = *state_;
  expect(rows.k == s.shape.k && n0 >= 0 && rows.n >= 0 && n0 + rows.n <= s.shape.n, kWhere,
         "rows inside the matrix", std::to_string(n0) + " + " + std::to_string(rows.n));
  if (rows.n == 0) return;
  const auto copy = [&](uint8_t* to, const uint8_t* from, int64_t pitch, int64_t width) {
    // Rows without gaps are one run, whose copy is faster.
    const bool run = pitch == width;
    const auto bytes = static_cast<size_t>(run ? rows.n * width : width);
    check_cuda(
        cudaMemcpy2DAsync(to + n0 * width, bytes, from, run ? bytes : static_cast<size_t>(pitch), bytes,
                          run ? 1 : static_cast<size_t>(rows.n), cudaMemcpyHostToDevice, s.stream.get()),
        kWhere);
  };
  copy(s.codes(), rows.codes, rows.codes_pitch, rows.k / 2);
  copy(s.scales(), rows.scales, rows.scales_pitch, rows.k / kGroup);
}

void StagedPacker::finish(std::span<const TalliedRows> rows, std::span<ScaleTally> tallies) {
  State& s = *state_;
  expect(rows.size() == tallies.size(), kWhere, "a tally for all rows", std::to_string(tallies.size()));
  const auto tally_bytes = static_cast<int64_t>(rows.size() * sizeof(ScaleTally));
  const DenseMatrices dense{s.codes(), s.scales(), 1, s.shape.n, s.shape.k};
  expect(with_layout(s.layout,
                     [&]<class L>() {
                       s.parts.clear();
                       s.bytes = align_up(tally_bytes);
                       for (int p = 0; p < L::part_count; ++p) {
                         s.parts.push_back({s.bytes, L::part(p, s.shape).bytes()});
                         s.bytes += align_up(s.parts.back().bytes);
                       }
                     }),
         kWhere, "a layout", s.layout);
  reserve(s.result, s.bytes);
  const bool fresh = reserve(s.packed, s.bytes);  // what lies between parts travels, too

  // Tally and fold
  auto* on_device = s.packed.as<ScaleTally>();
  check_cuda(
      cudaMemsetAsync(on_device, 0, static_cast<size_t>(fresh ? s.bytes : tally_bytes), s.stream.get()),
      kWhere);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t groups = rows[i].count * s.shape.groups();
    if (groups == 0) continue;
    TallyArgs args{s.codes() + rows[i].n0 * s.shape.k / 2,
                   s.scales() + rows[i].n0 * s.shape.groups(),
                   groups,
                   on_device + i,
                   rows[i].fold != nullptr,
                   {}};
    if (rows[i].fold != nullptr) std::copy(rows[i].fold->begin(), rows[i].fold->end(), args.table);
    const auto blocks = static_cast<unsigned>((groups + kBlockGroups - 1) / kBlockGroups);
    launch(kWhere, s.stream.get(), {dim3(blocks), kThreads}, tally_kernel, args);
  }

  // Pack
  uint8_t* parts[3] = {};
  for (size_t p = 0; p < s.parts.size(); ++p) parts[p] = s.packed.as<uint8_t>() + s.parts[p].begin;
  with_layout(s.layout, [&]<class L>() {
    if constexpr (std::is_same_v<L, GateUpInterleaved8>) {
      pack_g8(dense, s.shape.gated, parts[0], parts[1], s.stream.get());
    } else {
      constexpr bool planes = std::is_same_v<L, KMajorPlanes>;
      static_assert(planes || std::is_same_v<L, KMajorPacked>, "a layout that the device packs");
      prune_pack(dense, planes ? SparseLayout::planes : SparseLayout::packed, parts, s.stream.get());
    }
  });

  // Back
  check_cuda(cudaMemcpyAsync(s.result.data(), s.packed.as(), static_cast<size_t>(s.bytes),
                             cudaMemcpyDeviceToHost, s.stream.get()),
             kWhere);
  s.stream.synchronize();
  std::copy_n(reinterpret_cast<const ScaleTally*>(s.result.data()), tallies.size(), tallies.begin());
}

std::span<const uint8_t> StagedPacker::part(int p) const {
  const State::Range& range = state_->parts.at(static_cast<size_t>(p));
  return {state_->result.data() + range.begin, static_cast<size_t>(range.bytes)};
}

}  // namespace twofour::cuda
