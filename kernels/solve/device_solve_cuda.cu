#include <array>
#include <cstring>

#include "kernels/device/check.h"
#include "kernels/device/launch.cuh"
#include "kernels/solve/device_products.cuh"
#include "kernels/solve/device_solve.h"
#include "kernels/solve/one_row.cuh"
#include "kernels/solve/solve_blocks.h"
#include "kernels/solve/solve_plan.h"

// The tiles of solve_tile.h, with one block of threads for each. Each thread of the first warp has one row,
// like a lane of the CPU's vectors. All warps share the products with the rest of a matrix. This file is
// compiled without fused products (-fmad=false), so the bits equal the CPU's.

namespace twofour::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
static_assert(kSolveRows == 32, "a row a thread of a warp");

/// The tiles of a launch. In each array, the tiles follow one another.
struct Tiles {
  SolvePlan plan;  ///< pointers of the device; `step` and `inverse` are null
  float step[kScaleCodes], inverse[kScaleCodes];
  SolveMethod method;
  bool is_masked, is_given;
  int sweeps;
  int64_t rows;
  const float* weights;  ///< [rows, k]
  float *values, *gradient, *target;
  int32_t *scales, *masks;
  const float* given;  ///< [rows, k / 16] fixed scales
  float* steps;        ///< the same for the lanes of tiles
  uint8_t* codes;      ///< [rows, k] codes, packed
  uint8_t* stored;     ///< [rows, k / block] block scales
  int bits;            ///< bits of a code
  uint8_t zero_scale;
};

/// For columns `from` and later, computes `to` [k, 32] -= errors [16, 32] times rows [first, first + 16) of a
/// matrix.
__device__ void subtract_columns(const float* matrix, int64_t k, int64_t first, int64_t from,
                                 const float* errors, float* to) {
  constexpr int kColumns = 8;  // columns of a warp, which loads all numbers before it uses one
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float e[kSolveBlock];
#pragma unroll
  for (int i = 0; i < kSolveBlock; ++i) e[i] = errors[i * kSolveRows + lane];
  for (int64_t c = from + kColumns * warp; c < k; c += kColumns * kWarps) {
    float sums[kColumns];
    float4 rows[kSolveBlock][kColumns / 4];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sums[j] = to[(c + j) * kSolveRows + lane];
#pragma unroll
    for (int i = 0; i < kSolveBlock; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns / 4; ++j)
        rows[i][j] = __ldg(reinterpret_cast<const float4*>(matrix + (first + i) * k + c) + j);
    }
#pragma unroll
    for (int i = 0; i < kSolveBlock; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; j += 4) {
        const float4 row = rows[i][j / 4];
        sums[j] = sums[j] - e[i] * row.x;
        sums[j + 1] = sums[j + 1] - e[i] * row.y;
        sums[j + 2] = sums[j + 2] - e[i] * row.z;
        sums[j + 3] = sums[j + 3] - e[i] * row.w;
      }
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) to[(c + j) * kSolveRows + lane] = sums[j];
  }
}

/// Does subtract_columns with all threads, which wait before and after. Does nothing if all errors are 0.
__device__ void subtract_block(const float* matrix, int64_t k, int64_t first, int64_t from,
                               const float* errors, float* to) {
  __syncthreads();
  bool any = false;
  for (int i = threadIdx.x; i < kSolveBlock * kSolveRows; i += kThreads) any = any || errors[i] != 0;
  if (__syncthreads_or(any)) subtract_columns(matrix, k, first, from, errors, to);
  __syncthreads();
}

/// Does subtract_block for the errors of a block of columns.
template <class Pattern>
__device__ void subtract_errors(const float* matrix, int64_t k, int64_t first, int64_t from,
                                const float* errors, float* to) {
#pragma unroll
  for (int i = 0; i < Pattern::kBlock; i += kSolveBlock)
    subtract_block(matrix, k, first + i, from, errors + i * kSolveRows, to);
}

