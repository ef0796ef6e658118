#include "lib/run/runtime/matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/error.h"
#include "formats/layouts/checkpoint_rows.h"
#include "kernels/device/device_memory.h"
#include "lib/run/runtime/kernel_weights.h"
#include "lib/run/runtime/stored_part.h"

namespace twofour {
namespace {

constexpr size_t kPiece = size_t{32} << 20;

/// Calls `see(offset, bytes)` on the host for all bytes of a part.
template <class See>
void see_bytes(const uint8_t* at, uint64_t bytes, Device device, const See& see) {
  if (device == Device::cpu) return see(0, std::span(at, static_cast<size_t>(bytes)));
  const cuda::PinnedMemory piece(std::min<uint64_t>(bytes, kPiece));
  for (uint64_t begin = 0; begin < bytes; begin += kPiece) {
    const std::span to(piece.data(), static_cast<size_t>(std::min<uint64_t>(bytes - begin, kPiece)));
    cuda::copy_to_host(at + begin, to.data(), to.size());
    see(begin, std::span<const uint8_t>(to));
  }
}

void check_part(const MatrixInfo& info, int part, const uint8_t* at, Device device) {
  std::string suffix;
  uint64_t bytes = 0;
  with_stored(info.layout, [&]<class L>() {
    suffix = L::part(part, info.shape).suffix;
    bytes = static_cast<uint64_t>(info.shape.e * L::part(part, info.shape).bytes());
  });
  const StoredPart stored =
      make_stored_part(info.layout, part, info.shape, fmt::format("{}_{}", info.name, suffix));
  if (at == nullptr) throw Error(fmt::format("{}: expected a pointer, found NULL", stored.where));
  see_bytes(at, bytes, device, [&](uint64_t begin, std::span<const uint8_t> some) {
    for_pieces(some.size(), [&](size_t from, size_t count) {
      check_stored(stored, static_cast<int64_t>(begin + from), some.subspan(from, count));
    });
  });
}

void check_global_scales(const MatrixInfo& info, const float* at, Device device) {
  if (at == nullptr)
    throw Error(fmt::format("{}: expected a pointer to global scales, found NULL", info.name));
  std::vector<float> scales(static_cast<size_t>(info.shape.e));
  if (device == Device::cpu) {
    std::copy_n(at, scales.size(), scales.begin());
  } else {
    cuda::copy_to_host(at, scales.data(), scales.size() * sizeof(float));
  }
  if (const auto odd = find_odd_global_scale(scales)) {
    throw Error(fmt::format("{}: expert {}: expected a finite global scale above 0, found {}", info.name,
                            *odd, scales[*odd]));
  }
}

}  // namespace

void check_placed(const MatrixInfo& info, const PlacedMatrix& at, Device device) {
  const Shape& s = info.shape;
  constexpr int64_t kMost = int64_t{1} << 24;
  if (s.e < 1 || s.n < 1 || s.k < 1 || std::max({s.e, s.n, s.k}) > kMost || s.k % kGroup != 0 ||
      (s.gated && s.n % (2 * kGroup) != 0)) {
    throw Error(
        fmt::format("{}: expected [E, N, K] of at most {} each, K in groups of {}, found [{}, {}, {}]",
                    info.name, kMost, kGroup, s.e, s.n, s.k));
  }
  int parts = 0;
  if (!with_stored(info.layout, [&]<class L>() { parts = L::part_count; }))
    throw Error(fmt::format("{}: expected the layout {}, or {}, found {}", info.name, layout_names(),
                            CheckpointRows::name, info.layout));
  check_global_scales(info, at.global_scale, device);
  for (int part = 0; part < parts; ++part) check_part(info, part, at.parts[part], device);
}

RuntimeMatrix RuntimeMatrix::over(MatrixInfo info, const PlacedMatrix& at, Device device, int cuda_device) {
  RuntimeMatrix made;
  made.info_ = std::move(info);
  made.device_ = device;
  made.at_ = at;
  if (device == Device::cuda) made.cuda_device_ = chosen_cuda_device(made.info_.name, cuda_device);
  const CudaDeviceScope scope(made.cuda_device_);
  check_placed(made.info_, at, device);
  if (device == Device::cpu) return made;
  const KernelLayout layout = kernel_layout(made.info_.layout);
  made.is_dense_ = layout.dense.has_value();
  if (made.is_dense_) {
    made.dense_ = dense_weights(*layout.dense, made.info_.shape, at);
  } else {
    made.sparse_ = sparse_experts(*layout.sparse, made.info_.shape, at);
  }
  return made;
}

cuda::ExpertRows RuntimeMatrix::rows_of(int64_t rows, cuda::Float type) const {
  cuda::ExpertRows r;
  r.rows = rows;
  r.x_type = r.out_type = type;
  return r;
}

size_t RuntimeMatrix::workspace_bytes(int64_t rows) const {
  if (rows < 0) throw Error(fmt::format("{}: expected rows, found {}", info_.name, rows));
  if (device_ == Device::cpu || rows == 0) return 0;
  const CudaDeviceScope scope(cuda_device_);
  const cuda::ExpertRows r = rows_of(rows, cuda::Float::f32);
  return is_dense_ ? cuda::dense_multiply_workspace(dense_, r) : cuda::sparse_multiply_workspace(sparse_, r);
}

void RuntimeMatrix::multiply(int64_t rows, cuda::Float type, const void* x, const int32_t* ids, void* out,
                             void* workspace, size_t bytes, cuda::Stream stream) const {
  if (device_ == Device::cpu) {
    cpu::multiply(host_experts(info_.layout, info_.shape, at_), rows, type, x, ids, out);
    return;
  }
  const CudaDeviceScope scope(cuda_device_);
  cuda::ExpertRows r = rows_of(rows, type);
  r.x = x, r.ids = ids, r.out = out;
  if (is_dense_) {
    cuda::dense_multiply(dense_, r, workspace, bytes, stream);
  } else {
    cuda::sparse_multiply(sparse_, r, workspace, bytes, stream);
  }
}

}  // namespace twofour
