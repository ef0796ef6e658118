#pragma once
#include <array>
#include <memory>
#include <vector>

#include "kernels/device/device_memory.h"
#include "kernels/moe/dense_moe.h"
#include "kernels/moe/moe_cpu.h"
#include "lib/base/io/mapped_file.h"
#include "lib/recipe/artifact/artifact_modules.h"
#include "lib/run/runtime/artifact.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The tensors of one matrix of a layer, as indices in the artifact.
struct LayerMatrix {
  Shape shape;
  std::vector<size_t> parts;
  size_t global_scale;
};

/// The state of a RuntimeArtifact.
struct ArtifactState {
  Checkpoint artifact;
  std::vector<LayerInfo> layers;
  std::vector<std::array<LayerMatrix, 2>> matrices;  ///< w13 and w2 of each layer
};

/// The state of a RuntimeLayer.
struct LayerState {
  std::shared_ptr<const ArtifactState> artifact;
  LayerInfo info;
  Device device = Device::cpu;
  LayerOptions options;

  // The data on the CPU: the mapped parts of w13 and w2, their global scales, and the layer over them.
  std::vector<MappedBytes> mapped;
  std::vector<const InputFile*> files;
  std::vector<float> global_scales[2];
  cpu::Moe cpu;

  // The data on CUDA, which is in one allocation.
  cuda::DeviceMemory memory;
  int cuda_device = -1;
  bool is_dense = false;
  cuda::SparseMoe sparse;
  cuda::DenseMoe dense;
};

}  // namespace twofour