/// Transposes rows [first, first + 32) of `from` [rows, k] to `to` [k, 32], with `missing` after the last
/// row.
__device__ void load_columns(const float* from, int64_t rows, int64_t first, int64_t k, float* to,
                             float missing = 0) {
  __shared__ float part[32][33];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t c = 0; c < k; c += 32) {
    for (int r = warp; r < 32; r += kWarps)
      part[r][lane] = first + r < rows && c + lane < k ? from[(first + r) * k + c + lane] : missing;
    __syncthreads();
    for (int i = warp; i < 32 && c + i < k; i += kWarps) to[(c + i) * kSolveRows + lane] = part[lane][i];
    __syncthreads();
  }
}

template <class Pattern>
__device__ void start_rows(const Tiles& p, const SolvePlan& plan, const SolveTile& tile) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (p.method == SolveMethod::diagonal) {
    for (int64_t first = warp * Pattern::kBlock; first < plan.k; first += kWarps * Pattern::kBlock)
      round_block<Pattern, OneRow>(plan, tile, first, lane, p.is_masked, true);
    __syncthreads();
    return;
  }
  for (int64_t first = 0; first < plan.k; first += Pattern::kBlock) {
    if (warp == 0) joint_block<Pattern, OneRow>(plan, tile, first, lane);
    subtract_errors<Pattern>(plan.factor, plan.k, first, first + Pattern::kBlock, tile.errors, tile.values);
  }
}

/// Writes (W - Q) Hd to the gradient. In each thread of the first warp, returns the loss of its row.
__device__ float start_descent(const SolvePlan& plan, const SolveTile& tile, const float* target) {
  const int64_t k = plan.k;
  for (int64_t i = threadIdx.x; i < k * kSolveRows; i += kThreads) tile.gradient[i] = 0;
  for (int64_t b = 0; b < k; b += kSolveBlock) {
    for (int i = threadIdx.x; i < kSolveBlock * kSolveRows; i += kThreads)
      tile.errors[i] = tile.values[b * kSolveRows + i] - target[b * kSolveRows + i];
    subtract_block(plan.matrix, k, b, 0, tile.errors, tile.gradient);
  }
  float sum = 0;
  if (threadIdx.x < kSolveRows) {
    for (int64_t i = threadIdx.x; i < k * kSolveRows; i += kSolveRows)
      sum = sum + (target[i] - tile.values[i]) * tile.gradient[i];
  }
  return sum;
}

template <class Pattern>
__device__ void descend(const Tiles& p, const SolvePlan& plan, const SolveTile& tile, const float* target,
                        bool is_row) {
  const int row = threadIdx.x;
  float loss = start_descent(plan, tile, target);
  if (row < kSolveRows) tile.moves[row] = is_row ? -1 : 0;
  for (int sweep = 0; sweep < p.sweeps; ++sweep) {
    if (row < kSolveRows) tile.gains[row] = 0;
    for (int64_t first = 0; first < plan.k; first += Pattern::kBlock) {
      if (row < kSolveRows) sweep_block<Pattern, OneRow>(plan, tile, first, row);
      subtract_errors<Pattern>(plan.matrix, plan.k, first, 0, tile.errors, tile.gradient);
    }
    bool goes_on = false;
    if (row < kSolveRows) {
      if (tile.gains[row] <= plan.min_gain * loss) tile.moves[row] = 0;
      loss = loss - tile.gains[row];
      goes_on = tile.moves[row] != 0;
    }
    if (!__syncthreads_or(goes_on)) return;
  }
}

