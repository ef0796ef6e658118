#include <fmt/format.h>

#include "formats/error.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/run/runtime/kernel_weights.h"
#include "lib/run/runtime/matrix.h"

namespace twofour {

std::array<Shape, 2> layer_shapes(const LayerInfo& info) {
  return {Shape{info.e, info.gated ? 2 * info.i : info.i, info.h, info.gated},
          Shape{info.e, info.h, info.i, false}};
}

RuntimeLayer RuntimeLayer::over(LayerInfo info, const std::array<PlacedMatrix, 2>& weights, Device device,
                                const LayerOptions& options) {
  if (!is_layout(info.layout))
    throw Error(fmt::format("{}: expected the layout {}, found {}", info.name, layout_names(), info.layout));
  auto layer = std::make_unique<LayerState>();
  layer->info = std::move(info);
  layer->device = device;
  layer->options = options;
  check_options(layer->info, options);
  const std::array<Shape, 2> shapes = layer_shapes(layer->info);
  if (device == Device::cuda) layer->cuda_device = chosen_cuda_device(layer->info.name, options.cuda_device);
  const CudaDeviceScope scope(layer->cuda_device);
  layer->info.bytes = 0;
  for (const size_t which : {size_t{0}, size_t{1}}) {
    const MatrixInfo matrix{layer->info.name + (which == 0 ? ".w13" : ".w2"), layer->info.layout,
                            shapes[which]};
    check_placed(matrix, weights[which], device);
    layer->info.bytes += static_cast<uint64_t>(layer->info.e) * sizeof(float);
    with_layout(layer->info.layout, [&]<class L>() {
      for (int part = 0; part < L::part_count; ++part)
        layer->info.bytes += static_cast<uint64_t>(layer->info.e * L::part(part, shapes[which]).bytes());
    });
  }
  if (device == Device::cuda) check_kernel(layer->info);
  const int32_t* map = options.expert_map.empty() ? nullptr : layer->options.expert_map.data();
  if (map != nullptr && device == Device::cuda) {
    layer->memory = cuda::DeviceMemory(options.expert_map);
    map = layer->memory.as<int32_t>();
  }
  place_weights(*layer, shapes, weights, map);
  return RuntimeLayer(std::move(layer));
}

}  // namespace twofour
