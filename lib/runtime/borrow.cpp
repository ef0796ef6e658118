#include <fmt/format.h>

#include <vector>

#include "formats/error.h"
#include "kernels/device/device_memory.h"
#include "lib/runtime/kernel_weights.h"
#include "lib/runtime/stored_part.h"

namespace twofour {
namespace {

constexpr size_t kPiece = size_t{32} << 20;

/// Calls `see(offset, bytes)` for all bytes of a part, on the host.
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

void check_part(const LayerInfo& info, const char* matrix, int part, const Shape& shape, const uint8_t* at,
                Device device) {
  std::string suffix;
  uint64_t bytes = 0;
  with_layout(info.layout, [&]<class L>() {
    suffix = L::part(part, shape).suffix;
    bytes = static_cast<uint64_t>(shape.e * L::part(part, shape).bytes());
  });
  const StoredPart stored =
      make_stored_part(info.layout, part, shape, fmt::format("{}.{}_{}", info.name, matrix, suffix));
  if (at == nullptr) throw Error(fmt::format("{}: expected a pointer, found NULL", stored.where));
  see_bytes(at, bytes, device, [&](uint64_t begin, std::span<const uint8_t> some) {
    for_pieces(some.size(), [&](size_t from, size_t count) {
      check_stored(stored, static_cast<int64_t>(begin + from), some.subspan(from, count));
    });
  });
}

void check_global_scales(const LayerInfo& info, const char* matrix, const float* at, Device device) {
  if (at == nullptr)
    throw Error(fmt::format("{}.{}: expected a pointer to global scales, found NULL", info.name, matrix));
  std::vector<float> scales(static_cast<size_t>(info.e));
  const size_t bytes = scales.size() * sizeof(float);
  if (device == Device::cpu) {
    std::copy_n(at, scales.size(), scales.begin());
  } else {
    cuda::copy_to_host(at, scales.data(), bytes);
  }
  if (const auto odd = find_odd_global_scale(scales)) {
    throw Error(fmt::format("{}.{}: expert {}: expected a finite global scale above 0, found {}", info.name,
                            matrix, *odd, scales[*odd]));
  }
}

/// Throws Error where sizes are none that the layout stores.
int checked_parts(const LayerInfo& info) {
  int parts = 0;
  if (!with_layout(info.layout, [&]<class L>() { parts = L::part_count; }))
    throw Error(fmt::format("{}: expected the layout {}, found {}", info.name, layout_names(), info.layout));
  constexpr int64_t kMost = int64_t{1} << 23;
  if (info.e < 1 || info.h < 1 || info.i < 1 || info.e > kMost || info.h > kMost || info.i > kMost ||
      info.h % kGroup != 0 || info.i % kGroup != 0) {
    throw Error(fmt::format(
        "{}: expected experts, and H and I that are multiples of {}, each at most {}, found {}, {} and {}",
        info.name, kGroup, kMost, info.e, info.h, info.i));
  }
  return parts;
}

}  // namespace

std::array<Shape, 2> layer_shapes(const LayerInfo& info) {
  return {Shape{info.e, info.gated ? 2 * info.i : info.i, info.h, info.gated},
          Shape{info.e, info.h, info.i, false}};
}

RuntimeLayer RuntimeLayer::over(LayerInfo info, const std::array<PlacedMatrix, 2>& weights, Device device,
                                const LayerOptions& options) {
  const int parts = checked_parts(info);
  auto layer = std::make_unique<LayerState>();
  layer->info = std::move(info);
  layer->device = device;
  layer->options = options;
  check_options(layer->info, options);
  const std::array<Shape, 2> shapes = layer_shapes(layer->info);
  if (device == Device::cuda) layer->cuda_device = chosen_cuda_device(layer->info, options);
  const CudaDeviceScope scope(layer->cuda_device);
  if (device == Device::cuda) check_kernel(layer->info);
  layer->info.bytes = 0;
  for (const size_t which : {size_t{0}, size_t{1}}) {
    const char* matrix = which == 0 ? "w13" : "w2";
    check_global_scales(layer->info, matrix, weights[which].global_scale, device);
    layer->info.bytes += static_cast<uint64_t>(layer->info.e) * sizeof(float);
    for (int part = 0; part < parts; ++part) {
      check_part(layer->info, matrix, part, shapes[which], weights[which].parts[part], device);
      with_layout(layer->info.layout, [&]<class L>() {
        layer->info.bytes += static_cast<uint64_t>(layer->info.e * L::part(part, shapes[which]).bytes());
      });
    }
  }
  const int32_t* map = options.expert_map.empty() ? nullptr : layer->options.expert_map.data();
  if (map != nullptr && device == Device::cuda) {
    layer->memory = cuda::DeviceMemory(options.expert_map);
    map = layer->memory.as<int32_t>();
  }
  place_weights(*layer, shapes, weights, map);
  return RuntimeLayer(std::move(layer));
}

}  // namespace twofour