/// Packs the codes of each block, and stores them with its scale. Zero codes are 0.
template <class Pattern>
__device__ void store_rows(const Tiles& p, const SolvePlan& plan, const SolveTile& tile, int64_t first) {
  constexpr int kBlock = Pattern::kBlock;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (first + lane >= p.rows) return;
  const int64_t blocks = plan.k / kBlock, bytes = kBlock * p.bits / 8;
  for (int64_t b = warp; b < blocks; b += kWarps) {
    const int scale = plan.is_fixed ? 0 : tile.scales[b * kSolveRows + lane];
    const float inverse = plan.is_fixed ? 1.0f / tile.steps[b * kSolveRows + lane] : plan.inverse[scale];
    const int64_t place = (first + lane) * blocks + b;
    uint8_t* to = p.codes + place * bytes;
    unsigned word = 0, any = 0;
    int held = 0;
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      int32_t code;
      const float unit =
          nearest_unit<OneRow>(plan, tile.values[(b * kBlock + i) * kSolveRows + lane] * inverse, &code);
      unsigned own = static_cast<unsigned>(code);
      if (own != 0 && unit < 0) own |= 1u << (p.bits - 1);
      any |= own;
      word |= own << held;
      for (held += p.bits; held >= 8; held -= 8, word >>= 8) *to++ = static_cast<uint8_t>(word);
    }
    if (!plan.is_fixed) p.stored[place] = any != 0 ? static_cast<uint8_t>(scale) : p.zero_scale;
  }
}

template <class Pattern>
__global__ void __launch_bounds__(kThreads) solve_kernel(const __grid_constant__ Tiles p) {
  __shared__ float step[kScaleCodes], inverse[kScaleCodes], errors[Pattern::kBlock * kSolveRows],
      gains[kSolveRows];
  __shared__ int32_t moves[kSolveRows];
  for (int i = threadIdx.x; i < kScaleCodes; i += kThreads) {
    step[i] = p.step[i];
    inverse[i] = p.inverse[i];
  }
  SolvePlan plan = p.plan;
  plan.step = step;
  plan.inverse = inverse;
  const int64_t k = plan.k, first = int64_t{blockIdx.x} * kSolveRows,
                at = int64_t{blockIdx.x} * k * kSolveRows;
  const SolveTile tile{p.values + at,
                       p.gradient + at,
                       errors,
                       p.scales + at / Pattern::kBlock,
                       plan.is_fixed ? p.steps + at / Pattern::kBlock : nullptr,
                       p.is_given ? p.masks + at / Pattern::kGroup : nullptr,
                       p.is_given,
                       gains,
                       moves};
  load_columns(p.weights, p.rows, first, k, tile.values);
  if (plan.is_fixed) load_columns(p.given, p.rows, first, k / kSolveBlock, p.steps + at / kSolveBlock, 1);
  float* target = p.target + at;
  if (p.sweeps > 0) {
    for (int64_t i = threadIdx.x; i < k * kSolveRows; i += kThreads) target[i] = tile.values[i];
  }
  __syncthreads();
  start_rows<Pattern>(p, plan, tile);
  if (p.sweeps > 0) descend<Pattern>(p, plan, tile, target, first + threadIdx.x < p.rows);
  __syncthreads();
  store_rows<Pattern>(p, plan, tile, first);
}

/// Transposes rows [n, k] to -rows [k, width], with zeros after the last row.
__global__ void negated_columns_kernel(const float* rows, int64_t n, int64_t k, float* columns,
                                       int64_t width) {
  __shared__ float part[32][33];
  const int64_t row = int64_t{blockIdx.x} * 32, first = int64_t{blockIdx.y} * 32;
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < 32; i += kWarps)
    part[i][lane] = row + i < n && first + lane < k ? -rows[(row + i) * k + first + lane] : 0;
  __syncthreads();
  for (int i = threadIdx.x / 32; i < 32; i += kWarps) {
    if (first + i < k) columns[(first + i) * width + row + lane] = part[lane][i];
  }
}

/// Computes e H e' in double for each row e, from -e and e H [k, width]. Each row is a column there.
__global__ void forms_kernel(const float* negated, const float* products, int64_t n, int64_t k, int64_t width,
                             double* forms) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= n) return;
  double sum = 0;
#pragma unroll 16
  for (int64_t i = 0; i < k; ++i)
    sum = sum + double{-negated[i * width + row]} * double{products[i * width + row]};
  forms[row] = sum;
}

/// The mask numbers of whole tiles, [k / group, 32].
std::vector<int32_t> tile_masks(std::span<const uint8_t> kept, int64_t k, int group) {
  const int64_t rows = static_cast<int64_t>(kept.size()) / k, groups = k / group;
  std::vector<int32_t> masks(static_cast<size_t>((rows + kSolveRows - 1) / kSolveRows * kSolveRows * groups));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < groups; ++j) {
      masks[static_cast<size_t>((r / kSolveRows * groups + j) * kSolveRows + r % kSolveRows)] =
          mask_of(&kept[static_cast<size_t>(r * k + j * group)], group);
    }
  }
  return masks;
}

}  // namespace

struct DeviceSolver::Buffers {
  DeviceStream stream;
  PinnedMemory host;  ///< input and output
  DeviceMemory in, given, steps, values, gradient, target, scales, masks, codes, stored, forms;

  uint8_t* host_of(size_t bytes) {
    if (host.bytes() < bytes) host = PinnedMemory(bytes);
    return host.data();
  }
  void send(DeviceMemory& to, const void* from, size_t bytes) {
    to.reserve(bytes);
    uint8_t* staged = host_of(bytes);
    std::memcpy(staged, from, bytes);
    check_cuda(cudaMemcpyAsync(to.as(), staged, bytes, cudaMemcpyHostToDevice, stream.get()), "upload");
    stream.synchronize();
  }
  void receive(void* to, const DeviceMemory& from, size_t bytes) {
    uint8_t* staged = host_of(bytes);
    check_cuda(cudaMemcpyAsync(staged, from.as(), bytes, cudaMemcpyDeviceToHost, stream.get()), "download");
    stream.synchronize();
    std::memcpy(to, staged, bytes);
  }
};

DeviceSolver::DeviceSolver() : buffers_(std::make_unique<Buffers>()) {}
DeviceSolver::~DeviceSolver() = default;

void DeviceSolver::solve(const SolveRule& rule, const DeviceHessian& hessian, float stored,
                         const SolveInput& in, const SolveOutput& out) {
  Buffers& b = *buffers_;
  const int64_t k = hessian.k();
  check_input(rule, k, in);
  twofour::check(rule.method == SolveMethod::diagonal || hessian.has_factor_, "a factor of the Hessian");
  twofour::check(rule.sweeps == 0 || (hessian.has_maps_ && hessian.pattern_ == rule.pattern),
                 "maps of the same pattern");
  const auto rows = static_cast<int64_t>(in.weights.size()) / k;
  if (rows == 0) return;
  const int64_t tiles = (rows + kSolveRows - 1) / kSolveRows;
  const auto numbers = static_cast<size_t>(tiles * k * kSolveRows);
  const ScaleSteps steps(rule, stored);

  Tiles p{};
  p.plan = plan_of(rule, steps, k, stored);
  p.plan.matrix = hessian.matrix_.as<float>();
  p.plan.factor = hessian.factor_.as<float>();
  p.plan.diagonal = hessian.diagonal_.as<float>();
  p.plan.maps = hessian.maps_.as<float>();
  p.plan.step = p.plan.inverse = nullptr;
  p.plan.nearest = nullptr;
  std::copy(steps.step.begin(), steps.step.end(), p.step);
  std::copy(steps.inverse.begin(), steps.inverse.end(), p.inverse);
  p.method = rule.method;
  p.is_masked = rule.pattern.has_value();
  p.is_given = rule.pattern && !in.mask.empty();
  p.sweeps = rule.sweeps;
  p.rows = rows;
  p.zero_scale = rule.zero_scale;
  p.bits = rule.format->grid.bits;
  if (p.plan.is_fixed) {
    b.send(b.given, in.steps.data(), in.steps.size_bytes());
    b.steps.reserve(numbers / kSolveBlock * sizeof(float));
    p.given = b.given.as<float>();
    p.steps = b.steps.as<float>();
  }
  b.send(b.in, in.weights.data(), in.weights.size_bytes());
  if (p.is_given) {
    const std::vector<int32_t> masks = tile_masks(in.mask, k, group_of(rule.pattern));
    b.send(b.masks, masks.data(), masks.size() * sizeof(int32_t));
  }
  for (DeviceMemory* memory : {&b.values, &b.gradient, &b.target}) memory->reserve(numbers * sizeof(float));
  const auto code_bytes =
      static_cast<size_t>(rule.format->code_bytes(static_cast<int64_t>(in.weights.size())));
  const size_t scale_count = in.weights.size() / static_cast<size_t>(p.plan.block);
  b.scales.reserve(numbers / kSolveBlock * sizeof(int32_t));
  b.codes.reserve(code_bytes);
  b.stored.reserve(scale_count);
  p.weights = b.in.as<float>();
  p.values = b.values.as<float>();
  p.gradient = b.gradient.as<float>();
  p.target = b.target.as<float>();
  p.scales = b.scales.as<int32_t>();
  p.masks = b.masks.as<int32_t>();
  p.codes = b.codes.as<uint8_t>();
  p.stored = b.stored.as<uint8_t>();
  const Launch how{dim3(static_cast<unsigned>(tiles)), kThreads};
  auto* const kernel = p.plan.block == 32                    ? solve_kernel<AllOfFourBy32>
                       : !rule.pattern                       ? solve_kernel<AllOfFour>
                       : rule.pattern == PrunePattern::k2of4 ? solve_kernel<TwoOfFour>
                                                             : solve_kernel<FourOfEightPaired>;
  launch("solve", b.stream.get(), how, kernel, p);
  b.receive(out.codes, b.codes, code_bytes);
  if (!p.plan.is_fixed) b.receive(out.scales, b.stored, scale_count);
}

std::vector<double> DeviceSolver::quadratic_forms(const DeviceHessian& hessian, std::span<const float> rows) {
  Buffers& b = *buffers_;
  const int64_t k = hessian.k(), count = static_cast<int64_t>(rows.size()) / k;
  twofour::check(hessian.has_mean_ && k % kSolveBlock == 0 && rows.size() % static_cast<size_t>(k) == 0,
                 "a mean, and whole rows of whole blocks");
  std::vector<double> forms(static_cast<size_t>(count));
  if (count == 0) return forms;
  const int64_t width = blocks_for(count, kProductColumns).x * int64_t{kProductColumns};
  for (DeviceMemory* memory : {&b.values, &b.gradient})
    memory->reserve(static_cast<size_t>(width * k) * sizeof(float));
  b.forms.reserve(forms.size() * sizeof(double));
  b.send(b.in, rows.data(), rows.size_bytes());
  const dim3 turns(static_cast<unsigned>(width / 32), blocks_for(k, 32).x);
  launch("forms", b.stream.get(), {turns, kThreads}, negated_columns_kernel, b.in.as<float>(), count, k,
         b.values.as<float>(), width);
  subtract_products<float>("forms", b.stream.get(),
                           {hessian.mean_.as<float>(), k, 1, b.values.as<float>(), width,
                            b.gradient.as<float>(), width, k, k, width, false, true});
  launch("forms", b.stream.get(), {blocks_for(count, 32), 32}, forms_kernel, b.values.as<float>(),
         b.gradient.as<float>(), count, k, width, b.forms.as<double>());
  b.receive(forms.data(), b.forms, forms.size() * sizeof(double));
  return forms;
}

}  // namespace twofour::cuda
